/*
 * messages_client.c -- plays ping-pong with the server.
 *
 *   messages_client ADDR PORT [ROUNDS]
 */
#include "common.h"

#define MESSAGE_SIZE 64

static struct messages {
	char ping[MESSAGE_SIZE];
	char pong[MESSAGE_SIZE];
} memory;

struct client {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn *conn;
	struct rpma_cq *cq;
};

static int play(struct client *c, int round)
{
	int len = snprintf(memory.ping, sizeof(memory.ping), "ping %d", round);
	struct ibv_wc wc;

	/* Room for the answer is there before the server can answer. */
	TRY(rpma_recv(c->conn, c->mr, offsetof(struct messages, pong), MESSAGE_SIZE, memory.pong));
	TRY(rpma_send(c->conn, c->mr, offsetof(struct messages, ping), (size_t)len,
			RPMA_F_COMPLETION_ALWAYS, memory.ping));
	/* Two completions, in either order: of the send, after which `ping` may be used again, and of the answer. */
	for (int i = 0; i < 2; i++) {
		if (next_completion(c->conn, c->cq, TIMEOUT_MS, &wc) != 0)
			return fail("no answer to ping %d", round);
		if (wc.opcode == IBV_WC_RECV)
			printf("received \"%.*s\"\n", (int)wc.byte_len, memory.pong);
	}
	return 0;
}

static int run(struct client *c, const char *addr, const char *port, int rounds)
{
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(c->peer, &memory, sizeof(memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &c->mr));
	if (connect_to(c->peer, addr, port, NULL, &c->conn) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &c->cq));
	for (int round = 1; round <= rounds; round++)
		if (play(c, round) != 0)
			return -1;
	return disconnect(c->conn);
}

int main(int argc, char *argv[])
{
	struct client c = {0};
	int status;

	if (argc != 3 && argc != 4)
		return usage(argv[0], "ADDR PORT [ROUNDS]");
	status = run(&c, argv[1], argv[2], argc == 4 ? atoi(argv[3]) : 3);
	RELEASE(status, rpma_conn_delete(&c.conn));
	RELEASE(status, rpma_mr_dereg(&c.mr));
	RELEASE(status, rpma_peer_delete(&c.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
