/*
 * write_flush_pmem_server.c -- offers persistent memory to be written, and shows what is in it.
 *
 *   write_flush_pmem_server ADDR PORT PMEM
 *
 * PMEM is a device-DAX (/dev/dax0.0), a file on a DAX file system or, over softverbs, any file.
 */
#include "common.h"

#define SIZE ((size_t)2 << 20)

struct server {
	void *memory;
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static int serve(struct server *s, const char *addr, const char *port, const char *pmem)
{
	struct offer offer;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0 || map_pmem(pmem, SIZE, &s->memory) != 0)
		return -1;
	printf("from before: \"%.60s\"\n", (char *)s->memory);
	/* READ_SRC, since a client whose device has no flush reads in its place. */
	TRY(rpma_mr_reg(s->peer, s->memory, SIZE, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
			RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &s->mr));
	/*
	 * `true` promises the client that what a device has flushed here persists without help of this
	 * machine's processor. Without native flush that is so only where the platform writes what comes
	 * from a device past the processor's caches (DDIO switched off), or saves the caches too (eADR).
	 */
	if (make_offer(s->mr, true, &offer) != 0 || listen_at(s->peer, addr, port, &s->ep) != 0 ||
			next_request(s->ep, NULL, &s->req) != 0 ||
			accept_request(&s->req, &offer, sizeof(offer), &s->conn) != 0 || wait_closed(s->conn) != 0)
		return -1;
	printf("now: \"%.60s\"\n", (char *)s->memory);
	return 0;
}

int main(int argc, char *argv[])
{
	struct server s = {0};
	int status;

	if (argc != 4)
		return usage(argv[0], "ADDR PORT PMEM");
	status = serve(&s, argv[1], argv[2], argv[3]);
	RELEASE(status, rpma_conn_delete(&s.conn));
	RELEASE(status, rpma_conn_req_delete(&s.req));
	RELEASE(status, rpma_ep_shutdown(&s.ep));
	RELEASE(status, rpma_mr_dereg(&s.mr));
	if (s.memory != NULL && munmap(s.memory, SIZE) != 0)
		status = fail("munmap: %s", strerror(errno));
	RELEASE(status, rpma_peer_delete(&s.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
