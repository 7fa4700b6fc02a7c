/*
 * common.h -- what all test programs share.
 *
 * A program is a table of cases. Each case prints what it saw of the library as
 * `key: value` lines, and the runner (tests/local.rs, tests/device.rs) compares
 * the lines printed over the original library with those printed over ours.
 *
 *   PROGRAM list                      names the cases: `solo`, `pair`, or `own` for one that
 *                                     checks ours by itself, as the original is not fit for it
 *   PROGRAM CASE [ADDR]               runs a solo case
 *   PROGRAM CASE server ADDR          runs one side of a pair; prints its port
 *   PROGRAM CASE client ADDR PORT     runs the other
 *
 * A line that is meant to differ is printed under DIFF("D7") and shows as
 * `[D7] key: value`; the runner knows the value each library has to give.
 */
#ifndef TEST_COMMON_H
#define TEST_COMMON_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <fcntl.h>
#include <librpma.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- printing ---- */

static const char *mark; /* the difference that the next lines show, if any */
#define DIFF(difference) for (mark = (difference); mark != NULL; mark = NULL)

__attribute__((format(printf, 2, 3)))
static inline void show(const char *key, const char *format, ...)
{
	va_list args;

	if (mark != NULL)
		printf("[%s] ", mark);
	printf("%s: ", key);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
}

/* The test itself could not go on; never the way to report what a library did. */
#define FAIL(...) \
	do { \
		printf("cannot go on: %s:%d: ", __FILE__, __LINE__); \
		printf(__VA_ARGS__); \
		putchar('\n'); \
		exit(1); \
	} while (0)

/* A step that has to work for the case to make sense; prints nothing when it does. */
#define MUST(call) \
	do { \
		int must_ = (call); \
		if (must_ != 0) \
			FAIL("%s gave %s%s", #call, code_name(must_), log_text()); \
	} while (0)

static inline const char *code_name(int code)
{
	static const char *const names[] = {
		"UNKNOWN", "NOSUPP", "PROVIDER", "NOMEM", "INVAL", "NO_COMPLETION",
		"NO_EVENT", "AGAIN", "SHARED_CHANNEL", "NOT_SHARED_CHNL",
	};
	static char number[16];

	if (code <= RPMA_E_UNKNOWN && code > RPMA_E_UNKNOWN - (int)COUNT(names))
		return names[RPMA_E_UNKNOWN - code];
	snprintf(number, sizeof(number), "%d", code);
	return number;
}

static inline const char *hex(const void *bytes, size_t n)
{
	static char text[4][1024];
	static int turn;
	char *to = text[turn = (turn + 1) % 4];

	if (n > sizeof(text[0]) / 2 - 1)
		n = sizeof(text[0]) / 2 - 1;
	to[0] = '\0';
	for (size_t i = 0; i < n; i++)
		sprintf(to + 2 * i, "%02x", ((const unsigned char *)bytes)[i]);
	return to;
}

/* State that the files of a program have in common, if it is of several. */
#define SHARED __attribute__((weak, visibility("hidden")))

/* ---- the log ---- */

#define LOG_LINES 16

SHARED struct {
	int count;
	int level[LOG_LINES];
	bool whole[LOG_LINES]; /* file, a function's name and the ending newline were there */
	char text[LOG_LINES][512];
} logged;

static inline const char *level_name(int level)
{
	static const char *const names[] = {
		"FATAL", "ERROR", "WARNING", "NOTICE", "INFO", "DEBUG"
	};

	return level >= 0 && level < (int)COUNT(names) ? names[level] : "no level";
}

/* What else a log function does, which may call the library. */
SHARED void (*log_calls)(void);

static inline void log_capture(enum rpma_log_level level, const char *file, const int line,
		const char *function, const char *format, ...)
{
	int i = __atomic_fetch_add(&logged.count, 1, __ATOMIC_SEQ_CST);
	size_t n = strlen(format);
	va_list args;

	if (log_calls != NULL)
		log_calls();
	if (i >= LOG_LINES)
		return;
	logged.level[i] = level;
	logged.whole[i] = file != NULL && *file != '\0' && line > 0 && function != NULL &&
			*function != '\0' && strpbrk(function, "{}<>: ") == NULL && n > 0 &&
			format[n - 1] == '\n';
	va_start(args, format);
	vsnprintf(logged.text[i], sizeof(logged.text[i]), format, args);
	va_end(args);
	n = strlen(logged.text[i]);
	if (n > 0 && logged.text[i][n - 1] == '\n')
		logged.text[i][n - 1] = '\0';
}

/* Everything that was logged since the last TRY, for a person. */
static inline const char *log_text(void)
{
	static char text[4096];
	size_t n = 0;

	text[0] = '\0';
	for (int i = 0; i < logged.count && i < LOG_LINES; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "; %s %.200s",
				level_name(logged.level[i]), logged.text[i]);
	return text;
}

/*
 * The same for a transcript: the levels and, for an error of a call below, which
 * one and why. The rest of the wording is each library's own, such as what ours
 * says of the remedy in a sentence after the reason.
 */
static inline const char *log_summary(void)
{
	static char text[1024];
	size_t n = 0;

	if (logged.count == 0)
		return "-";
	for (int i = 0; i < logged.count && i < LOG_LINES; i++) {
		const char *line = logged.text[i];
		const char *call = strstr(line, "ibv_");
		const char *cm = strstr(line, "rdma_");
		const char *end = line;
		const char *why = NULL;

		for (const char *p = line; (p = strstr(p, " failed: ")) != NULL; p++)
			end = p;
		end = strstr(end, ". ") != NULL ? strstr(end, ". ") : line + strlen(line);
		if (call == NULL || (cm != NULL && cm < call))
			call = cm;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s", i ? "," : "",
				level_name(logged.level[i]));
		if (!logged.whole[i])
			n += (size_t)snprintf(text + n, sizeof(text) - n, "(not whole)");
		if (logged.level[i] > RPMA_LOG_LEVEL_ERROR || call == NULL || call > end)
			continue;
		for (const char *p = line; (p = strstr(p, ": ")) != NULL && p < end; p += 2)
			why = p + 2;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "(%.*s: %.*s)",
				(int)strspn(call, "abcdefghijklmnopqrstuvwxyz_"), call,
				why != NULL ? (int)(end - why) : INT_MAX, why != NULL ? why : "no reason");
	}
	return text;
}

