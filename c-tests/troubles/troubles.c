/*
 * troubles.c -- what people meet, made to happen: prints the lines of the log, the statuses of
 * completions and the events, which docs/troubleshooting.md has to show (tests/troubles.rs).
 *
 *   troubles CASE ADDR
 *
 * Both sides of a connection are in this process.
 */
#include "../common.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#define WAIT_MS 300000
#define SIZE 4096
#define ALL \
	(RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | \
	RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | \
	RPMA_MR_USAGE_RECV)

static void print_log(enum rpma_log_level level, const char *file, const int line,
		const char *function, const char *format, ...)
{
	va_list args;

	(void)file, (void)line, (void)function;
	printf("%s", level == RPMA_LOG_LEVEL_ERROR ? "*ERROR* " : "*WARN*  ");
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
}

/* ---- one side, and the other ---- */

static struct ibv_context *context;
static struct rpma_peer *peer;
static struct rpma_ep *ep;
static char port_text[8];

/* One end of the connection, and its memory. */
struct side {
	int usage;
	struct rpma_conn_cfg *cfg;
	unsigned char memory[SIZE] __attribute__((aligned(SIZE)));
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote; /* the other's memory */
	struct rpma_conn *conn;
	struct rpma_cq *cq;
};

static struct side here = {.usage = ALL}, there = {.usage = ALL};

static void open_peer(void)
{
	MUST(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	MUST(rpma_peer_new(context, &peer));
}

/* Listens where nobody else does. */
static void listen_somewhere(void)
{
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED);
	srand((unsigned)(getpid() ^ time(NULL)));
	for (int i = 0; i < 100 && ep == NULL; i++) {
		snprintf(port_text, sizeof(port_text), "%d", 20000 + rand() % 10000);
		rpma_ep_listen(peer, addr, port_text, &ep);
	}
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_WARNING);
	if (ep == NULL)
		FAIL("no port to listen on");
}

static void await(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	if (poll(&p, 1, WAIT_MS) != 1)
		FAIL("nothing came in %d ms", WAIT_MS);
}

static enum rpma_conn_event next_event(struct rpma_conn *conn)
{
	enum rpma_conn_event event;
	int fd;

	MUST(rpma_conn_get_event_fd(conn, &fd));
	await(fd);
	MUST(rpma_conn_next_event(conn, &event));
	return event;
}

static void ready_side(struct side *side, struct side *other)
{
	unsigned char desc[32];
	size_t size;

	MUST(rpma_mr_get_descriptor_size(other->mr, &size));
	MUST(rpma_mr_get_descriptor(other->mr, desc));
	MUST(rpma_mr_remote_from_descriptor(desc, size, &side->remote));
	MUST(rpma_conn_get_cq(side->conn, &side->cq));
	if (next_event(side->conn) != RPMA_CONN_ESTABLISHED)
		FAIL("the connection is not established");
}

static void connect_sides(void)
{
	struct rpma_conn_req *req;
	int fd;

	open_peer();
	listen_somewhere();
	MUST(rpma_mr_reg(peer, here.memory, SIZE, here.usage, &here.mr));
	MUST(rpma_mr_reg(peer, there.memory, SIZE, there.usage, &there.mr));
	MUST(rpma_conn_req_new(peer, addr, port_text, here.cfg, &req));
	MUST(rpma_conn_req_connect(&req, NULL, &here.conn));
	MUST(rpma_ep_get_fd(ep, &fd));
	await(fd);
	MUST(rpma_ep_next_conn_req(ep, there.cfg, &req));
	MUST(rpma_conn_req_connect(&req, NULL, &there.conn));
	ready_side(&here, &there);
	ready_side(&there, &here);
}

static void show_completion(struct rpma_cq *cq)
{
	struct ibv_wc wc;
	int fd, got;

	MUST(rpma_cq_get_fd(cq, &fd));
	do {
		await(fd);
		MUST(rpma_cq_wait(cq));
		got = rpma_cq_get_wc(cq, 1, &wc, NULL);
	} while (got == RPMA_E_NO_COMPLETION);
	MUST(got);
	printf("completion: %s\n", ibv_wc_status_str(wc.status));
}

