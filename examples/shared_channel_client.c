/*
 * shared_channel_client.c -- sends messages all at once, and takes what completes as it comes.
 *
 *   shared_channel_client ADDR PORT WORD...
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
	int sent, answered;
};

static size_t offset_of(const char *message)
{
	return (size_t)(message - memory[0][0]);
}

static int take_completions(struct client *c)
{
	struct rpma_cq *cq = NULL;
	bool is_rcq = false;
	struct ibv_wc wc;
	int ret;

	TRY(rpma_conn_wait(c->conn, RPMA_W_WAIT_FOR_COMPLETION, &cq, &is_rcq));
	/* All there are: what is left would not be announced again. */
	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == 0) {
		if (wc.status != IBV_WC_SUCCESS)
			return fail("an operation failed: %s", ibv_wc_status_str(wc.status));
		if (is_rcq) {
			c->answered++;
			printf("received \"%.*s\"\n", (int)wc.byte_len, (char *)(uintptr_t)wc.wr_id);
		} else {
			c->sent++;
		}
	}
	return ret == RPMA_E_NO_COMPLETION ? 0 : fail("rpma_cq_get_wc: %s", rpma_err_2str(ret));
}

/* Sends up to DEPTH words and takes the answers. */
static int exchange(struct client *c, char **words, int n)
{
	struct pollfd fds[2] = {{.events = POLLIN}, {.events = POLLIN}};

	TRY(rpma_conn_get_compl_fd(c->conn, &fds[0].fd));
	TRY(rpma_conn_get_event_fd(c->conn, &fds[1].fd));
	for (int i = 0; i < n; i++) {
		size_t len = strlen(words[i]);

		if (len > MESSAGE_SIZE)
			return fail("a word is longer than %d bytes", MESSAGE_SIZE);
		memcpy(memory[0][i], words[i], len);
		TRY(rpma_recv(c->conn, c->mr, offset_of(memory[1][i]), MESSAGE_SIZE, memory[1][i]));
		TRY(rpma_send(c->conn, c->mr, offset_of(memory[0][i]), len, RPMA_F_COMPLETION_ALWAYS, memory[0][i]));
	}
	for (c->sent = c->answered = 0; c->sent < n || c->answered < n;) {
		if (wait_readable(fds, 2, TIMEOUT_MS, "an answer") != 0)
			return -1;
		if (fds[0].revents == 0)
			return fail("the server has left");
		if (take_completions(c) != 0)
			return -1;
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
	TRY(rpma_conn_cfg_set_compl_channel(c->cfg, true));
	if (connect_to(c->peer, addr, port, c->cfg, &c->conn) != 0)
		return -1;
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