/* ---- trying a call ---- */

/* What OUT points to: bytes no library writes, so that a write shows. */
SHARED unsigned char out_bytes[64] __attribute__((aligned(16)));
#define OUT ((void *)out_bytes)

/* A zeroed place to point to where a call must look at another argument first. */
static unsigned char dummy_bytes[4096] __attribute__((aligned(4096), unused));
#define DUMMY ((void *)dummy_bytes)

#define OP_CONTEXT ((void *)0x123456789abcdef0)

static inline void before(void)
{
	memset(out_bytes, 0xa5, sizeof(out_bytes));
	logged.count = 0;
}

static inline bool out_is_kept(void)
{
	return out_bytes[0] == 0xa5 &&
			memcmp(out_bytes, out_bytes + 1, sizeof(out_bytes) - 1) == 0;
}

static inline int after(const char *call, int ret)
{
	bool kept = out_is_kept();
	bool uses_out = strstr(call, "OUT") != NULL;

	show(call, "%s%s log=%s", code_name(ret),
			uses_out || !kept ? kept ? " out=kept" : " out=written" : "",
			log_summary());
	return ret;
}

/* Makes the call and prints it with its code, its log and what became of OUT. */
#define TRY(call) (before(), after(#call, (call)))

/* The same with a key of its own, for loops. */
#define TRY_AS(key, call) (before(), after((key), (call)))

/* The same in a child process, for a call that may not come back. */
#define TRY_IN_CHILD(call) \
	do { \
		int status_; \
		fflush(stdout); \
		pid_t pid_ = fork(); \
		if (pid_ == 0) { \
			before(); \
			after(#call, (call)); \
			fflush(stdout); \
			_exit(0); \
		} \
		if (pid_ < 0 || waitpid(pid_, &status_, 0) != pid_) \
			FAIL("no child process: %s", strerror(errno)); \
		if (WIFSIGNALED(status_)) \
			show(#call, "killed by %s", strsignal(WTERMSIG(status_))); \
	} while (0)

/* ---- the cases ---- */

struct test_case {
	const char *name;
	void (*run)(void);  /* a case for one process */
	void (*server)(void);
	void (*client)(void);
	bool log_untouched; /* the log is left as the library set it up */
	bool own;           /* ours only: it fails where something is not as it has to be */
	int variant;        /* for cases that share their functions */
};

static const char *addr = "";   /* the address of the device under test */
static const char *port = "";   /* the server's port, in the client */
static int variant;             /* the case's */

static inline int run_cases(const struct test_case *cases, size_t n, int argc, char *argv[])
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && strcmp(argv[1], "list") == 0) {
		for (size_t i = 0; i < n; i++)
			printf("%s %s\n", cases[i].name, cases[i].own ? "own" :
					cases[i].run ? "solo" : "pair");
		fflush(stdout);
		_exit(0); /* without what a library says as it unloads */
	}
	for (size_t i = 0; argc >= 2 && i < n; i++) {
		const struct test_case *c = &cases[i];
		const char *side = argc > 2 ? argv[2] : "";

		if (strcmp(c->name, argv[1]) != 0)
			continue;
		variant = c->variant;
		if (!c->log_untouched) {
			rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_DEBUG);
			rpma_log_set_function(log_capture);
		}
		if (c->run != NULL && argc <= 3) {
			addr = side;
			c->run();
		} else if (c->server != NULL && strcmp(side, "server") == 0 && argc == 4) {
			addr = argv[3];
			c->server();
		} else if (c->client != NULL && strcmp(side, "client") == 0 && argc == 5) {
			addr = argv[3];
			port = argv[4];
			c->client();
		} else {
			break;
		}
		puts("end: reached");
		return 0;
	}
	fprintf(stderr, "usage: %s list | CASE [ADDR] | CASE server ADDR | CASE client ADDR PORT\n",
			argv[0]);
	return 2;
}

#define MAIN(cases) \
	int main(int argc, char *argv[]) \
	{ \
		return run_cases((cases), COUNT(cases), argc, argv); \
	}

#endif
