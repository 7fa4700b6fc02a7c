/*
 * atomic_write_client.c -- writes lines to the server's memory, and publishes each by atomic write.
 *
 *   atomic_write_client ADDR PORT
 */
#include "common.h"
#include "atomic_write.h"

static char line[LINE_SIZE];

struct client {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	struct rpma_mr_remote *remote; /* the server's board */
};

static int publish(struct client *c, uint64_t number)
{
	size_t place = offsetof(struct board, lines) + (number - 1) * LINE_SIZE;
	char count[sizeof(number)];
	struct ibv_wc wc;

	memcpy(count, &number, sizeof(number));
	/*
	 * Two writes may become visible in any order. The flush is what the new count comes after: who
	 * sees the count sees the line. It goes out at once; the other side's device keeps the order.
	 */
	TRY(rpma_write(c->conn, c->remote, place, c->mr, 0, LINE_SIZE, RPMA_F_COMPLETION_ON_ERROR, NULL));
	TRY(rpma_flush(c->conn, c->remote, place, LINE_SIZE, RPMA_FLUSH_TYPE_VISIBILITY,
			RPMA_F_COMPLETION_ON_ERROR, NULL));
	TRY(rpma_atomic_write(c->conn, c->remote, offsetof(struct board, count), count,
			RPMA_F_COMPLETION_ALWAYS, line));
	/* All three are complete then, and `line` may be used again. */
	return expect_completion(c->conn, c->cq, line, &wc);
}

static int run(struct client *c, const char *addr, const char *port)
{
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(c->peer, line, sizeof(line), RPMA_MR_USAGE_WRITE_SRC, &c->mr));
	if (connect_to(c->peer, addr, port, NULL, &c->conn) != 0 ||
			take_offer(c->conn, sizeof(struct board), &c->remote) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &c->cq));

	for (uint64_t number = 1; number <= LINES; number++) {
		snprintf(line, sizeof(line), "line %" PRIu64 " of %d", number, LINES);
		if (publish(c, number) != 0)
			return -1;
	}
	printf("published %d lines\n", LINES);
	return disconnect(c->conn);
}

int main(int argc, char *argv[])
{
	struct client c = {0};
	int status;

	if (argc != 3)
		return usage(argv[0], "ADDR PORT");
	status = run(&c, argv[1], argv[2]);
	RELEASE(status, rpma_mr_remote_delete(&c.remote));
	RELEASE(status, rpma_conn_delete(&c.conn));
	RELEASE(status, rpma_mr_dereg(&c.mr));
	RELEASE(status, rpma_peer_delete(&c.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
