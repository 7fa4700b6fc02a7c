/*
 * rcq_server.c -- answers messages; receives complete on a queue of their own.
 *
 *   rcq_server ADDR PORT
 *
 * It waits for messages on the receive CQ, where nothing else comes. What becomes of its answers it
 * asks the other CQ, once it needs to know.
 */
#include "common.h"

#define MESSAGE_SIZE 64
#define DEPTH 4 /* messages under way */

/* The first half is for messages that come, the second for answers. */
static char memory[2][DEPTH][MESSAGE_SIZE];

struct server {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn_cfg *cfg;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static size_t offset_of(const char *message)
{
	return (size_t)(message - memory[0][0]);
}

static int answer_all(struct server *s)
{
	struct rpma_cq *cq = NULL, *rcq = NULL;
	struct ibv_wc wc;
	int ret;

	TRY(rpma_conn_get_cq(s->conn, &cq));
	TRY(rpma_conn_get_rcq(s->conn, &rcq));
	for (unsigned count = 0; (ret = next_completion(s->conn, rcq, FOR_EVER, &wc)) == 0; count++) {
		char *question = (char *)(uintptr_t)wc.wr_id, *answer = memory[1][count % DEPTH];

		/* An answer's memory is used again only when the answer that was in it has gone out. */
		if (count >= DEPTH) {
			struct ibv_wc sent;

			if (expect_completion(s->conn, cq, answer, &sent) != 0)
				return -1;
		}
		for (uint32_t i = 0; i < wc.byte_len; i++)
			answer[i] = question[wc.byte_len - 1 - i];
		printf("received \"%.*s\"\n", (int)wc.byte_len, question);
		TRY(rpma_recv(s->conn, s->mr, offset_of(question), MESSAGE_SIZE, question));
		TRY(rpma_send(s->conn, s->mr, offset_of(answer), wc.byte_len, RPMA_F_COMPLETION_ALWAYS, answer));
	}
	if (ret != CLOSED)
		return -1;
	printf("the client has left\n");
	TRY(rpma_conn_disconnect(s->conn));
	return 0;
}

static int serve(struct server *s, const char *addr, const char *port)
{
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(s->peer, memory, sizeof(memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &s->mr));
	/* With a size above 0 there is a receive CQ. Both queues have room for all that can be under way. */
	TRY(rpma_conn_cfg_new(&s->cfg));
	TRY(rpma_conn_cfg_set_cq_size(s->cfg, DEPTH));
	TRY(rpma_conn_cfg_set_rcq_size(s->cfg, DEPTH));
	if (listen_at(s->peer, addr, port, &s->ep) != 0 || next_request(s->ep, s->cfg, &s->req) != 0)
		return -1;
	for (int i = 0; i < DEPTH; i++)
		TRY(rpma_conn_req_recv(s->req, s->mr, offset_of(memory[0][i]), MESSAGE_SIZE, memory[0][i]));
	if (accept_request(&s->req, NULL, 0, &s->conn) != 0)
		return -1;
	return answer_all(s);
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
	RELEASE(status, rpma_conn_cfg_delete(&s.cfg));
	RELEASE(status, rpma_mr_dereg(&s.mr));
	RELEASE(status, rpma_peer_delete(&s.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
