/*
 * read_server.c -- offers memory to be read, and does nothing while it is.
 *
 *   read_server ADDR PORT
 */
#include "common.h"

static char memory[64] = "read out of the server's memory";

struct server {
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static int serve(struct server *s, const char *addr, const char *port)
{
	struct offer offer;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0)
		return -1;
	/* READ_SRC alone: whoever connects can read this memory, and cannot write it. */
	TRY(rpma_mr_reg(s->peer, memory, sizeof(memory), RPMA_MR_USAGE_READ_SRC, &s->mr));
	if (make_offer(s->mr, false, &offer) != 0 || listen_at(s->peer, addr, port, &s->ep) != 0 ||
			next_request(s->ep, NULL, &s->req) != 0 ||
			accept_request(&s->req, &offer, sizeof(offer), &s->conn) != 0)
		return -1;
	printf("a client is here\n");
	/* The reads are not seen here: the device carries them out. */
	if (wait_closed(s->conn) != 0)
		return -1;
	printf("it has left\n");
	return 0;
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
