/*
 * read_client.c -- reads the server's memory.
 *
 *   read_client ADDR PORT
 */
#include "common.h"

static char memory[64];

struct client {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn *conn;
	struct rpma_mr_remote *remote; /* the server's memory */
};

static int run(struct client *c, const char *addr, const char *port)
{
	struct rpma_cq *cq = NULL;
	struct ibv_wc wc;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(c->peer, memory, sizeof(memory), RPMA_MR_USAGE_READ_DST, &c->mr));
	if (connect_to(c->peer, addr, port, NULL, &c->conn) != 0 ||
			take_offer(c->conn, sizeof(memory), &c->remote) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &cq));

	/* The bytes are here once the read is complete, and not before. */
	TRY(rpma_read(c->conn, c->mr, 0, c->remote, 0, sizeof(memory), RPMA_F_COMPLETION_ALWAYS, memory));
	if (expect_completion(c->conn, cq, memory, &wc) != 0)
		return -1;
	printf("%.*s\n", (int)sizeof(memory), memory);
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
