/*
 * messages_server.c -- answers every message until the client leaves.
 *
 *   messages_server ADDR PORT
 */
#include "common.h"

#define MESSAGE_SIZE 64

static struct messages {
	char ping[MESSAGE_SIZE];
	char pong[MESSAGE_SIZE];
} memory;

struct server {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static int answer_all(struct server *s)
{
	struct rpma_cq *cq = NULL;
	struct ibv_wc wc;
	int ret, len;

	TRY(rpma_conn_get_cq(s->conn, &cq));
	while ((ret = next_completion(s->conn, cq, FOR_EVER, &wc)) == 0) {
		/*
		 * Sends have to complete too, or they would fill the send queue: a place in it is free only
		 * when a completion of that send, or of one after it, has been taken.
		 */
		if (wc.opcode == IBV_WC_SEND)
			continue;
		printf("received \"%.*s\"\n", (int)wc.byte_len, memory.ping);
		len = snprintf(memory.pong, sizeof(memory.pong), "pong of %.*s", (int)wc.byte_len, memory.ping);
		if (len >= MESSAGE_SIZE)
			return fail("the answer does not fit");
		/* First make room for the next message, then let the client go on. */
		TRY(rpma_recv(s->conn, s->mr, offsetof(struct messages, ping), MESSAGE_SIZE, memory.ping));
		TRY(rpma_send(s->conn, s->mr, offsetof(struct messages, pong), (size_t)len,
				RPMA_F_COMPLETION_ALWAYS, memory.pong));
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
	TRY(rpma_mr_reg(s->peer, &memory, sizeof(memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &s->mr));
	if (listen_at(s->peer, addr, port, &s->ep) != 0 || next_request(s->ep, NULL, &s->req) != 0)
		return -1;
	/* There has to be room for a message before it comes: the first one's is made before the client may send. */
	TRY(rpma_conn_req_recv(s->req, s->mr, offsetof(struct messages, ping), MESSAGE_SIZE, memory.ping));
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
	RELEASE(status, rpma_mr_dereg(&s.mr));
	RELEASE(status, rpma_peer_delete(&s.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
