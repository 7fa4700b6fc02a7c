/*
 * ops.c -- the operations between two sides. The client drives; the server lies
 * still, and shows its memory when the client has gone.
 */
#include "device.h"

static void show_memory(const char *key, const struct side *s, size_t offset, size_t n)
{
	show(key, "%s", hex(s->mem + offset, n));
}

/* ---- read, write, atomic write and flush ---- */

/*
 * The operation with a completion, then without one but with a second behind
 * it: in a queue the second's completion says that the first is done as well.
 */
static void write_client(void)
{
	struct side s = {0};

	client_connect(&s);
	TRY(rpma_write(s.conn, s.remote, 0, s.mr, 0, 16, ALWAYS, (void *)1));
	see_wc("write", &s, s.cq);
	TRY(rpma_write(s.conn, s.remote, 100, s.mr, 33, 7, ON_ERROR, (void *)2));
	TRY(rpma_write(s.conn, s.remote, 200, s.mr, 44, 1, ALWAYS, OP_CONTEXT));
	see_wc("only the second", &s, s.cq);
	see_no_wc("no more", s.cq);
	/* any bit but the second means: on error only */
	TRY(rpma_write(s.conn, s.remote, 300, s.mr, 1, 2, 1 << 2, (void *)3));
	TRY(rpma_write(s.conn, s.remote, 310, s.mr, 1, 2, 1 << 1, (void *)4));
	see_wc("flag 2 alone", &s, s.cq);
	TRY(rpma_write(s.conn, s.remote, 320, s.mr, 1, 2, -1, (void *)5));
	see_wc("all flags", &s, s.cq);
	/* nothing to write, in both forms */
	TRY(rpma_write(s.conn, s.remote, 400, s.mr, 0, 0, ALWAYS, (void *)6));
	see_wc("0 bytes of memory", &s, s.cq);
	TRY(rpma_write(s.conn, NULL, 0, NULL, 0, 0, ALWAYS, (void *)7));
	see_wc("0 bytes of none", &s, s.cq);
	/* the whole region, and its last byte */
	TRY(rpma_write(s.conn, s.remote, 4096, s.mr, 0, 4096, ALWAYS, NULL));
	see_wc("a page", &s, s.cq);
	TRY(rpma_write(s.conn, s.remote, MEM_SIZE - 1, s.mr, 7, 1, ALWAYS, NULL));
	see_wc("the last byte", &s, s.cq);
	client_leave(&s);
}

static void write_server(void)
{
	struct side s = {0};

	server_connect(&s);
	server_wait_for_end(&s);
	show_memory("from 0", &s, 0, 450);
	show_memory("from 4090", &s, 4090, 32);
	show_memory("the end", &s, MEM_SIZE - 8, 8);
	see_no_wc("a write is not seen", s.rcq);
	side_delete(&s);
}

static void read_client(void)
{
	struct side s = {0};

	client_connect(&s);
	TRY(rpma_read(s.conn, s.mr, 0, s.remote, 0, 16, ALWAYS, (void *)1));
	see_wc("read", &s, s.cq);
	show_memory("read", &s, 0, 20);
	TRY(rpma_read(s.conn, s.mr, 100, s.remote, 33, 7, ON_ERROR, (void *)2));
	TRY(rpma_read(s.conn, s.mr, 200, s.remote, 44, 1, ALWAYS, OP_CONTEXT));
	see_wc("only the second", &s, s.cq);
	see_no_wc("no more", s.cq);
	show_memory("both", &s, 98, 110);
	TRY(rpma_read(s.conn, s.mr, 300, s.remote, 0, 0, ALWAYS, (void *)3));
	see_wc("0 bytes of memory", &s, s.cq);
	TRY(rpma_read(s.conn, NULL, 0, NULL, 0, 0, ALWAYS, (void *)4));
	see_wc("0 bytes of none", &s, s.cq);
	show_memory("untouched", &s, 298, 10);
	TRY(rpma_read(s.conn, s.mr, 4096, s.remote, 4000, 4096, ALWAYS, NULL));
	see_wc("a page", &s, s.cq);
	show_memory("a page", &s, 4090, 20);
	TRY(rpma_read(s.conn, s.mr, MEM_SIZE - 1, s.remote, MEM_SIZE - 1, 1, ALWAYS, NULL));
	see_wc("the last byte", &s, s.cq);
	show_memory("the last byte", &s, MEM_SIZE - 4, 4);
	client_leave(&s);
}

