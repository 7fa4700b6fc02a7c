/*
 * tcp.c -- what bare TCP sockets give: the limit for a device made of them.
 *
 *   pingpong   a message there and one back; half of the time that takes
 *   request    a short request there, the message back; the time of both
 *   stream     one way, as fast as it goes
 *
 * In a ping-pong the turns go round the connections.
 */
#include "bench.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

static const char *const names[] = { "pingpong", "request", "stream" };
enum { PINGPONG, REQUEST, STREAM };

#define REQUEST_SIZE 32

static bool is_server;
static struct test test;
static int fd[MAX_CONNS];

static int flags(void)
{
	bool spin = test.mode == POLL || (test.mode == ASLEEP && !is_server);

	return spin ? MSG_DONTWAIT : 0;
}

static void send_all(int to, const char *from, size_t size)
{
	for (size_t at = 0; at < size;) {
		ssize_t n = send(to, from + at, size - at, flags() | MSG_NOSIGNAL);

		if (n > 0)
			at += (size_t)n;
		else if (errno != EAGAIN)
			FAIL("send: %s", strerror(errno));
	}
}

static void recv_all(int from, char *to, size_t size)
{
	for (size_t at = 0; at < size;) {
		ssize_t n = recv(from, to + at, size - at, flags());

		if (n > 0)
			at += (size_t)n;
		else if (n == 0 || errno != EAGAIN)
			FAIL("recv: %s", n ? strerror(errno) : "closed");
	}
}

/* ---- latency: the last turn, which the client announces, is 0 ---- */

static void pingpong_server(size_t size)
{
	char *in = memory(size), *out = memory(test.size);
	unsigned c = 0;

	fill(out, test.size, 1);
	do {
		recv_all(fd[c], in, size);
		*stamp(out, test.size) = *stamp(in, size);
		send_all(fd[c], out, test.size);
		c = (c + 1) % test.conns;
	} while (*stamp(in, size) != 0);
	munmap(in, size);
	munmap(out, test.size);
}

static void pingpong_client(size_t size)
{
	char *in = memory(test.size), *out = memory(size);
	struct span during = span();
	uint64_t t = now(), turn = 1;
	unsigned c = 0;

	fill(out, size, 2);
	while (turn != 0) {
		uint64_t start = t;

		turn = t < during.to ? turn + 1 : 0;
		*stamp(out, size) = turn;
		send_all(fd[c], out, size);
		recv_all(fd[c], in, test.size);
		if (*stamp(in, test.size) != turn)
			FAIL("%s: a wrong answer", names[test.name]);
		c = (c + 1) % test.conns;
		t = now();
		if (start >= during.from)
			sample(t - start);
	}
	if (wrong(in, test.size, 1, 0) != 0)
		FAIL("%s: wrong bytes", names[test.name]);
	munmap(in, test.size);
	munmap(out, size);
	print_latency(names[test.name], test, test.name == PINGPONG ? 2 : 1);
}

/* ---- bandwidth ---- */

struct stream {
	uint64_t count; /* of whole messages */
	size_t at;      /* bytes of the next */
	bool end;
};

/* As many messages as the writes of a device have under way, so as much memory. */
static char *slot(char *ring, unsigned window, unsigned c, uint64_t turn)
{
	return ring + ((size_t)c * window + turn % window) * test.size;
}

/* Nothing can be done on any connection: sleeps until it can, unless the mode is to spin. */
static void wait_all(const struct stream *streams, short events)
{
	struct pollfd polled[MAX_CONNS];

	if (flags() != 0)
		return;
	for (unsigned c = 0; c < test.conns; c++)
		polled[c] = (struct pollfd){ .fd = streams[c].end ? -1 : fd[c], .events = events };
	if (poll(polled, test.conns, GIVE_UP * 1000) <= 0)
		FAIL("poll: nothing happens");
}

static void stream_server(void)
{
	unsigned window = window_of(test, BANDWIDTH), open = test.conns;
	char *ring = memory((size_t)window * test.conns * test.size);
	struct stream streams[MAX_CONNS] = { 0 };
	uint64_t bad = 0, turn;

	while (open > 0) {
		bool some = false;

		for (unsigned c = 0; c < test.conns; c++) {
			struct stream *s = &streams[c];
			ssize_t n;

			if (s->end)
				continue;
			n = recv(fd[c], slot(ring, window, c, s->count) + s->at, test.size - s->at,
					flags() | (test.conns > 1 ? MSG_DONTWAIT : 0));
			if (n < 0 && errno != EAGAIN)
				FAIL("recv: %s", strerror(errno));
			some |= n >= 0;
			if (n == 0) {
				s->end = true;
				open--;
			}
			s->at += n > 0 ? (size_t)n : 0;
			if (s->at == test.size) {
				s->at = 0;
				s->count++;
			}
		}
		if (!some && open > 0)
			wait_all(streams, POLLIN);
	}
	for (unsigned c = 0; c < test.conns; c++)
		for (unsigned i = 0; i < window; i++)
			if (last_turn(streams[c].count, window, i, &turn))
				bad += wrong(slot(ring, window, c, i), test.size, c * window + i, turn);
	send_all(fd[0], (char *)&bad, sizeof(bad));
	munmap(ring, (size_t)window * test.conns * test.size);
}

