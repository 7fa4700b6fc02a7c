/*
 * client.c -- the demo's client: writes to the server's memory and makes sure of it.
 *
 *   client ADDR PORT
 *
 * ADDR and PORT are where the server listens. Exit status 0: all went well; 1: not; 2: usage.
 */
#include "demo.h"

#define SIDE "client"

static const char text[] = "Written by the client, straight into the server's memory.";
#define TEXT_LENGTH (sizeof(text) - 1)

/* The client's registered memory. */
struct memory {
	char text[TEXT_MAX];
	char read_back[TEXT_MAX];
	char message[MESSAGE_SIZE];
	char answer[MESSAGE_SIZE];
};

/* What is NULL here was not made: librpma deletes that as gladly as anything else. */
struct client {
	struct rpma_peer *peer;
	struct memory *memory;
	struct rpma_mr_local *mr;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_mr_remote *remote; /* the server's memory */
	enum rpma_flush_type flush_type;
};

static int prepare(struct client *c, const char *addr)
{
	struct ibv_context *device = NULL;

	TRY(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &device));
	TRY(rpma_peer_new(device, &c->peer));
	c->memory = calloc(1, sizeof(*c->memory));
	if (c->memory == NULL)
		return fail("out of memory");
	memcpy(c->memory->text, text, sizeof(text));
	TRY(rpma_mr_reg(c->peer, c->memory, sizeof(*c->memory), RPMA_MR_USAGE_WRITE_SRC |
			RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &c->mr));
	step(SIDE, "the route to the server and the memory to work with are there",
			"opened the RDMA device that leads to %s (%s) and registered %zu bytes", addr,
			ibv_get_device_name(device->device), sizeof(*c->memory));
	return 0;
}

/* The server's offer came with its consent to the connection. */
static int take_offer(struct client *c)
{
	struct rpma_conn_private_data data = {NULL, 0};
	struct rpma_peer_cfg *peer_cfg = NULL;
	bool persistent = false;
	size_t size = 0;
	struct offer offer;

	TRY(rpma_conn_get_private_data(c->conn, &data));
	if (data.len < sizeof(offer))
		return fail("the server's offer has %d bytes", data.len);
	memcpy(&offer, data.ptr, sizeof(offer));
	if (offer.memory_size > sizeof(offer.memory) || offer.peer_cfg_size > sizeof(offer.peer_cfg))
		return fail("the server's offer makes no sense");

	TRY(rpma_mr_remote_from_descriptor(offer.memory, offer.memory_size, &c->remote));
	TRY(rpma_mr_remote_get_size(c->remote, &size));
	if (size < TEXT_OFFSET + TEXT_MAX)
		return fail("the server's memory has %zu bytes", size);

	TRY(rpma_peer_cfg_from_descriptor(offer.peer_cfg, offer.peer_cfg_size, &peer_cfg));
	int ret = rpma_conn_apply_remote_peer_cfg(c->conn, peer_cfg);
	if (ret == 0)
		ret = rpma_peer_cfg_get_direct_write_to_pmem(peer_cfg, &persistent);
	TRY(rpma_peer_cfg_delete(&peer_cfg));
	if (ret != 0)
		return fail("the server's peer configuration: %s", rpma_err_2str(ret));
	c->flush_type = persistent ? RPMA_FLUSH_TYPE_PERSISTENT : RPMA_FLUSH_TYPE_VISIBILITY;
	step(SIDE, "the client can address the server's memory",
			"connected; the server offers %zu KiB of %s memory", size >> 10,
			persistent ? "persistent" : "ordinary");
	return 0;
}

static int connect_to(struct client *c, const char *addr, const char *port)
{
	TRY(rpma_conn_req_new(c->peer, addr, port, NULL, &c->req));
	TRY(rpma_conn_req_connect(&c->req, NULL, &c->conn));
	if (expect_event(c->conn, RPMA_CONN_ESTABLISHED) != 0)
		return -1;
	return take_offer(c);
}

/* Once a flush completes, what was written before it is where the flush type says. */
static int flush(struct client *c, size_t offset, size_t len, struct ibv_wc *wc)
{
	TRY(rpma_flush(c->conn, c->remote, offset, len, c->flush_type, RPMA_F_COMPLETION_ALWAYS, c));
	return expect_completion(c->conn, c, "the flush", wc);
}

