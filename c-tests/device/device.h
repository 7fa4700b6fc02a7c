/*
 * device.h -- what the programs that need a device share: a peer, two sides of a
 * connection with one memory region each, and completions as transcript lines.
 *
 * The client drives where not said otherwise. A side waits at most WAIT_MS for
 * anything; what did not come in that time is shown as `nothing came`.
 */
#ifndef TEST_DEVICE_H
#define TEST_DEVICE_H

#include "../common.h"
#include <inttypes.h>
#include <netinet/in.h>
#include <time.h>

#define WAIT_MS 120000

#define ON_ERROR RPMA_F_COMPLETION_ON_ERROR
#define ALWAYS RPMA_F_COMPLETION_ALWAYS
#define VISIBILITY RPMA_FLUSH_TYPE_VISIBILITY
#define PERSISTENT RPMA_FLUSH_TYPE_PERSISTENT

/* Every usage that ordinary memory has on every device. */
#define USAGE \
	(RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC | \
	RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND | \
	RPMA_MR_USAGE_RECV)

#define MEM_SIZE 8192
#define DESC_SIZE 21

/* One side of a connection. */
struct side {
	/* what it is to be, set before server_connect() or client_connect() */
	const struct rpma_conn_cfg *cfg;
	int usage;      /* 0: USAGE */
	int recvs;      /* receives of 64 bytes to post before the connection is there */
	/* what it is then */
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_cq *cq, *rcq;
	unsigned char *mem;
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote; /* the other side's memory */
	unsigned char desc[DESC_SIZE]; /* and its descriptor */
};

static struct ibv_context *context;
static struct rpma_peer *peer;

static inline bool ready(int fd, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};

	return poll(&p, 1, timeout_ms) == 1;
}

static inline void open_peer(void)
{
	MUST(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	MUST(rpma_peer_new(context, &peer));
}

static inline void close_peer(void)
{
	TRY(rpma_peer_delete(&peer));
}

/* ---- connections ---- */

/* Listens on some free port and tells the runner which. */
static inline struct rpma_ep *listen_somewhere(void)
{
	static char number[8];
	struct rpma_ep *ep = NULL;

	srand((unsigned)(getpid() ^ time(NULL)));
	for (int i = 0; i < 100; i++) {
		snprintf(number, sizeof(number), "%d", 20000 + rand() % 40000);
		before();
		if (rpma_ep_listen(peer, addr, number, &ep) == 0) {
			port = number;
			printf("port: %s\n", port);
			return ep;
		}
	}
	FAIL("no port to listen on%s", log_text());
}

/* The last log line with the port, which is another each time, taken out. */
static inline void show_last_log(const char *key)
{
	int i = logged.count - 1;
	char *p;

	if (i < 0 || i >= LOG_LINES) {
		show(key, "nothing logged");
		return;
	}
	p = *port ? strstr(logged.text[i], port) : NULL;
	if (p != NULL)
		show(key, "%s %.*sPORT%s", level_name(logged.level[i]),
				(int)(p - logged.text[i]), logged.text[i], p + strlen(port));
	else
		show(key, "%s %s", level_name(logged.level[i]), logged.text[i]);
}

static inline bool ep_ready(struct rpma_ep *ep, int timeout_ms)
{
	int fd;

	MUST(rpma_ep_get_fd(ep, &fd));
	return ready(fd, timeout_ms);
}

/*
 * The next client's request. Events of an id that the original leaked come to the endpoint as well,
 * which calls them invalid.
 */
static inline struct rpma_conn_req *next_req(struct rpma_ep *ep, const struct rpma_conn_cfg *cfg)
{
	struct rpma_conn_req *req = NULL;
	int ret;

	do {
		if (!ep_ready(ep, WAIT_MS))
			FAIL("no client came");
		ret = rpma_ep_next_conn_req(ep, cfg, &req);
	} while (ret == RPMA_E_INVAL);
	MUST(ret);
	return req;
}

/* The next event by name; RPMA_CONN_UNDEFINED stands for none in the time. */
static inline enum rpma_conn_event next_event_in(struct rpma_conn *conn, int timeout_ms)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
	int fd;

	MUST(rpma_conn_get_event_fd(conn, &fd));
	if (ready(fd, timeout_ms))
		MUST(rpma_conn_next_event(conn, &event));
	return event;
}