/* A call that is to fail. */
#define TROUBLE(call) \
	do { \
		int code_ = (call); \
		if (code_ == 0) \
			FAIL("%s has worked", #call); \
	} while (0)

#define GIVES(code, call) \
	do { \
		int code_ = (call); \
		if (code_ != (code)) \
			FAIL("%s gave %s", #call, code_name(code_)); \
	} while (0)

/* ---- the device ---- */

static void device(void)
{
	TROUBLE(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
}

static void loopback(void)
{
	TROUBLE(rpma_utils_get_ibv_context("127.0.0.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
}

static void wildcard(void)
{
	TROUBLE(rpma_utils_get_ibv_context("0.0.0.0", RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	TROUBLE(rpma_utils_get_ibv_context("::", RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
}

static void other_host(void)
{
	TROUBLE(rpma_utils_get_ibv_context("192.0.2.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
}

static void no_way(void)
{
	TROUBLE(rpma_utils_get_ibv_context("192.0.2.1", RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
}

static void no_host(void)
{
	TROUBLE(rpma_utils_get_ibv_context("no such host", RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
}

static void in_use(void)
{
	open_peer();
	MUST(rpma_mr_reg(peer, here.memory, SIZE, ALL, &here.mr));
	TROUBLE(rpma_peer_delete(&peer));
}

/* ---- memory ---- */

static void reg(void *memory, size_t size, int usage)
{
	open_peer();
	TROUBLE(rpma_mr_reg(peer, memory, size, usage, &here.mr));
}

static void *map(size_t size, int protection)
{
	void *memory = mmap(NULL, size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		FAIL("mmap: %s", strerror(errno));
	return memory;
}

static void limit(__rlimit_resource_t which, rlim_t soft, rlim_t hard)
{
	struct rlimit now = {soft, hard};

	if (setrlimit(which, &now) != 0)
		FAIL("setrlimit: %s", strerror(errno));
}

static void memlock(void)
{
	limit(RLIMIT_MEMLOCK, 65536, 65536);
	reg(map(1 << 20, PROT_READ | PROT_WRITE), 1 << 20, ALL);
}

static void memlock_none(void)
{
	limit(RLIMIT_MEMLOCK, 0, 0);
	reg(here.memory, SIZE, ALL);
}

static void unmapped(void)
{
	unsigned char *memory;

	/* Nothing is mapped in between, which may take the place. */
	open_peer();
	memory = map(2 * SIZE, PROT_READ | PROT_WRITE);
	munmap(memory + SIZE, SIZE);
	TROUBLE(rpma_mr_reg(peer, memory, 2 * SIZE, ALL, &here.mr));
}

static void read_only(void)
{
	reg(map(2 * SIZE, PROT_READ), 2 * SIZE, RPMA_MR_USAGE_WRITE_DST);
}

/* A file, whose path is in the environment, to be written by the other side. */
static void file(void)
{
	const char *path = getenv("RPMA_TROUBLES_FILE");
	int fd = path != NULL ? open(path, O_RDWR) : -1;
	void *memory = mmap(NULL, 2 * SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		FAIL("%s: %s", path, strerror(errno));
	reg(memory, 2 * SIZE, RPMA_MR_USAGE_WRITE_DST);
}

static void not_persistent(void)
{
	open_peer();
	MUST(rpma_mr_reg(peer, here.memory, SIZE, RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &here.mr));
}

static void advice(void)
{
	open_peer();
	MUST(rpma_mr_reg(peer, here.memory, SIZE, ALL, &here.mr));
	TROUBLE(rpma_mr_advise(here.mr, 0, SIZE, IBV_ADVISE_MR_ADVICE_PREFETCH, 0));
}

static void advice_beyond(void)
{
	open_peer();
	MUST(rpma_mr_reg(peer, here.memory, SIZE, ALL, &here.mr));
	TROUBLE(rpma_mr_advise(here.mr, 0, SIZE + 1, IBV_ADVISE_MR_ADVICE_PREFETCH, 0));
}

/* ---- queues ---- */

static void long_queue(int (*set)(struct rpma_conn_cfg *, uint32_t), uint32_t size)
{
	struct rpma_conn_req *req;

	open_peer();
	MUST(rpma_conn_cfg_new(&here.cfg));
	MUST(set(here.cfg, size));
	TROUBLE(rpma_conn_req_new(peer, addr, "7204", here.cfg, &req));
}

static void long_cq(void)
{
	long_queue(rpma_conn_cfg_set_cq_size, 100000000);
}

static void long_sq(void)
{
	long_queue(rpma_conn_cfg_set_sq_size, 100000000);
}

static void long_srq(void)
{
	struct rpma_srq_cfg *cfg;
	struct rpma_srq *srq;

	open_peer();
	MUST(rpma_srq_cfg_new(&cfg));
	MUST(rpma_srq_cfg_set_rq_size(cfg, 100000000));
	TROUBLE(rpma_srq_new(peer, cfg, &srq));
}

static void sq_full(void)
{
	int code = 0;

	connect_sides();
	for (int i = 0; i < 100000 && code == 0; i++)
		code = rpma_write(here.conn, here.remote, 0, here.mr, 0, 8, RPMA_F_COMPLETION_ON_ERROR,
				NULL);
	TROUBLE(code);
}

/* Two completions come, and there is room for one. */
static void cq_full(void)
{
	struct ibv_async_event event;
	struct ibv_wc wc;

	MUST(rpma_conn_cfg_new(&here.cfg));
	MUST(rpma_conn_cfg_set_cq_size(here.cfg, 1));
	connect_sides();
	for (int i = 0; i < 2; i++)
		MUST(rpma_write(here.conn, here.remote, 0, here.mr, 0, 8, RPMA_F_COMPLETION_ALWAYS,
				NULL));
	await(context->async_fd);
	if (ibv_get_async_event(context, &event) != 0 || event.event_type != IBV_EVENT_CQ_ERR)
		FAIL("the device does not say that the CQ is in error");
	ibv_ack_async_event(&event);
	MUST(rpma_cq_get_wc(here.cq, 1, &wc, NULL));
	GIVES(RPMA_E_PROVIDER, rpma_cq_get_wc(here.cq, 1, &wc, NULL));
}

static void rq_full(void)
{
	int code = 0;

	connect_sides();
	for (int i = 0; i < 100000 && code == 0; i++)
		code = rpma_recv(here.conn, here.mr, 0, 8, NULL);
	TROUBLE(code);
}

static void descriptors(void)
{
	struct rlimit now;

	open_peer();
	getrlimit(RLIMIT_NOFILE, &now);
	limit(RLIMIT_NOFILE, 3, now.rlim_max);
	TROUBLE(rpma_ep_listen(peer, addr, "7204", &ep));
}

/* ---- connections ---- */

static void port_taken(void)
{
	struct rpma_ep *second;

	open_peer();
	listen_somewhere();
	TROUBLE(rpma_ep_listen(peer, addr, port_text, &second));
}

static void port_low(void)
{
	open_peer();
	TROUBLE(rpma_ep_listen(peer, addr, "204", &ep));
}

static void rejected(void)
{
	struct rpma_conn_req *req;

	open_peer();
	listen_somewhere();
	MUST(rpma_ep_shutdown(&ep));
	MUST(rpma_conn_req_new(peer, addr, port_text, NULL, &req));
	MUST(rpma_conn_req_connect(&req, NULL, &here.conn));
	printf("event: %s\n", rpma_utils_conn_event_2str(next_event(here.conn)));
}

static void forked(void)
{
	struct rpma_conn_req *req;
	int status;
	pid_t pid;

	open_peer();
	listen_somewhere();
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		TROUBLE(rpma_ep_next_conn_req(ep, NULL, &req));
		fflush(stdout);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
		FAIL("the child has not ended well: %s", strerror(errno));
}

static void long_data(void)
{
	struct rpma_conn_private_data data = {here.memory, 57};
	struct rpma_conn_req *req;

	open_peer();
	listen_somewhere();
	MUST(rpma_conn_req_new(peer, addr, port_text, NULL, &req));
	TROUBLE(rpma_conn_req_connect(&req, &data, &here.conn));
}

static void make_non_blocking(int fd)
{
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) != 0)
		FAIL("fcntl: %s", strerror(errno));
}

static void nothing_yet(void)
{
	enum rpma_conn_event event;
	struct rpma_conn_req *req;
	struct ibv_wc wc;
	int fd;

	connect_sides();
	MUST(rpma_ep_get_fd(ep, &fd));
	make_non_blocking(fd);
	GIVES(RPMA_E_NO_EVENT, rpma_ep_next_conn_req(ep, NULL, &req));
	MUST(rpma_conn_get_event_fd(here.conn, &fd));
	make_non_blocking(fd);
	GIVES(RPMA_E_NO_EVENT, rpma_conn_next_event(here.conn, &event));
	MUST(rpma_cq_get_fd(here.cq, &fd));
	make_non_blocking(fd);
	GIVES(RPMA_E_NO_COMPLETION, rpma_cq_wait(here.cq));
	GIVES(RPMA_E_NO_COMPLETION, rpma_cq_get_wc(here.cq, 1, &wc, NULL));
}

/* ---- operations ---- */

#define ALWAYS RPMA_F_COMPLETION_ALWAYS

static void access_error(void)
{
	there.usage = RPMA_MR_USAGE_READ_SRC;
	connect_sides();
	MUST(rpma_write(here.conn, here.remote, 0, here.mr, 0, 8, ALWAYS, NULL));
	show_completion(here.cq);
}

static void beyond(void)
{
	connect_sides();
	MUST(rpma_write(here.conn, here.remote, SIZE, here.mr, 0, 8, ALWAYS, NULL));
	show_completion(here.cq);
}

static void protection_error(void)
{
	here.usage = RPMA_MR_USAGE_SEND;
	connect_sides();
	MUST(rpma_read(here.conn, here.mr, 0, here.remote, 0, 8, ALWAYS, NULL));
	show_completion(here.cq);
}

static void short_receive(void)
{
	connect_sides();
	MUST(rpma_recv(there.conn, there.mr, 0, 8, NULL));
	MUST(rpma_send(here.conn, here.mr, 0, 16, ALWAYS, NULL));
	show_completion(there.cq);
	show_completion(here.cq);
}

static void after_an_error(void)
{
	there.usage = RPMA_MR_USAGE_READ_SRC;
	connect_sides();
	MUST(rpma_write(here.conn, here.remote, 0, here.mr, 0, 8, ALWAYS, NULL));
	show_completion(here.cq);
	MUST(rpma_write(here.conn, here.remote, 0, here.mr, 0, 8, ALWAYS, NULL));
	show_completion(here.cq);
}

static void not_told(void)
{
	there.usage |= RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;
	connect_sides();
	GIVES(RPMA_E_NOSUPP, rpma_flush(here.conn, here.remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT,
			ALWAYS, NULL));
}

static void apply_pmem(struct rpma_conn *conn)
{
	struct rpma_peer_cfg *cfg;

	MUST(rpma_peer_cfg_new(&cfg));
	MUST(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
	MUST(rpma_conn_apply_remote_peer_cfg(conn, cfg));
}

static void no_usage(void)
{
	there.usage = RPMA_MR_USAGE_WRITE_DST;
	connect_sides();
	apply_pmem(here.conn);
	TROUBLE(rpma_flush(here.conn, here.remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL));
	TROUBLE(rpma_flush(here.conn, here.remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, NULL));
}

static void flush_refused(void)
{
	there.usage |= RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;
	connect_sides();
	apply_pmem(here.conn);
	MUST(rpma_flush(here.conn, here.remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, ALWAYS, NULL));
	show_completion(here.cq);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{"device", device},
	{"loopback", loopback},
	{"wildcard", wildcard},
	{"other-host", other_host},
	{"no-way", no_way},
	{"no-host", no_host},
	{"in-use", in_use},
	{"memlock", memlock},
	{"memlock-none", memlock_none},
	{"unmapped", unmapped},
	{"read-only", read_only},
	{"file", file},
	{"not-persistent", not_persistent},
	{"advice", advice},
	{"advice-beyond", advice_beyond},
	{"long-cq", long_cq},
	{"long-sq", long_sq},
	{"long-srq", long_srq},
	{"sq-full", sq_full},
	{"cq-full", cq_full},
	{"rq-full", rq_full},
	{"descriptors", descriptors},
	{"port-taken", port_taken},
	{"port-low", port_low},
	{"rejected", rejected},
	{"forked", forked},
	{"long-data", long_data},
	{"nothing-yet", nothing_yet},
	{"access-error", access_error},
	{"beyond", beyond},
	{"protection-error", protection_error},
	{"short-receive", short_receive},
	{"after-an-error", after_an_error},
	{"not-told", not_told},
	{"no-usage", no_usage},
	{"flush-refused", flush_refused},
};

int main(int argc, char *argv[])
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	rpma_log_set_function(print_log);
	for (size_t i = 0; argc == 3 && i < COUNT(cases); i++) {
		if (strcmp(cases[i].name, argv[1]) != 0)
			continue;
		addr = argv[2];
		cases[i].run();
		fflush(stdout);
		_exit(0); /* what is left is no concern of this */
	}
	fprintf(stderr, "usage: %s CASE ADDR\n", argv[0]);
	return 2;
}
