/*
 * server.c -- the demo's server: offers memory, and then only looks on.
 *
 *   server ADDR PORT [PMEM]
 *
 * ADDR is an address of an RDMA device of this machine. PMEM, a device-DAX or another file of at
 * least 2 MiB, is persistent memory to offer instead of ordinary memory. Exit status 0: all went well; 1: not; 2: usage; 3: the port
 * cannot be listened on.
 */
#include "demo.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIDE "server"
#define MEMORY_SIZE ((size_t)2 << 20) /* device-DAX maps in multiples of 2 MiB */

/* What is NULL here was not made: librpma deletes that as gladly as anything else. */
struct server {
	struct rpma_peer *peer;
	char *memory; /* what the client writes to */
	struct rpma_mr_local *memory_mr;
	char message[MESSAGE_SIZE];
	struct rpma_mr_local *message_mr;
	struct rpma_peer_cfg *peer_cfg;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
};

static int open_device(struct server *s, const char *addr)
{
	struct ibv_context *device = NULL;

	TRY(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &device));
	TRY(rpma_peer_new(device, &s->peer));
	step(SIDE, "there is a verbs device, and the library can use it",
			"opened the RDMA device of address %s: %s", addr, ibv_get_device_name(device->device));
	return 0;
}

static int register_memory(struct server *s, const char *pmem)
{
	int usage = RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
			(pmem != NULL ? RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT :
			RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
	int fd = -1;
	void *memory;

	if (pmem != NULL && (fd = open(pmem, O_RDWR)) < 0)
		return fail("open %s: %s", pmem, strerror(errno));
	memory = mmap(NULL, MEMORY_SIZE, PROT_READ | PROT_WRITE,
			pmem != NULL ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
	if (fd >= 0)
		close(fd);
	if (memory == MAP_FAILED)
		return fail("mmap: %s", strerror(errno));
	s->memory = memory;
	memset(s->memory, 0, TEXT_OFFSET + TEXT_MAX);

	TRY(rpma_mr_reg(s->peer, s->memory, MEMORY_SIZE, usage, &s->memory_mr));
	TRY(rpma_mr_reg(s->peer, s->message, sizeof(s->message),
			RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &s->message_mr));
	step(SIDE, "a peer may write to it, read it and flush it, through the device alone", "registered %zu KiB of %s%s",
			MEMORY_SIZE >> 10, pmem != NULL ? "persistent memory, " : "ordinary memory",
			pmem != NULL ? pmem : "");
	return 0;
}

static int make_offer(struct server *s, bool persistent, struct offer *offer)
{
	size_t size = 0;

	memset(offer, 0, sizeof(*offer));
	TRY(rpma_mr_get_descriptor_size(s->memory_mr, &size));
	if (size > sizeof(offer->memory))
		return fail("a memory descriptor of %zu bytes", size);
	offer->memory_size = (uint8_t)size;
	TRY(rpma_mr_get_descriptor(s->memory_mr, offer->memory));

	TRY(rpma_peer_cfg_new(&s->peer_cfg));
	TRY(rpma_peer_cfg_set_direct_write_to_pmem(s->peer_cfg, persistent));
	TRY(rpma_peer_cfg_get_descriptor_size(s->peer_cfg, &size));
	if (size > sizeof(offer->peer_cfg))
		return fail("a peer configuration descriptor of %zu bytes", size);
	offer->peer_cfg_size = (uint8_t)size;
	TRY(rpma_peer_cfg_get_descriptor(s->peer_cfg, offer->peer_cfg));
	return 0;
}

static int accept_client(struct server *s, struct offer *offer)
{
	struct rpma_conn_private_data data = {offer, sizeof(*offer)};
	int fd = -1;

	TRY(rpma_ep_get_fd(s->ep, &fd));
	if (wait_readable(fd, "a client") != 0)
		return -1;
	TRY(rpma_ep_next_conn_req(s->ep, NULL, &s->req));
	/* The receive is there before the client can send. */
	TRY(rpma_conn_req_recv(s->req, s->message_mr, 0, sizeof(s->message), s->message));
	TRY(rpma_conn_req_connect(&s->req, &data, &s->conn));
	if (expect_event(s->conn, RPMA_CONN_ESTABLISHED) != 0)
		return -1;
	step(SIDE, "the client knows where the memory is; the server does nothing now but wait for a message",
			"accepted the client, with a descriptor of the memory (%d bytes)", offer->memory_size);
	return 0;
}

static int answer_message(struct server *s)
{
	const char *text = s->memory + TEXT_OFFSET;
	struct ibv_wc wc;
	uint64_t mark;

	if (expect_completion(s->conn, s->message, "the client's message", &wc) != 0)
		return -1;
	if (wc.byte_len >= sizeof(s->message))
		return fail("a message of %" PRIu32 " bytes", wc.byte_len);
	s->message[wc.byte_len] = '\0';
	step(SIDE, "messages get here", "received \"%s\"", s->message);

	memcpy(&mark, s->memory + MARK_OFFSET, sizeof(mark));
	if (mark == 0 || mark >= TEXT_MAX)
		return fail("the mark in the memory is %" PRIu64, mark);
	step(SIDE, "write and atomic write changed this memory while no code of the server ran",
			"found in its memory the mark %" PRIu64 " and the text \"%.*s\"", mark, (int)mark, text);

	/* The client says whether the answer came: it leaves only then. */
	memcpy(s->message, text, (size_t)mark);
	TRY(rpma_send(s->conn, s->message_mr, 0, (size_t)mark, RPMA_F_COMPLETION_ON_ERROR, NULL));
	return 0;
}

static int wait_for_end(struct server *s)
{
	if (expect_event(s->conn, RPMA_CONN_CLOSED) != 0)
		return -1;
	TRY(rpma_conn_disconnect(s->conn));
	return 0;
}

static int serve(struct server *s, const char *addr, const char *port, const char *pmem)
{
	struct offer offer;

	if (show_library_errors() != 0 || open_device(s, addr) != 0 || register_memory(s, pmem) != 0 ||
			make_offer(s, pmem != NULL, &offer) != 0)
		return 1;
	if (rpma_ep_listen(s->peer, addr, port, &s->ep) != 0)
		return 3;
	step(SIDE, "a client can connect", "listening on %s, port %s", addr, port);
	if (accept_client(s, &offer) != 0 || answer_message(s) != 0 || wait_for_end(s) != 0)
		return 1;
	return 0;
}

static int clean_up(struct server *s)
{
	TRY(rpma_conn_delete(&s->conn));
	TRY(rpma_conn_req_delete(&s->req));
	TRY(rpma_ep_shutdown(&s->ep));
	TRY(rpma_peer_cfg_delete(&s->peer_cfg));
	TRY(rpma_mr_dereg(&s->message_mr));
	TRY(rpma_mr_dereg(&s->memory_mr));
	if (s->memory != NULL && munmap(s->memory, MEMORY_SIZE) != 0)
		return fail("munmap: %s", strerror(errno));
	TRY(rpma_peer_delete(&s->peer));
	return 0;
}

int main(int argc, char *argv[])
{
	struct server server = {0};
	int status;

	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: %s ADDR PORT [PMEM]\n", argv[0]);
		return 2;
	}
	status = serve(&server, argv[1], argv[2], argc == 4 ? argv[3] : NULL);
	if (clean_up(&server) != 0 && status == 0)
		status = 1;
	if (status == 0)
		step(SIDE, "the connection ended as it should, and every release succeeded",
				"saw the client leave and released everything");
	return status;
}
