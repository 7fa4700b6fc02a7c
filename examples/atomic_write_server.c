/*
 * atomic_write_server.c -- shows lines as they appear in its memory, each of them whole.
 *
 *   atomic_write_server ADDR PORT
 *
 * Nobody tells it that there is a new line. It looks at the count, which the client changes by atomic
 * write: it sees the number from before or the one from after, and never a mixture of both.
 */
#include "common.h"
#include "atomic_write.h"
#include <stdatomic.h>

#define LOOK_AGAIN_MS 1

static struct board board;

struct server {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	uint64_t shown;
};

static int show_new_lines(struct server *s)
{
	/* A plain look might be moved or left out by the compiler; acquire: the lines are looked at after it. */
	uint64_t count = atomic_load_explicit((_Atomic uint64_t *)&board.count, memory_order_acquire);

	/* The client can write what it likes. */
	if (count > LINES || count < s->shown)
		return fail("the count is %" PRIu64, count);
	for (; s->shown < count; s->shown++)
		printf("%" PRIu64 ": %.*s\n", s->shown + 1, LINE_SIZE, board.lines[s->shown]);
	return 0;
}

static int watch(struct server *s)
{
	struct pollfd fd = {.events = POLLIN};
	int ready;

	TRY(rpma_conn_get_event_fd(s->conn, &fd.fd));
	do {
		if (show_new_lines(s) != 0)
			return -1;
		ready = poll(&fd, 1, LOOK_AGAIN_MS);
		if (ready < 0 && errno != EINTR)
			return fail("poll: %s", strerror(errno));
	} while (ready <= 0);
	/* The client has left, or is lost. What came between the last look and that: */
	if (wait_closed(s->conn) != 0)
		return -1;
	return show_new_lines(s);
}

static int serve(struct server *s, const char *addr, const char *port)
{
	struct offer offer;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(s->peer, &board, sizeof(board), RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
			RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &s->mr));
	if (make_offer(s->mr, false, &offer) != 0 || listen_at(s->peer, addr, port, &s->ep) != 0 ||
			next_request(s->ep, NULL, &s->req) != 0 ||
			accept_request(&s->req, &offer, sizeof(offer), &s->conn) != 0)
		return -1;
	return watch(s);
}

int main(int argc, char *argv[])
{
	struct server s = {0};
	int status;

	if (argc != 3)
		return usage(argv[0], "ADDR PORT");
	status = serve(&s, argv[1], argv[2]);
	RELEASE(status, rpma_conn_delete(&s.conn));
	RELEASE(status, rpma_conn_req_delete(&s.req));
	RELEASE(status, rpma_ep_shutdown(&s.ep));
	RELEASE(status, rpma_mr_dereg(&s.mr));
	RELEASE(status, rpma_peer_delete(&s.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
