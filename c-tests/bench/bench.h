/*
 * bench.h -- what the programs that measure speed share: what a test is, the
 * clock, the figures, and contents that tell a wrong byte.
 *
 *   PROGRAM server ADDR               prints `port N` and serves one client
 *   PROGRAM client ADDR PORT [-t SECONDS] TEST/MODE/SIZE/CONNECTIONS...
 *
 * Each test gives one line: TEST MODE SIZE CONNECTIONS FIGURE UNIT, and for a
 * latency, whose figure is the median, the 99th percentile and the mean.
 */
#ifndef BENCH_H
#define BENCH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define FAIL(...) \
	do { \
		fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
		fprintf(stderr, __VA_ARGS__); \
		fputc('\n', stderr); \
		exit(1); \
	} while (0)

/* A call that gives 0, or an error number, or sets errno. */
#define MUST(call) \
	do { \
		int must_ = (call); \
		if (must_ != 0) \
			FAIL("%s: %s", #call, strerror(must_ > 0 ? must_ : errno)); \
	} while (0)

#define MAX_CONNS 64
#define MAX_SIZE (64u << 20)
#define GIVE_UP 60 /* seconds that a test may take at most */

/* ---- tests ---- */

/* The figure of a test, which tells how it is measured. */
enum kind { LATENCY, BANDWIDTH, RATE };

/* What both sides of a test know; goes over the wire as it is. */
struct test {
	uint8_t name; /* index in the program's table of names */
	uint8_t mode; /* index in modes[] */
	uint16_t conns;
	uint32_t size;
	bool last; /* the client has no more after this one */
};

/*
 * How a side waits. Poll: both ask the device or the socket without end. Memory:
 * both look at their memory alone. Asleep: the server sleeps, the client polls.
 * Block: both sleep.
 */
static const char *const modes[] = { "poll", "memory", "asleep", "block" };
enum { POLL, MEMORY, ASLEEP, BLOCK };

static inline uint8_t lookup(const char *const *names, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return (uint8_t)i;
	FAIL("no such test or mode: %s", name);
}

static inline struct test parse(const char *const *names, size_t n, const char *text)
{
	struct test test = { 0 };
	char name[32], mode[32];
	unsigned size, conns;

	if (sscanf(text, "%31[^/]/%31[^/]/%u/%u", name, mode, &size, &conns) != 4)
		FAIL("not TEST/MODE/SIZE/CONNECTIONS: %s", text);
	if (size < 8 || size % 8 != 0 || size > MAX_SIZE || conns < 1 || conns > MAX_CONNS)
		FAIL("size or number of connections is out of bounds: %s", text);
	test.name = lookup(names, n, name);
	test.mode = lookup(modes, COUNT(modes), mode);
	test.size = size;
	test.conns = (uint16_t)conns;
	return test;
}

/* Messages under way at once on a connection. */
static inline unsigned window_of(struct test test, enum kind kind)
{
	unsigned all = kind == RATE ? 128 : test.size <= 65536 ? 64 : 16;
	unsigned window = kind == RATE ? all : all / test.conns;

	return kind == LATENCY ? 2 : window < 2 ? 2 : window;
}

/* ---- time and figures ---- */

static inline uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double seconds = 1; /* that a test is measured for */

/* When a test that starts now begins to count, and when it ends. */
struct span { uint64_t from, to; };

static inline struct span span(void)
{
	uint64_t t = now();
	uint64_t ns = (uint64_t)(seconds * 1e9);

	return (struct span){ .from = t + ns / 4, .to = t + ns / 4 + ns };
}

static struct {
	uint32_t *ns;
	size_t n, room;
} samples;

static inline void sample(uint64_t ns)
{
	if (samples.n == samples.room) {
		samples.room = samples.room ? samples.room * 2 : 1 << 20;
		samples.ns = realloc(samples.ns, samples.room * sizeof(*samples.ns));
		if (samples.ns == NULL)
			FAIL("no memory");
	}
	samples.ns[samples.n++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static inline int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static inline void print_test(const char *name, struct test test)
{
	printf("%s %s %u %u ", name, modes[test.mode], test.size, test.conns);
}

/* Of the samples, each of which took `trips` times what is to be shown. */
static inline void print_latency(const char *name, struct test test, double trips)
{
	double sum = 0, us = 1e3 * trips;

	if (samples.n == 0)
		FAIL("%s: nothing was measured", name);
	qsort(samples.ns, samples.n, sizeof(*samples.ns), by_value);
	for (size_t i = 0; i < samples.n; i++)
		sum += samples.ns[i];
	print_test(name, test);
	printf("%.3f us %.3f %.3f\n", samples.ns[samples.n / 2] / us,
			samples.ns[samples.n / 100 * 99] / us, sum / (double)samples.n / us);
	fflush(stdout);
	samples.n = 0;
}

/* What was done at two moments between which it is counted. */
struct meter {
	struct span span;
	uint64_t t[2], done[2];
};

/* Call often; false when it is time to end. */
static inline bool meter(struct meter *meter, uint64_t done)
{
	uint64_t t = now();

	if (t < meter->span.from || meter->t[0] == 0) {
		meter->t[0] = t;
		meter->done[0] = done;
	}
	meter->t[1] = t;
	meter->done[1] = done;
	return t < meter->span.to;
}

static inline void print_meter(const char *name, struct test test, enum kind kind,
		const struct meter *meter)
{
	double done = (double)(meter->done[1] - meter->done[0]);
	double ns = (double)(meter->t[1] - meter->t[0]);

	print_test(name, test);
	if (kind == RATE)
		printf("%.4f M/s\n", done / ns * 1e3);
	else
		printf("%.4f GB/s\n", done * test.size / ns);
	fflush(stdout);
}

/* ---- contents ---- */

/* Memory of its own pages, all of them there. */
static inline char *memory(size_t size)
{
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (at == MAP_FAILED)
		FAIL("mmap: %s", strerror(errno));
	return at;
}

/* The words of a message differ from message to message and from word to word. */
static inline uint64_t word(uint64_t which, size_t i)
{
	uint64_t x = (which << 32 | i) * 0x9e3779b97f4a7c15u;

	return x ^ x >> 29;
}

static inline void fill(char *to, size_t size, uint64_t which)
{
	for (size_t i = 0; i < size / 8; i++)
		((uint64_t *)to)[i] = word(which, i);
}

/* The last word tells the turn; it is the one that comes last. */
static inline volatile uint64_t *stamp(char *message, size_t size)
{
	return (volatile uint64_t *)(message + size) - 1;
}

/* The number of words that are not as they should be. */
static inline uint64_t wrong(char *message, size_t size, uint64_t which, uint64_t turn)
{
	uint64_t bad = *stamp(message, size) != turn;

	for (size_t i = 0; i + 1 < size / 8; i++)
		bad += ((uint64_t *)message)[i] != word(which, i);
	return bad;
}

/* The last of `count` turns that used this one of `slots`; there may be none. */
static inline bool last_turn(uint64_t count, unsigned slots, unsigned slot, uint64_t *turn)
{
	if (count <= slot)
		return false;
	*turn = count - 1 - (count - 1 - slot) % slots;
	return true;
}

/* ---- the command line ---- */

struct command {
	bool server;
	const char *addr, *port;
	char **tests;
};

static inline struct command command(int argc, char **argv)
{
	struct command c = { 0 };
	int i = 4;

	if (argc == 3 && strcmp(argv[1], "server") == 0) {
		c.server = true;
	} else if (argc > 4 && strcmp(argv[1], "client") == 0) {
		if (argc > 5 && strcmp(argv[4], "-t") == 0) {
			seconds = atof(argv[5]);
			i = 6;
		}
		c.tests = argv + i;
	} else {
		fprintf(stderr, "usage: %s server ADDR\n       %s client ADDR PORT [-t SECONDS] "
				"TEST/MODE/SIZE/CONNECTIONS...\n", argv[0], argv[0]);
		exit(2);
	}
	c.addr = argv[2];
	c.port = c.server ? "0" : argv[3];
	return c;
}

#endif