static int write_text(struct client *c)
{
	struct ibv_wc wc;

	/* The write needs no completion of its own: the flush completes after it. */
	TRY(rpma_write(c->conn, c->remote, TEXT_OFFSET, c->mr, offsetof(struct memory, text),
			TEXT_LENGTH, RPMA_F_COMPLETION_ON_ERROR, NULL));
	if (flush(c, TEXT_OFFSET, TEXT_LENGTH, &wc) != 0)
		return -1;
	step(SIDE, c->flush_type == RPMA_FLUSH_TYPE_PERSISTENT ?
			"the text is persistent: it would be there after a power cut" :
			"the text is visible to whatever looks at the server's memory",
			"wrote %zu bytes with rpma_write and flushed them (%s)", TEXT_LENGTH,
			wc.opcode == IBV_WC_RDMA_READ ? "by a read behind the write" :
			"by the device's own flush");
	return 0;
}

static int read_back(struct client *c)
{
	struct ibv_wc wc;

	TRY(rpma_read(c->conn, c->mr, offsetof(struct memory, read_back), c->remote, TEXT_OFFSET,
			TEXT_LENGTH, RPMA_F_COMPLETION_ALWAYS, c->memory->read_back));
	if (expect_completion(c->conn, c->memory->read_back, "the read", &wc) != 0)
		return -1;
	if (memcmp(c->memory->read_back, text, TEXT_LENGTH) != 0)
		return fail("read back \"%.*s\"", (int)TEXT_LENGTH, c->memory->read_back);
	step(SIDE, "every byte is where it belongs", "read the %zu bytes back with rpma_read and compared them",
			TEXT_LENGTH);
	return 0;
}

static int set_mark(struct client *c)
{
	uint64_t mark = TEXT_LENGTH;
	char bytes[sizeof(mark)];
	struct ibv_wc wc;

	memcpy(bytes, &mark, sizeof(mark));
	TRY(rpma_atomic_write(c->conn, c->remote, MARK_OFFSET, bytes, RPMA_F_COMPLETION_ALWAYS, bytes));
	if (expect_completion(c->conn, bytes, "the atomic write", &wc) != 0 ||
			flush(c, MARK_OFFSET, sizeof(mark), &wc) != 0)
		return -1;
	step(SIDE, "who sees the mark sees all 8 bytes of it, and the text is there already",
			"set the mark %" PRIu64 " with rpma_atomic_write and flushed it", mark);
	return 0;
}

static int exchange_messages(struct client *c)
{
	struct memory *m = c->memory;
	struct ibv_wc wc;
	int len = snprintf(m->message, sizeof(m->message), "Look at your memory.");

	/* The receive is there before the server can answer; the answer shows that the message came. */
	TRY(rpma_recv(c->conn, c->mr, offsetof(struct memory, answer), sizeof(m->answer), m->answer));
	TRY(rpma_send(c->conn, c->mr, offsetof(struct memory, message), (size_t)len,
			RPMA_F_COMPLETION_ON_ERROR, NULL));
	if (expect_completion(c->conn, m->answer, "the server's answer", &wc) != 0)
		return -1;
	if (wc.byte_len != TEXT_LENGTH || memcmp(m->answer, text, TEXT_LENGTH) != 0)
		return fail("the server answered \"%.*s\"", (int)wc.byte_len, m->answer);
	step(SIDE, "messages go both ways, and the server sees what the client wrote",
			"got the same text from the server as the answer to a message");
	return 0;
}

static int leave(struct client *c)
{
	TRY(rpma_conn_disconnect(c->conn));
	return expect_event(c->conn, RPMA_CONN_CLOSED);
}

static int clean_up(struct client *c)
{
	TRY(rpma_mr_remote_delete(&c->remote));
	TRY(rpma_conn_delete(&c->conn));
	TRY(rpma_conn_req_delete(&c->req));
	TRY(rpma_mr_dereg(&c->mr));
	TRY(rpma_peer_delete(&c->peer));
	free(c->memory);
	return 0;
}

int main(int argc, char *argv[])
{
	struct client client = {0};
	bool ok;

	if (argc != 3) {
		fprintf(stderr, "usage: %s ADDR PORT\n", argv[0]);
		return 2;
	}
	ok = show_library_errors() == 0 && prepare(&client, argv[1]) == 0 &&
			connect_to(&client, argv[1], argv[2]) == 0 && write_text(&client) == 0 &&
			read_back(&client) == 0 && set_mark(&client) == 0 &&
			exchange_messages(&client) == 0 && leave(&client) == 0;
	if (clean_up(&client) != 0)
		ok = false;
	if (ok)
		step(SIDE, "the connection ended as it should, and every release succeeded",
				"disconnected and released everything");
	return ok ? 0 : 1;
}
