/*
 * connection_server.c -- listens, rejects a client that does not know the word, accepts one that
 * does, and sees it leave.
 *
 *   connection_server ADDR PORT
 */
#include "common.h"

static const char word[] = "mellon";

struct server {
	struct rpma_peer *peer;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

/* Whether the client said the word. What it said may be anything, and filled up with zeros. */
static int knows_the_word(struct rpma_conn_req *req, bool *knows)
{
	struct rpma_conn_private_data data = {NULL, 0};
	const char *said;

	TRY(rpma_conn_req_get_private_data(req, &data));
	said = data.ptr != NULL ? data.ptr : "";
	printf("a client says \"%.*s\"\n", data.len, said);
	*knows = data.len >= sizeof(word) && memcmp(said, word, sizeof(word)) == 0;
	return 0;
}

static int serve(struct server *s, const char *addr, const char *port)
{
	char welcome[] = "come in";
	bool knows = false;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0 ||
			listen_at(s->peer, addr, port, &s->ep) != 0)
		return -1;
	for (;;) {
		if (next_request(s->ep, NULL, &s->req) != 0 || knows_the_word(s->req, &knows) != 0)
			return -1;
		if (knows)
			break;
		TRY(rpma_conn_req_delete(&s->req)); /* that rejects it */
		printf("rejected it\n");
	}
	if (accept_request(&s->req, welcome, sizeof(welcome), &s->conn) != 0)
		return -1;
	printf("accepted it\n");
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
	RELEASE(status, rpma_peer_delete(&s.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
