/*
 * immediate_client.c -- writes to the server's memory and tells it so, in one operation.
 *
 *   immediate_client ADDR PORT TEXT
 */
#include "common.h"
#include <arpa/inet.h>

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
	size_t len = strlen(text);
	struct ibv_wc wc;

	if (len > sizeof(memory))
		return fail("the text is longer than %zu bytes", sizeof(memory));
	memcpy(memory, text, len);
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(c->peer, memory, sizeof(memory), RPMA_MR_USAGE_WRITE_SRC, &c->mr));
	if (connect_to(c->peer, addr, port, NULL, &c->conn) != 0 ||
			take_offer(c->conn, sizeof(memory), &c->remote) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &cq));

	/* The answer has no bytes, so its receive needs no buffer. */
	TRY(rpma_recv(c->conn, NULL, 0, 0, c));
	/* The number is there only when the bytes are: no flush is needed for the server to see them. */
	TRY(rpma_write_with_imm(c->conn, c->remote, 0, c->mr, 0, len, RPMA_F_COMPLETION_ON_ERROR,
			(uint32_t)len, NULL));
	if (expect_completion(c->conn, cq, c, &wc) != 0)
		return -1;
	/* Whether a number came at all is said by a flag. */
	if ((wc.wc_flags & IBV_WC_WITH_IMM) == 0)
		return fail("the answer is without a number");
	printf("the server answers %" PRIu32 "\n", ntohl(wc.imm_data));
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
