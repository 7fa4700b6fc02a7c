/*
 * errors.c -- what the device refuses, and what the library does: a connection
 * for each attempt, since an error is its end.
 */
#include "device.h"
#include <endian.h>
#include <sys/mman.h>

/* Waits for the completions of everything posted, of which the first failed. */
static void see_wcs(const char *key, struct side *s, int n)
{
	for (int i = 0; i < n; i++)
		see_wc(key, s, s->cq);
}

/* ---- attempts ---- */

/* The server's region under a key that no region has. */
static struct rpma_mr_remote *wrong_key(struct side *s)
{
	struct rpma_mr_remote *wrong = NULL;

	s->desc[17] ^= 0x55;
	MUST(rpma_mr_remote_from_descriptor(s->desc, DESC_SIZE, &wrong));
	return wrong;
}

static void key_of_write(struct side *s)
{
	struct rpma_mr_remote *wrong = wrong_key(s);

	TRY(rpma_write(s->conn, wrong, 0, s->mr, 0, 8, ON_ERROR, OP_CONTEXT));
	TRY(rpma_write(s->conn, s->remote, 0, s->mr, 0, 8, ON_ERROR, (void *)2));
	TRY(rpma_read(s->conn, s->mr, 0, s->remote, 0, 8, ALWAYS, (void *)3));
	see_wcs("completion", s, 3);
	MUST(rpma_mr_remote_delete(&wrong));
}

static void key_of_read(struct side *s)
{
	struct rpma_mr_remote *wrong = wrong_key(s);

	TRY(rpma_read(s->conn, s->mr, 0, wrong, 0, 8, ON_ERROR, OP_CONTEXT));
	see_wcs("completion", s, 1);
	MUST(rpma_mr_remote_delete(&wrong));
}

static void key_of_atomic_write(struct side *s)
{
	struct rpma_mr_remote *wrong = wrong_key(s);

	TRY(rpma_atomic_write(s->conn, wrong, 0, "12345678", ON_ERROR, OP_CONTEXT));
	see_wcs("completion", s, 1);
	MUST(rpma_mr_remote_delete(&wrong));
}

static void key_of_flush(struct side *s)
{
	struct rpma_mr_remote *wrong = wrong_key(s);

	TRY(rpma_flush(s->conn, wrong, 0, 8, VISIBILITY, ON_ERROR, OP_CONTEXT));
	see_wcs("completion", s, 1);
	MUST(rpma_mr_remote_delete(&wrong));
}