static inline const char *event_name(enum rpma_conn_event event)
{
	return event == RPMA_CONN_UNDEFINED ? "nothing came" : rpma_utils_conn_event_2str(event);
}

static inline void expect_event(struct rpma_conn *conn, enum rpma_conn_event expected)
{
	enum rpma_conn_event event = next_event_in(conn, WAIT_MS);

	if (event != expected)
		FAIL("%s where %s is due", event_name(event), event_name(expected));
}

/* The server's standard input ends when the client's process has. */
static inline void wait_for_client_exit(void)
{
	struct pollfd p = {.fd = 0, .events = POLLIN};
	char byte;

	if (poll(&p, 1, WAIT_MS) != 1 || read(0, &byte, 1) != 0)
		FAIL("the client does not end");
}

static inline void side_memory(struct side *s, unsigned char first)
{
	s->mem = aligned_alloc(4096, MEM_SIZE);
	if (s->mem == NULL)
		FAIL("no memory");
	for (size_t i = 0; i < MEM_SIZE; i++)
		s->mem[i] = (unsigned char)(first + i);
	MUST(rpma_mr_reg(peer, s->mem, MEM_SIZE, s->usage ? s->usage : USAGE, &s->mr));
}

#define RECV_SIZE 64
/* Where the i-th receive posted beforehand puts its message. */
#define RECV_OFFSET(i) (4096 + RECV_SIZE * (size_t)(i))

static inline void side_connect(struct side *s)
{
	struct rpma_conn_private_data data = {s->desc, sizeof(s->desc)};

	for (int i = 0; i < s->recvs; i++)
		MUST(rpma_conn_req_recv(s->req, s->mr, RECV_OFFSET(i), RECV_SIZE,
				(void *)(0x1000 + (intptr_t)i)));
	MUST(rpma_mr_get_descriptor(s->mr, s->desc));
	MUST(rpma_conn_req_connect(&s->req, &data, &s->conn));
	expect_event(s->conn, RPMA_CONN_ESTABLISHED);
	MUST(rpma_conn_get_private_data(s->conn, &data));
	if (data.len < DESC_SIZE)
		FAIL("%d bytes of private data", data.len);
	memcpy(s->desc, data.ptr, DESC_SIZE);
	MUST(rpma_mr_remote_from_descriptor(s->desc, DESC_SIZE, &s->remote));
	MUST(rpma_conn_get_cq(s->conn, &s->cq));
	MUST(rpma_conn_get_rcq(s->conn, &s->rcq));
	if (s->rcq == NULL)
		s->rcq = s->cq;
}

static inline void server_listen(struct side *s)
{
	open_peer();
	side_memory(s, 0x80);
	s->ep = listen_somewhere();
}

static inline void server_accept(struct side *s)
{
	s->req = next_req(s->ep, s->cfg);
	side_connect(s);
}

static inline void server_connect(struct side *s)
{
	server_listen(s);
	server_accept(s);
}

static inline void client_request(struct side *s)
{
	MUST(rpma_conn_req_new(peer, addr, port, s->cfg, &s->req));
	side_connect(s);
}

static inline void client_connect(struct side *s)
{
	open_peer();
	side_memory(s, 0);
	client_request(s);
}

static inline void side_drop(struct side *s)
{
	MUST(rpma_mr_remote_delete(&s->remote));
	TRY(rpma_conn_delete(&s->conn));
}

