/*
 * rcq_client.c -- sends messages all at once, and then takes the answers, from a queue of their own.
 *
 *   rcq_client ADDR PORT WORD...
 */
#include "common.h"

#define MESSAGE_SIZE 64
#define DEPTH 4 /* messages under way: as many as the server has room for */

/* The first half is for the words, the second for the answers. */
static char memory[2][DEPTH][MESSAGE_SIZE];

struct client {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn_cfg *cfg;
	struct rpma_conn *conn;
	struct rpma_cq *cq, *rcq;
};

static size_t offset_of(const char *message)
{
	return (size_t)(message - memory[0][0]);
}

/* Sends up to DEPTH words and takes the answers. */
static int exchange(struct client *c, char **words, int n)
{
	struct ibv_wc wc;

	for (int i = 0; i < n; i++) {
		size_t len = strlen(words[i]);

		if (len > MESSAGE_SIZE)
			return fail("a word is longer than %d bytes", MESSAGE_SIZE);
		memcpy(memory[0][i], words[i], len);
		TRY(rpma_recv(c->conn, c->mr, offset_of(memory[1][i]), MESSAGE_SIZE, memory[1][i]));
		TRY(rpma_send(c->conn, c->mr, offset_of(memory[0][i]), len, RPMA_F_COMPLETION_ALWAYS, memory[0][i]));
	}
	/* Each queue has completions of one kind alone, those of sends in the order in which they were posted. */
	for (int i = 0; i < n; i++)
		if (expect_completion(c->conn, c->cq, memory[0][i], &wc) != 0)
			return -1;
	printf("all %d are sent\n", n);
	for (int i = 0; i < n; i++) {
		if (next_completion(c->conn, c->rcq, TIMEOUT_MS, &wc) != 0)
			return fail("an answer is missing");
		printf("received \"%.*s\"\n", (int)wc.byte_len, (char *)(uintptr_t)wc.wr_id);
	}
	return 0;
}

static int run(struct client *c, const char *addr, const char *port, char **words, int n)
{
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(c->peer, memory, sizeof(memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &c->mr));
	TRY(rpma_conn_cfg_new(&c->cfg));
	TRY(rpma_conn_cfg_set_cq_size(c->cfg, DEPTH));
	TRY(rpma_conn_cfg_set_rcq_size(c->cfg, DEPTH));
	if (connect_to(c->peer, addr, port, c->cfg, &c->conn) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &c->cq));
	TRY(rpma_conn_get_rcq(c->conn, &c->rcq));
	for (int done = 0; done < n; done += DEPTH)
		if (exchange(c, words + done, n - done < DEPTH ? n - done : DEPTH) != 0)
			return -1;
	return disconnect(c->conn);
}

int main(int argc, char *argv[])
{
	struct client c = {0};
	int status;

	if (argc < 4)
		return usage(argv[0], "ADDR PORT WORD...");
	status = run(&c, argv[1], argv[2], argv + 3, argc - 3);
	RELEASE(status, rpma_conn_delete(&c.conn));
	RELEASE(status, rpma_conn_cfg_delete(&c.cfg));
	RELEASE(status, rpma_mr_dereg(&c.mr));
	RELEASE(status, rpma_peer_delete(&c.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
