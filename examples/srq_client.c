/*
 * srq_client.c -- one of several clients of srq_server: sends words, and gets each back.
 *
 *   srq_client ADDR PORT WORD...
 *
 * That the server receives from a queue that others use too cannot be told from here.
 */
#include "common.h"

#define MESSAGE_SIZE 64

static struct messages {
	char word[MESSAGE_SIZE];
	char answer[MESSAGE_SIZE];
} memory;

struct client {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn *conn;
};

static int exchange(struct client *c, struct rpma_cq *cq, const char *word)
{
	size_t len = strlen(word), got = 0;
	struct ibv_wc wc;

	if (len > MESSAGE_SIZE)
		return fail("a word is longer than %d bytes", MESSAGE_SIZE);
	memcpy(memory.word, word, len);
	TRY(rpma_recv(c->conn, c->mr, offsetof(struct messages, answer), MESSAGE_SIZE, memory.answer));
	TRY(rpma_send(c->conn, c->mr, offsetof(struct messages, word), len, RPMA_F_COMPLETION_ALWAYS, memory.word));
	/* Of the send and of the answer, in either order. */
	for (int i = 0; i < 2; i++) {
		if (next_completion(c->conn, cq, TIMEOUT_MS, &wc) != 0)
			return fail("no answer to \"%s\"", word);
		if (wc.opcode == IBV_WC_RECV)
			got = wc.byte_len;
	}
	if (got != len || memcmp(memory.answer, word, len) != 0)
		return fail("the answer to \"%s\" is \"%.*s\"", word, (int)got, memory.answer);
	printf("got \"%s\" back\n", word);
	return 0;
}

static int run(struct client *c, const char *addr, const char *port, char **words, int n)
{
	struct rpma_cq *cq = NULL;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(c->peer, &memory, sizeof(memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &c->mr));
	if (connect_to(c->peer, addr, port, NULL, &c->conn) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &cq));
	for (int i = 0; i < n; i++)
		if (exchange(c, cq, words[i]) != 0)
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
	RELEASE(status, rpma_mr_dereg(&c.mr));
	RELEASE(status, rpma_peer_delete(&c.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
