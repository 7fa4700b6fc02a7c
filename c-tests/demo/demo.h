/*
 * demo.h -- what the demo's server and client share: what they agreed on, and how they wait.
 *
 * Nothing waits for ever: librpma gives a file descriptor for everything there is to wait for, and
 * poll() takes a timeout.
 */
#ifndef DEMO_H
#define DEMO_H

#define _DEFAULT_SOURCE /* for MAP_ANONYMOUS */

#include <errno.h>
#include <inttypes.h>
#include <librpma.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 60000

/* The server's memory: 8 bytes that say how long the text is, and the text. */
#define MARK_OFFSET 0
#define TEXT_OFFSET 64
#define TEXT_MAX 256
#define MESSAGE_SIZE 256

/*
 * What the server tells the client when it accepts the connection: how to reach its memory, and
 * whether what is written there through the device can be made persistent.
 */
struct offer {
	uint8_t memory_size;
	uint8_t memory[32];
	uint8_t peer_cfg_size;
	uint8_t peer_cfg[8];
};

/* One step of the demo and what its success shows; one write, as two processes print. */
__attribute__((format(printf, 3, 4)))
static inline void step(const char *side, const char *shows, const char *format, ...)
{
	char what[512];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	printf("%s: %s\n          => %s\n", side, what, shows);
	fflush(stdout);
}

__attribute__((format(printf, 1, 2)))
static inline int fail(const char *format, ...)
{
	va_list args;

	fputs("FAILED: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return -1;
}

/* Makes a call of the library; where it fails, says so and leaves the calling function with -1. */
#define TRY(call) \
	do { \
		int ret_ = (call); \
		if (ret_ != 0) \
			return fail("%s: %s", #call, rpma_err_2str(ret_)); \
	} while (0)

/* Messages below this level go to syslog alone; the demo wants to see what went wrong. */
static inline int show_library_errors(void)
{
	TRY(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_WARNING));
	return 0;
}

static inline int wait_readable(int fd, const char *what)
{
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};
	int n;

	do
		n = poll(&pollfd, 1, TIMEOUT_MS);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return fail("poll: %s", strerror(errno));
	if (n == 0)
		return fail("%s: nothing within %d ms", what, TIMEOUT_MS);
	return 0;
}

static inline int expect_event(struct rpma_conn *conn, enum rpma_conn_event expected)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
	int fd = -1;

	TRY(rpma_conn_get_event_fd(conn, &fd));
	if (wait_readable(fd, rpma_utils_conn_event_2str(expected)) != 0)
		return -1;
	TRY(rpma_conn_next_event(conn, &event));
	if (event != expected)
		return fail("%s, where this was expected: %s", rpma_utils_conn_event_2str(event),
				rpma_utils_conn_event_2str(expected));
	return 0;
}

/* Waits for the next completion, which has to be a success and the one of `context`. */
static inline int expect_completion(struct rpma_conn *conn, const void *context, const char *what,
		struct ibv_wc *wc)
{
	struct rpma_cq *cq = NULL;
	int fd = -1, ret;

	TRY(rpma_conn_get_cq(conn, &cq));
	TRY(rpma_cq_get_fd(cq, &fd));
	while ((ret = rpma_cq_get_wc(cq, 1, wc, NULL)) == RPMA_E_NO_COMPLETION) {
		if (wait_readable(fd, what) != 0)
			return -1;
		/* Takes the notice and arms the next. It can be about a completion already seen. */
		ret = rpma_cq_wait(cq);
		if (ret != 0 && ret != RPMA_E_NO_COMPLETION)
			return fail("rpma_cq_wait: %s", rpma_err_2str(ret));
	}
	if (ret != 0)
		return fail("rpma_cq_get_wc: %s", rpma_err_2str(ret));
	if (wc->status != IBV_WC_SUCCESS)
		return fail("%s: %s", what, ibv_wc_status_str(wc->status));
	if (wc->wr_id != (uintptr_t)context)
		return fail("%s: the completion of another operation came", what);
	return 0;
}

#endif