static void stream_client(void)
{
	unsigned window = window_of(test, BANDWIDTH), open = test.conns;
	char *ring = memory((size_t)window * test.conns * test.size);
	struct stream streams[MAX_CONNS] = { 0 };
	struct meter m = { .span = span() };
	uint64_t done = 0, bad;
	bool running = true;

	for (unsigned i = 0; i < window * test.conns; i++)
		fill(ring + (size_t)i * test.size, test.size, i);
	while (open > 0) {
		bool some = false;

		for (unsigned c = 0; c < test.conns; c++) {
			struct stream *s = &streams[c];
			char *from = slot(ring, window, c, s->count);
			ssize_t n;

			if (s->end)
				continue;
			if (s->at == 0 && !running) {
				shutdown(fd[c], SHUT_WR);
				s->end = true;
				open--;
				continue;
			}
			if (s->at == 0)
				*stamp(from, test.size) = s->count;
			n = send(fd[c], from + s->at, test.size - s->at,
					MSG_NOSIGNAL | flags() | (test.conns > 1 ? MSG_DONTWAIT : 0));
			if (n < 0 && errno != EAGAIN)
				FAIL("send: %s", strerror(errno));
			some |= n >= 0;
			s->at += n > 0 ? (size_t)n : 0;
			if (s->at == test.size) {
				s->at = 0;
				s->count++;
				done++;
			}
		}
		running = running && meter(&m, done);
		if (!some && open > 0)
			wait_all(streams, POLLOUT);
	}
	recv_all(fd[0], (char *)&bad, sizeof(bad));
	if (bad != 0)
		FAIL("stream: %llu wrong words", (unsigned long long)bad);
	munmap(ring, (size_t)window * test.conns * test.size);
	print_meter("stream", test, BANDWIDTH, &m);
}

static void run(void)
{
	size_t to_server = test.name == REQUEST ? REQUEST_SIZE : test.size;

	if (test.name == STREAM)
		is_server ? stream_server() : stream_client();
	else
		is_server ? pingpong_server(to_server) : pingpong_client(to_server);
}

/* ---- connections ---- */

static struct addrinfo *resolve(struct command c)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };
	struct addrinfo *info;

	if (getaddrinfo(c.addr, c.port, &hints, &info) != 0)
		FAIL("no address: %s %s", c.addr, c.port);
	return info;
}

static void no_delay(int sock)
{
	MUST(setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)));
}

static void serve(struct command command)
{
	struct addrinfo *info = resolve(command);
	int listener = socket(info->ai_family, SOCK_STREAM, 0);
	struct sockaddr_storage name;
	socklen_t length = sizeof(name);

	MUST(bind(listener, info->ai_addr, info->ai_addrlen));
	MUST(listen(listener, MAX_CONNS));
	MUST(getsockname(listener, (struct sockaddr *)&name, &length));
	printf("port %d\n", ntohs(((struct sockaddr_in *)&name)->sin_port));
	fflush(stdout);
	while (!test.last) {
		unsigned c = 0;

		do {
			fd[c] = accept(listener, NULL, NULL);
			if (fd[c] < 0)
				FAIL("accept: %s", strerror(errno));
			no_delay(fd[c]);
			test.mode = BLOCK;
			recv_all(fd[c], (char *)&test, sizeof(test));
		} while (++c < test.conns);
		alarm(GIVE_UP);
		run();
		for (c = 0; c < test.conns; c++)
			close(fd[c]);
	}
}

static void connect_one(const struct addrinfo *info, unsigned c)
{
	fd[c] = socket(info->ai_family, SOCK_STREAM, 0);
	MUST(connect(fd[c], info->ai_addr, info->ai_addrlen));
	no_delay(fd[c]);
	send_all(fd[c], (const char *)&test, sizeof(test));
}

int main(int argc, char **argv)
{
	struct command c = command(argc, argv);
	struct addrinfo *info;

	alarm(GIVE_UP);
	is_server = c.server;
	if (is_server) {
		serve(c);
		return 0;
	}
	info = resolve(c);
	for (char **text = c.tests; *text != NULL; text++) {
		alarm(GIVE_UP);
		test = parse(names, COUNT(names), *text);
		test.last = text[1] == NULL;
		for (unsigned i = 0; i < test.conns; i++)
			connect_one(info, i);
		run();
		for (unsigned i = 0; i < test.conns; i++)
			close(fd[i]);
	}
	freeaddrinfo(info);
	return 0;
}
