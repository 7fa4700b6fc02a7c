/*
 * connection_client.c -- asks for a connection, and says WORD to be let in.
 *
 *   connection_client ADDR PORT WORD
 *
 * Exit status 0: was accepted, and left again; 1: was rejected, or something failed.
 */
#include "common.h"

struct client {
	struct rpma_peer *peer;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static int run(struct client *c, const char *addr, const char *port, char *word)
{
	struct rpma_conn_private_data data = {word, 0};
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;

	/* The other side's device fits no more than 56 bytes in. */
	if (strlen(word) >= 56)
		return fail("the word is too long");
	data.len = (uint8_t)(strlen(word) + 1);
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &c->peer) != 0)
		return -1;
	TRY(rpma_conn_req_new(c->peer, addr, port, NULL, &c->req));
	TRY(rpma_conn_req_connect(&c->req, &data, &c->conn));

	/* That only asked. The answer is an event. */
	if (next_event(c->conn, TIMEOUT_MS, &event) != 0)
		return -1;
	if (event != RPMA_CONN_ESTABLISHED)
		return fail("%s", rpma_utils_conn_event_2str(event));
	TRY(rpma_conn_get_private_data(c->conn, &data));
	printf("connected; the server says \"%.*s\"\n", data.len, data.ptr != NULL ? (char *)data.ptr : "");

	if (disconnect(c->conn) != 0)
		return -1;
	printf("disconnected\n");
	return 0;
}

int main(int argc, char *argv[])
{
	struct client c = {0};
	int status;

	if (argc != 4)
		return usage(argv[0], "ADDR PORT WORD");
	status = run(&c, argv[1], argv[2], argv[3]);
	RELEASE(status, rpma_conn_delete(&c.conn));
	RELEASE(status, rpma_conn_req_delete(&c.req));
	RELEASE(status, rpma_peer_delete(&c.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
