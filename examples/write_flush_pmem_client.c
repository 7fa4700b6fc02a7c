/*
 * write_flush_pmem_client.c -- writes TEXT to the server's persistent memory, and makes sure that it
 * persists.
 *
 *   write_flush_pmem_client ADDR PORT TEXT
 */
#include "common.h"

static char memory[64];

struct client {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn *conn;
	struct rpma_mr_remote *remote; /* the server's memory */
};

static int run(struct client *c, const char *addr, const char *port, const char *text)
{
	struct rpma_cq *cq = NULL;
	struct ibv_wc wc;

	if (strlen(text) >= sizeof(memory))
		return fail("the text is longer than %zu bytes", sizeof(memory) - 1);
	strcpy(memory, text);
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(c->peer, memory, sizeof(memory), RPMA_MR_USAGE_WRITE_SRC, &c->mr));
	if (connect_to(c->peer, addr, port, NULL, &c->conn) != 0 ||
			take_offer(c->conn, sizeof(memory), &c->remote) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &cq));

	/*
	 * That a write is complete says that its bytes have arrived, not that they would survive a loss
	 * of power. The flush says so; and as it follows the write, its completion will do for both.
	 */
	TRY(rpma_write(c->conn, c->remote, 0, c->mr, 0, sizeof(memory), RPMA_F_COMPLETION_ON_ERROR, NULL));
	TRY(rpma_flush(c->conn, c->remote, 0, sizeof(memory), RPMA_FLUSH_TYPE_PERSISTENT,
			RPMA_F_COMPLETION_ALWAYS, memory));
	if (expect_completion(c->conn, cq, memory, &wc) != 0)
		return -1;
	printf("written, and persistent\n");
	return disconnect(c->conn);
}

int main(int argc, char *argv[])
{
	struct client c = {0};
	int status;

	if (argc != 4)
		return usage(argv[0], "ADDR PORT TEXT");
	status = run(&c, argv[1], argv[2], argv[3]);
	RELEASE(status, rpma_mr_remote_delete(&c.remote));
	RELEASE(status, rpma_conn_delete(&c.conn));
	RELEASE(status, rpma_mr_dereg(&c.mr));
	RELEASE(status, rpma_peer_delete(&c.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