static inline void side_close(struct side *s)
{
	TRY(rpma_mr_dereg(&s->mr));
	if (s->ep != NULL)
		TRY(rpma_ep_shutdown(&s->ep));
	close_peer();
	free(s->mem);
}

static inline void side_delete(struct side *s)
{
	side_drop(s);
	side_close(s);
}

/* The client is the one who ends the connection. */
static inline void client_end(struct side *s)
{
	MUST(rpma_conn_disconnect(s->conn));
	expect_event(s->conn, RPMA_CONN_CLOSED);
}

static inline void client_leave(struct side *s)
{
	client_end(s);
	side_delete(s);
}

static inline void server_wait_for_end(struct side *s)
{
	expect_event(s->conn, RPMA_CONN_CLOSED);
	MUST(rpma_conn_disconnect(s->conn));
}

static inline void server_leave(struct side *s)
{
	server_wait_for_end(s);
	side_delete(s);
}

/* ---- completions ---- */

/* Waits for one completion; false when none came in the time. */
static inline bool wait_wc_in(struct rpma_cq *cq, struct ibv_wc *wc, int timeout_ms)
{
	int fd, ret;

	MUST(rpma_cq_get_fd(cq, &fd));
	while ((ret = rpma_cq_get_wc(cq, 1, wc, NULL)) == RPMA_E_NO_COMPLETION) {
		if (!ready(fd, timeout_ms))
			return false;
		MUST(rpma_cq_wait(cq));
	}
	MUST(ret);
	return true;
}

static inline const char *opcode_name(int opcode)
{
	switch (opcode) {
	case IBV_WC_SEND: return "SEND";
	case IBV_WC_RDMA_WRITE: return "RDMA_WRITE";
	case IBV_WC_RDMA_READ: return "RDMA_READ";
	case 8: return "FLUSH"; /* unknown to the headers before rdma-core 45 */
	case 9: return "ATOMIC_WRITE";
	case IBV_WC_RECV: return "RECV";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "RECV_RDMA_WITH_IMM";
	default: return code_name(opcode);
	}
}

static inline void show_wc(const char *key, struct rpma_conn *conn, const struct ibv_wc *wc)
{
	uint32_t qp_num = 0;
	char imm[32] = "", len[32] = "";
	bool receive = wc->opcode & IBV_WC_RECV;

	MUST(rpma_conn_get_qp_num(conn, &qp_num));
	if (wc->status != IBV_WC_SUCCESS) {
		/* nothing else but these is defined then */
		show(key, "%s wr_id=0x%" PRIx64 " qp=%s", ibv_wc_status_str(wc->status), wc->wr_id,
				wc->qp_num == qp_num ? "mine" : "other");
		return;
	}
	if (wc->wc_flags & IBV_WC_WITH_IMM)
		snprintf(imm, sizeof(imm), " imm=0x%08x", ntohl(wc->imm_data));
	if (receive)
		snprintf(len, sizeof(len), " len=%u", wc->byte_len);
	show(key, "%s wr_id=0x%" PRIx64 "%s%s flags=0x%x qp=%s", opcode_name(wc->opcode), wc->wr_id,
			len, imm, wc->wc_flags, wc->qp_num == qp_num ? "mine" : "other");
}

/* Waits for a completion and shows it. */
static inline enum ibv_wc_status see_wc(const char *key, struct side *s, struct rpma_cq *cq)
{
	struct ibv_wc wc;

	if (!wait_wc_in(cq, &wc, WAIT_MS)) {
		show(key, "nothing came");
		return IBV_WC_GENERAL_ERR;
	}
	show_wc(key, s->conn, &wc);
	return wc.status;
}

/* No completion is there, and none comes with what is still under way. */
static inline void see_no_wc(const char *key, struct rpma_cq *cq)
{
	struct ibv_wc wc;

	show(key, "%s", code_name(rpma_cq_get_wc(cq, 1, &wc, NULL)));
}

#endif