static void idle_server(void)
{
	struct side s = {0};

	server_connect(&s);
	server_wait_for_end(&s);
	see_no_wc("completions", s.rcq);
	side_delete(&s);
}

static void atomic_client(void)
{
	struct side s = {0};
	char eight[8] = "atomic!";
	char unaligned[16] = "x12345678";

	client_connect(&s);
	TRY(rpma_atomic_write(s.conn, s.remote, 0, eight, ALWAYS, (void *)1));
	memset(eight, 'z', sizeof(eight)); /* the bytes were taken when it was posted */
	see_wc("atomic write", &s, s.cq);
	TRY(rpma_atomic_write(s.conn, s.remote, 16, unaligned + 1, ON_ERROR, (void *)2));
	TRY(rpma_atomic_write(s.conn, s.remote, 32, eight, ALWAYS, OP_CONTEXT));
	see_wc("only the second", &s, s.cq);
	see_no_wc("no more", s.cq);
	TRY(rpma_atomic_write(s.conn, s.remote, MEM_SIZE - 8, eight, ALWAYS, (void *)3));
	see_wc("the last 8 bytes", &s, s.cq);
	for (size_t offset = 1; offset < 8; offset++)
		TRY(rpma_atomic_write(s.conn, s.remote, offset, eight, ALWAYS, NULL));
	TRY(rpma_atomic_write(s.conn, s.remote, 0, eight, 0, NULL));
	TRY(rpma_atomic_write(s.conn, s.remote, 0, NULL, ALWAYS, NULL));
	see_no_wc("nothing was posted", s.cq);
	client_leave(&s);
}

static void atomic_server(void)
{
	struct side s = {0};

	server_connect(&s);
	server_wait_for_end(&s);
	show_memory("from 0", &s, 0, 48);
	show_memory("the end", &s, MEM_SIZE - 16, 16);
	side_delete(&s);
}