static void write_over_the_end(struct side *s)
{
	TRY(rpma_write(s->conn, s->remote, MEM_SIZE - 4, s->mr, 0, 8, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void write_behind_the_end(struct side *s)
{
	TRY(rpma_write(s->conn, s->remote, MEM_SIZE, s->mr, 0, 8, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void write_far_away(struct side *s)
{
	TRY(rpma_write(s->conn, s->remote, SIZE_MAX - 7, s->mr, 0, 8, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void write_from_over_the_end(struct side *s)
{
	TRY(rpma_write(s->conn, s->remote, 0, s->mr, MEM_SIZE - 4, 8, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void read_over_the_end(struct side *s)
{
	TRY(rpma_read(s->conn, s->mr, 0, s->remote, MEM_SIZE - 4, 8, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void read_to_over_the_end(struct side *s)
{
	TRY(rpma_read(s->conn, s->mr, MEM_SIZE - 4, s->remote, 0, 8, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void atomic_write_behind_the_end(struct side *s)
{
	TRY(rpma_atomic_write(s->conn, s->remote, MEM_SIZE, "12345678", ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void flush_behind_the_end(struct side *s)
{
	TRY(rpma_flush(s->conn, s->remote, MEM_SIZE, 8, VISIBILITY, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

static void flush_far_away(struct side *s)
{
	TRY(rpma_flush(s->conn, s->remote, SIZE_MAX - 7, 8, VISIBILITY, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

/* Bytes that are in the region, but fewer than 8 before its end. */
static void flush_last_byte(struct side *s)
{
	TRY(rpma_flush(s->conn, s->remote, MEM_SIZE - 1, 1, VISIBILITY, ALWAYS, OP_CONTEXT));
	DIFF("D7")
		see_wcs("last byte", s, 1);
}

static void flush_last_seven(struct side *s)
{
	TRY(rpma_flush(s->conn, s->remote, MEM_SIZE - 7, 7, VISIBILITY, ALWAYS, OP_CONTEXT));
	DIFF("D7")
		see_wcs("last 7 bytes", s, 1);
}

static void message_too_long(struct side *s)
{
	TRY(rpma_send(s->conn, s->mr, 0, RECV_SIZE + 1, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
}

/* Memory that is registered for something else. */
static void memory_not_for_it(struct side *s)
{
	struct rpma_mr_local *mr = NULL;

	MUST(rpma_mr_reg(peer, dummy_bytes, sizeof(dummy_bytes), RPMA_MR_USAGE_SEND, &mr));
	TRY(rpma_read(s->conn, mr, 0, s->remote, 0, 8, ALWAYS, OP_CONTEXT));
	see_wcs("completion", s, 1);
	show("memory", "%s", hex(dummy_bytes, 8));
	MUST(rpma_mr_dereg(&mr));
}

static const struct attempt {
	const char *name;
	void (*make)(struct side *s);
} attempts[] = {
	{"write under a wrong key", key_of_write},
	{"read under a wrong key", key_of_read},
	{"atomic write under a wrong key", key_of_atomic_write},
	{"flush under a wrong key", key_of_flush},
	{"write over the end", write_over_the_end},
	{"write behind the end", write_behind_the_end},
	{"write far away", write_far_away},
	{"write from over the end", write_from_over_the_end},
	{"read over the end", read_over_the_end},
	{"read to over the end", read_to_over_the_end},
	{"atomic write behind the end", atomic_write_behind_the_end},
	{"flush behind the end", flush_behind_the_end},
	{"flush far away", flush_far_away},
	{"flush of the last byte", flush_last_byte},
	{"flush of the last seven", flush_last_seven},
	{"message too long", message_too_long},
	{"memory not for it", memory_not_for_it},
};

static void attempts_client(void)
{
	struct side s = {0};

	open_peer();
	side_memory(&s, 0);
	for (size_t i = 0; i < COUNT(attempts); i++) {
		show("attempt", "%s", attempts[i].name);
		client_request(&s);
		attempts[i].make(&s);
		client_end(&s);
		side_drop(&s);
	}
	side_close(&s);
}

static void attempts_server(void)
{
	struct side s = {.recvs = 1};
	unsigned char before_it[MEM_SIZE];

	server_listen(&s);
	memcpy(before_it, s.mem, MEM_SIZE);
	for (size_t i = 0; i < COUNT(attempts); i++) {
		server_accept(&s);
		server_wait_for_end(&s);
		show("attempt", "%s", attempts[i].name);
		show("memory", "%s", memcmp(before_it, s.mem, MEM_SIZE) == 0 ? "untouched" :
				"written");
		memcpy(s.mem, before_it, MEM_SIZE);
		side_drop(&s);
	}
	side_close(&s);
}

/* ---- queues that are full ---- */

/* A number is whole in the log's text, or only its lower half is. */
static const char *in_log(uint64_t number)
{
	char whole[24], half[24];

	snprintf(whole, sizeof(whole), "%" PRIx64, number);
	snprintf(half, sizeof(half), "0x%x", (uint32_t)number);
	for (int i = 0; i < logged.count && i < LOG_LINES; i++) {
		if (strstr(logged.text[i], whole) != NULL)
			return "whole";
		if (strstr(logged.text[i], half) != NULL)
			return "cut";
	}
	return "not there";
}

static void full_client(void)
{
	struct side s = {0};
	uint64_t remote_addr;
	int n;

	client_connect(&s);
	memcpy(&remote_addr, s.desc, 8);
	remote_addr = le64toh(remote_addr);
	/* a message that nobody receives holds up what comes behind it */
	for (n = 0, before(); n < 1000; n++)
		if (rpma_send(s.conn, s.mr, 0, 8, ON_ERROR, (void *)(intptr_t)n) != 0)
			break;
	show("room for sends", "%d", n);
	TRY(rpma_send(s.conn, s.mr, 0, 8, ON_ERROR, OP_CONTEXT));
	TRY(rpma_send_with_imm(s.conn, s.mr, 0, 8, ON_ERROR, 1, OP_CONTEXT));
	TRY(rpma_write(s.conn, s.remote, 16, s.mr, 0, 8, ON_ERROR, OP_CONTEXT));
	DIFF("D10") {
		show("write wr_id in the log", "%s", in_log((uintptr_t)OP_CONTEXT));
		show("write remote address in the log", "%s", in_log(remote_addr + 16));
		show("write local address in the log", "%s", in_log((uintptr_t)s.mem));
	}
	TRY(rpma_read(s.conn, s.mr, 32, s.remote, 16, 8, ON_ERROR, OP_CONTEXT));
	DIFF("D10") {
		show("read wr_id in the log", "%s", in_log((uintptr_t)OP_CONTEXT));
		show("read remote address in the log", "%s", in_log(remote_addr + 16));
		show("read local address in the log", "%s", in_log((uintptr_t)s.mem + 32));
	}
	TRY(rpma_write_with_imm(s.conn, s.remote, 0, s.mr, 0, 8, ON_ERROR, 1, OP_CONTEXT));
	TRY(rpma_atomic_write(s.conn, s.remote, 0, "12345678", ON_ERROR, OP_CONTEXT));
	DIFF("D10")
		show("atomic_write wr_id in the log", "%s", in_log((uintptr_t)OP_CONTEXT));
	TRY(rpma_flush(s.conn, s.remote, 0, 8, VISIBILITY, ON_ERROR, OP_CONTEXT));
	DIFF("D10")
		show("flush wr_id in the log", "%s", in_log((uintptr_t)OP_CONTEXT));

	for (n = 0, before(); n < 1000; n++)
		if (rpma_recv(s.conn, s.mr, 0, 8, OP_CONTEXT) != 0)
			break;
	show("room for receives", "%d", n);
	TRY(rpma_recv(s.conn, s.mr, 0, 8, OP_CONTEXT));

	/* nothing was received in all the time */
	show("message", "%s", wait_wc_in(s.cq, OUT, 200) ? "received" : "nothing came");
	client_leave(&s);
}

static void full_server(void)
{
	struct side s = {0};

	server_connect(&s);
	server_leave(&s);
}

/* ---- lengths of 4 GiB and more ---- */

#define HUGE_LEN (((size_t)1 << 32) + 4)

/* Whether the operation is done and completes, and what it moved. */
static void huge(const char *key, struct side *s, int ret, bool completes)
{
	struct ibv_wc wc;
	char text[64];

	DIFF("D6") {
		snprintf(text, sizeof(text), "code of %s", key);
		after(text, ret);
		snprintf(text, sizeof(text), "end of %s", key);
		if (completes)
			show(text, "%s", ret == 0 && wait_wc_in(s->cq, &wc, WAIT_MS) ?
					ibv_wc_status_str(wc.status) : "no completion");
	}
}

static void huge_client(void)
{
	struct side s = {0};
	int ret;

	open_peer();
	side_memory(&s, 0);
	MUST(rpma_conn_req_new(peer, addr, port, NULL, &s.req));
	before();
	ret = rpma_conn_req_recv(s.req, s.mr, 64, HUGE_LEN, OP_CONTEXT);
	huge("conn_req_recv", &s, ret, false);
	side_connect(&s);
	before();
	ret = rpma_recv(s.conn, s.mr, 64, HUGE_LEN, OP_CONTEXT);
	huge("recv", &s, ret, false);
	before();
	ret = rpma_write(s.conn, s.remote, 0, s.mr, 0, HUGE_LEN, ALWAYS, OP_CONTEXT);
	huge("write", &s, ret, true);
	before();
	ret = rpma_write_with_imm(s.conn, s.remote, 8, s.mr, 0, HUGE_LEN, ALWAYS, 1, OP_CONTEXT);
	huge("write_with_imm", &s, ret, true);
	before();
	ret = rpma_read(s.conn, s.mr, 0, s.remote, 16, HUGE_LEN, ALWAYS, OP_CONTEXT);
	huge("read", &s, ret, true);
	DIFF("D6")
		show("bytes read", "%s", hex(s.mem, 6));
	before();
	ret = rpma_send(s.conn, s.mr, 0, HUGE_LEN, ALWAYS, OP_CONTEXT);
	huge("send", &s, ret, true);
	before();
	ret = rpma_send_with_imm(s.conn, s.mr, 0, HUGE_LEN, ALWAYS, 1, OP_CONTEXT);
	huge("send_with_imm", &s, ret, true);
	client_leave(&s);
}

static void huge_server(void)
{
	struct side s = {.recvs = 3};

	server_connect(&s);
	server_wait_for_end(&s);
	DIFF("D6")
		show("bytes written", "%s", hex(s.mem, 16));
	side_delete(&s);
}

/* ---- memory that is persistent, and memory that only says so ---- */

#define PERSISTENT_USAGE (USAGE | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT)

#define PMEM_SIZE (2 << 20) /* what a devdax maps in one piece */

enum {ORDINARY, REAL_PMEM};

static void persistent_client(void)
{
	struct side s = {0};
	struct rpma_peer_cfg *cfg = NULL;

	client_connect(&s);
	MUST(rpma_peer_cfg_new(&cfg));
	MUST(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
	MUST(rpma_conn_apply_remote_peer_cfg(s.conn, cfg));
	MUST(rpma_peer_cfg_delete(&cfg));
	TRY(rpma_write(s.conn, s.remote, 0, s.mr, 0, 8, ON_ERROR, (void *)1));
	TRY(rpma_flush(s.conn, s.remote, 0, 8, VISIBILITY, ALWAYS, (void *)2));
	see_wc("visible", &s, s.cq);
	/* what the server could register is what may be flushed */
	mark = variant == ORDINARY ? "D12" : NULL;
	if (TRY(rpma_flush(s.conn, s.remote, 0, 8, PERSISTENT, ALWAYS, (void *)3)) == 0)
		see_wc("persistent", &s, s.cq);
	else
		show("persistent", "not flushed");
	mark = NULL;
	client_leave(&s);
}

static void persistent_server(void)
{
	struct side s = {0};
	const char *path = getenv("RPMA_TEST_PMEM");
	int fd;

	open_peer();
	side_memory(&s, 0x80);
	MUST(rpma_mr_dereg(&s.mr));
	if (variant == REAL_PMEM) {
		free(s.mem);
		fd = open(path, O_RDWR);
		s.mem = mmap(NULL, PMEM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (fd < 0 || s.mem == MAP_FAILED)
			FAIL("%s: %s", path, strerror(errno));
		memset(s.mem, 0x80, MEM_SIZE);
		TRY(rpma_mr_reg(peer, s.mem, PMEM_SIZE, PERSISTENT_USAGE, &s.mr));
	} else {
		DIFF("D12")
			TRY(rpma_mr_reg(peer, s.mem, MEM_SIZE, PERSISTENT_USAGE, &s.mr));
		if (s.mr == NULL)
			MUST(rpma_mr_reg(peer, s.mem, MEM_SIZE, USAGE, &s.mr));
	}
	s.ep = listen_somewhere();
	server_accept(&s);
	server_wait_for_end(&s);
	show("memory", "%s", hex(s.mem, 16));
	if (variant == REAL_PMEM) {
		side_drop(&s);
		TRY(rpma_mr_dereg(&s.mr));
		munmap(s.mem, PMEM_SIZE);
		s.mem = NULL;
		TRY(rpma_ep_shutdown(&s.ep));
		close_peer();
	} else {
		side_delete(&s);
	}
}

#define PERSIST(kind) \
	.server = persistent_server, .client = persistent_client, .variant = (kind)

static const struct test_case cases[] = {
	{.name = "attempts", .server = attempts_server, .client = attempts_client},
	{.name = "full-queues", .server = full_server, .client = full_client},
	{.name = "huge-lengths", .server = huge_server, .client = huge_client},
	{.name = "ordinary-as-persistent", PERSIST(ORDINARY)},
	{.name = "pmem", PERSIST(REAL_PMEM)},
};

MAIN(cases)
