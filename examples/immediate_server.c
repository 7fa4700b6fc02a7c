/*
 * immediate_server.c -- is told by a number that its memory has been written, and answers with a
 * number alone.
 *
 *   immediate_server ADDR PORT
 */
#include "common.h"
#include <arpa/inet.h>

static char memory[64];

struct server {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static int answer(struct server *s)
{
	struct rpma_cq *cq = NULL;
	uint32_t length, sum = 0;
	struct ibv_wc wc;

	TRY(rpma_conn_get_cq(s->conn, &cq));
	if (expect_completion(s->conn, cq, memory, &wc) != 0)
		return -1;
	/* A message would complete the same receive. */
	if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM)
		return fail("the client sent a message");
	/* It comes in network byte order, and is what the client likes. */
	length = ntohl(wc.imm_data);
	if (length > sizeof(memory))
		return fail("the client claims to have written %" PRIu32 " bytes", length);
	for (uint32_t i = 0; i < length; i++)
		sum += (unsigned char)memory[i];
	printf("the client wrote %" PRIu32 " bytes: \"%.*s\"\n", length, (int)length, memory);

	TRY(rpma_send_with_imm(s->conn, NULL, 0, 0, RPMA_F_COMPLETION_ALWAYS, sum, &sum));
	if (expect_completion(s->conn, cq, &sum, &wc) != 0)
		return -1;
	printf("answered %" PRIu32 "\n", sum);
	return wait_closed(s->conn);
}

static int serve(struct server *s, const char *addr, const char *port)
{
	struct offer offer;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(s->peer, memory, sizeof(memory), RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_RECV, &s->mr));
	if (make_offer(s->mr, false, &offer) != 0 || listen_at(s->peer, addr, port, &s->ep) != 0 ||
			next_request(s->ep, NULL, &s->req) != 0)
		return -1;
	/* A write with a number takes a receive, though not its buffer. */
	TRY(rpma_conn_req_recv(s->req, s->mr, 0, sizeof(memory), memory));
	if (accept_request(&s->req, &offer, sizeof(offer), &s->conn) != 0)
		return -1;
	return answer(s);
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
