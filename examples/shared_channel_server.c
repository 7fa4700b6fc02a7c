/*
 * shared_channel_server.c -- answers messages; both its CQs announce completions on one descriptor.
 *
 *   shared_channel_server ADDR PORT
 *
 * As in rcq_server receives complete on a queue of their own; but there is one place to wait for
 * everything, and librpma tells which of the two queues has something.
 */
#include "common.h"

#define MESSAGE_SIZE 64
#define DEPTH 4 /* messages that the client may have under way */
/* More, since a slot still has its answer when the client, who got it, may send the next message. */
#define SLOTS (2 * DEPTH)

static struct slot {
	char question[MESSAGE_SIZE];
	char answer[MESSAGE_SIZE];
} slots[SLOTS];

struct server {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn_cfg *cfg;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static size_t offset_of(const char *memory)
{
	return (size_t)(memory - (const char *)slots);
}

static int handle(struct server *s, bool is_rcq, const struct ibv_wc *wc)
{
	struct slot *slot = (struct slot *)(uintptr_t)wc->wr_id;

	if (wc->status == IBV_WC_WR_FLUSH_ERR)
		return 0; /* the connection has ended; the client may have got such an answer all the same */
	if (wc->status != IBV_WC_SUCCESS)
		return fail("an operation failed: %s", ibv_wc_status_str(wc->status));
	if (is_rcq) {
		for (uint32_t i = 0; i < wc->byte_len; i++)
			slot->answer[i] = slot->question[wc->byte_len - 1 - i];
		printf("received \"%.*s\"\n", (int)wc->byte_len, slot->question);
		TRY(rpma_send(s->conn, s->mr, offset_of(slot->answer), wc->byte_len, RPMA_F_COMPLETION_ALWAYS, slot));
	} else {
		/* The answer has gone out: the slot can take another message. */
		TRY(rpma_recv(s->conn, s->mr, offset_of(slot->question), MESSAGE_SIZE, slot));
	}
	return 0;
}

static int handle_completions(struct server *s)
{
	struct rpma_cq *cq = NULL;
	bool is_rcq = false;
	struct ibv_wc wc;
	int ret;

	TRY(rpma_conn_wait(s->conn, RPMA_W_WAIT_FOR_COMPLETION, &cq, &is_rcq));
	/* All there are: what is left would not be announced again. */
	while ((ret = rpma_cq_get_wc(cq, 1, &wc, NULL)) == 0)
		if (handle(s, is_rcq, &wc) != 0)
			return -1;
	return ret == RPMA_E_NO_COMPLETION ? 0 : fail("rpma_cq_get_wc: %s", rpma_err_2str(ret));
}

static int answer_all(struct server *s)
{
	struct pollfd fds[2] = {{.events = POLLIN}, {.events = POLLIN}};

	TRY(rpma_conn_get_compl_fd(s->conn, &fds[0].fd));
	TRY(rpma_conn_get_event_fd(s->conn, &fds[1].fd));
	/* What has completed comes first: messages of a client that has left already count. */
	do {
		if (wait_readable(fds, 2, FOR_EVER, "a message") != 0)
			return -1;
		if (fds[0].revents != 0 && handle_completions(s) != 0)
			return -1;
	} while (fds[0].revents != 0 || fds[1].revents == 0);
	if (wait_closed(s->conn) != 0)
		return -1;
	printf("the client has left\n");
	return 0;
}

static int serve(struct server *s, const char *addr, const char *port)
{
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(s->peer, slots, sizeof(slots), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &s->mr));
	TRY(rpma_conn_cfg_new(&s->cfg));
	TRY(rpma_conn_cfg_set_cq_size(s->cfg, SLOTS));
	TRY(rpma_conn_cfg_set_rcq_size(s->cfg, SLOTS));
	TRY(rpma_conn_cfg_set_compl_channel(s->cfg, true));
	if (listen_at(s->peer, addr, port, &s->ep) != 0 || next_request(s->ep, s->cfg, &s->req) != 0)
		return -1;
	for (int i = 0; i < SLOTS; i++)
		TRY(rpma_conn_req_recv(s->req, s->mr, offset_of(slots[i].question), MESSAGE_SIZE, &slots[i]));
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