static void flush_client(void)
{
	struct side s = {0};
	static const int types[] = {-1, 2, 3, INT_MAX, INT_MIN};
	struct rpma_peer_cfg *cfg;

	client_connect(&s);
	TRY(rpma_write(s.conn, s.remote, 0, s.mr, 0, 64, ON_ERROR, (void *)1));
	TRY(rpma_flush(s.conn, s.remote, 0, 64, VISIBILITY, ALWAYS, (void *)2));
	see_wc("flush", &s, s.cq);
	see_no_wc("no more", s.cq);
	TRY(rpma_flush(s.conn, s.remote, 0, 8, VISIBILITY, ON_ERROR, (void *)3));
	TRY(rpma_flush(s.conn, s.remote, 8, 8, VISIBILITY, ALWAYS, OP_CONTEXT));
	see_wc("only the second", &s, s.cq);
	see_no_wc("no more", s.cq);
	TRY(rpma_flush(s.conn, s.remote, 0, 0, VISIBILITY, ALWAYS, (void *)4));
	see_wc("0 bytes", &s, s.cq);
	TRY(rpma_flush(s.conn, s.remote, 0, MEM_SIZE, VISIBILITY, ALWAYS, (void *)5));
	see_wc("everything", &s, s.cq);
	TRY(rpma_flush(s.conn, s.remote, MEM_SIZE - 8, 8, VISIBILITY, ALWAYS, (void *)6));
	see_wc("the last 8 bytes", &s, s.cq);
	TRY(rpma_flush(s.conn, s.remote, 0, 8, VISIBILITY, 0, NULL));

	/* persistent: only where the other side said it may be, of memory that is for it */
	TRY(rpma_flush(s.conn, s.remote, 0, 8, PERSISTENT, ALWAYS, NULL));
	MUST(rpma_peer_cfg_new(&cfg));
	TRY(rpma_conn_apply_remote_peer_cfg(s.conn, cfg));
	TRY(rpma_flush(s.conn, s.remote, 0, 8, PERSISTENT, ALWAYS, NULL));
	MUST(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
	TRY(rpma_conn_apply_remote_peer_cfg(s.conn, cfg));
	TRY(rpma_flush(s.conn, s.remote, 0, 8, PERSISTENT, ALWAYS, NULL));
	TRY(rpma_conn_apply_remote_peer_cfg(NULL, cfg));
	TRY(rpma_conn_apply_remote_peer_cfg(s.conn, NULL));
	MUST(rpma_peer_cfg_delete(&cfg));
	see_no_wc("nothing was posted", s.cq);

	/* types that the manual does not know */
	for (size_t i = 0; i < COUNT(types); i++) {
		char key[64];
		struct ibv_wc wc;
		int ret;

		snprintf(key, sizeof(key), "flush of type %d", types[i]);
		DIFF("D8")
			ret = TRY_AS(key, rpma_flush(s.conn, s.remote, 0, 8,
					(enum rpma_flush_type)types[i], ALWAYS, NULL));
		if (ret == 0 && !wait_wc_in(s.cq, &wc, WAIT_MS))
			FAIL("a flush of type %d did not complete", types[i]);
	}
	client_leave(&s);
}

/* The server's region may be read and nothing else. */
static void read_only_client(void)
{
	struct side s = {0};

	client_connect(&s);
	TRY(rpma_flush(s.conn, s.remote, 0, 8, VISIBILITY, ALWAYS, NULL));
	TRY(rpma_read(s.conn, s.mr, 0, s.remote, 0, 8, ALWAYS, NULL));
	see_wc("read", &s, s.cq);
	TRY(rpma_write(s.conn, s.remote, 0, s.mr, 8, 8, ON_ERROR, OP_CONTEXT));
	see_wc("write", &s, s.cq);
	client_leave(&s);
}

static void read_only_server(void)
{
	struct side s = {.usage = RPMA_MR_USAGE_READ_SRC};

	server_connect(&s);
	server_wait_for_end(&s);
	show_memory("untouched", &s, 0, 16);
	side_delete(&s);
}

/* ---- messages ---- */

static void send_client(void)
{
	struct side s = {.recvs = 1};

	client_connect(&s);
	TRY(rpma_send(s.conn, s.mr, 0, 8, ALWAYS, (void *)1));
	see_wc("send", &s, s.cq);
	TRY(rpma_send(s.conn, s.mr, 33, 7, ON_ERROR, (void *)2));
	TRY(rpma_send_with_imm(s.conn, s.mr, 3, 5, ALWAYS, 0x12345678, OP_CONTEXT));
	see_wc("only the second", &s, s.cq);
	see_no_wc("no more", s.cq);
	TRY(rpma_send(s.conn, s.mr, 5, 0, ALWAYS, (void *)3));
	see_wc("0 bytes of memory", &s, s.cq);
	TRY(rpma_send(s.conn, NULL, 0, 0, ALWAYS, (void *)4));
	see_wc("0 bytes of none", &s, s.cq);
	TRY(rpma_send_with_imm(s.conn, NULL, 0, 0, ALWAYS, 0, (void *)5));
	see_wc("0 bytes, imm 0", &s, s.cq);
	TRY(rpma_send_with_imm(s.conn, NULL, 0, 0, ON_ERROR, 0xffffffff, (void *)6));
	TRY(rpma_write_with_imm(s.conn, s.remote, 500, s.mr, 9, 10, ALWAYS, 0x01020304, (void *)7));
	see_wc("write with imm", &s, s.cq);
	TRY(rpma_write_with_imm(s.conn, s.remote, 600, s.mr, 0, 0, ALWAYS, 8, (void *)8));
	see_wc("write with imm, 0 bytes of memory", &s, s.cq);
	TRY(rpma_write_with_imm(s.conn, NULL, 0, NULL, 0, 0, ON_ERROR, 9, (void *)9));
	/* the answer comes when all of it has been received */
	see_wc("answer", &s, s.rcq);
	see_no_wc("no more", s.cq);
	show_memory("answer", &s, RECV_OFFSET(0), 8);
	client_leave(&s);
}

/* Receives come in the order of the messages, from those posted before the connection on. */
static void send_server(void)
{
	struct side s = {.recvs = 4};

	server_connect(&s);
	TRY(rpma_recv(s.conn, s.mr, RECV_OFFSET(4), 0, (void *)0x1004));
	TRY(rpma_recv(s.conn, NULL, 0, 0, (void *)0x1005));
	for (int i = 6; i <= 9; i++)
		MUST(rpma_recv(s.conn, s.mr, RECV_OFFSET(i), RECV_SIZE, (void *)(intptr_t)(0x1000 + i)));
	for (int i = 0; i <= 9; i++)
		see_wc("received", &s, s.rcq);
	show_memory("messages", &s, RECV_OFFSET(0), 3 * RECV_SIZE);
	show_memory("written with imm", &s, 498, 14);
	TRY(rpma_send(s.conn, s.mr, 0, 8, ALWAYS, (void *)1));
	see_wc("answer", &s, s.cq);
	server_leave(&s);
}

/* What is posted in a row is done in that row: each write lands on the one before. */
static void order_client(void)
{
	struct side s = {0};
	struct ibv_wc wc[10];
	int got = 0, n, ret;

	client_connect(&s);
	for (intptr_t i = 0; i < 9; i++)
		MUST(rpma_write(s.conn, s.remote, 0, s.mr, 16 * (size_t)i, 8, ALWAYS, (void *)i));
	MUST(rpma_read(s.conn, s.mr, 4096, s.remote, 0, 8, ALWAYS, (void *)9));
	/* several at once, and never more than asked for */
	while (got < 10) {
		int fd;

		ret = rpma_cq_get_wc(s.cq, 10 - got > 4 ? 4 : 10 - got, wc + got, &n);
		if (ret == 0) {
			if (n < 1 || n > 4)
				FAIL("%d completions where 4 were asked for", n);
			got += n;
			continue;
		}
		if (ret != RPMA_E_NO_COMPLETION)
			MUST(ret);
		MUST(rpma_cq_get_fd(s.cq, &fd));
		if (!ready(fd, WAIT_MS))
			FAIL("only %d completions came", got);
		MUST(rpma_cq_wait(s.cq));
	}
	for (int i = 0; i < got; i++)
		show_wc("completion", s.conn, &wc[i]);
	show_memory("the last one's bytes", &s, 4096, 8);
	TRY(rpma_cq_get_wc(s.cq, 4, wc, OUT));
	TRY(rpma_cq_get_wc(s.cq, 1, wc, OUT));
	TRY(rpma_cq_get_wc(s.cq, 1, wc, NULL));
	TRY(rpma_cq_get_wc(s.cq, 2, wc, NULL));
	TRY(rpma_cq_get_wc(s.cq, 0, wc, OUT));
	client_leave(&s);
}

/* The same by the device's IPv6 address. */
static void use_ipv6(void)
{
	addr = getenv("RPMA_TEST_DEVICE6");
	if (addr == NULL)
		FAIL("RPMA_TEST_DEVICE6 is not set");
}

static void ipv6_client(void)
{
	use_ipv6();
	read_client();
}

static void ipv6_server(void)
{
	use_ipv6();
	idle_server();
}

static const struct test_case cases[] = {
	{.name = "write", .server = write_server, .client = write_client},
	{.name = "read", .server = idle_server, .client = read_client},
	{.name = "atomic-write", .server = atomic_server, .client = atomic_client},
	{.name = "flush", .server = idle_server, .client = flush_client},
	{.name = "read-only", .server = read_only_server, .client = read_only_client},
	{.name = "messages", .server = send_server, .client = send_client},
	{.name = "ipv6", .server = ipv6_server, .client = ipv6_client},
	{.name = "order", .server = idle_server, .client = order_client},
};

MAIN(cases)
