/*
 * calls.c -- which verbs and connection manager calls each function makes, in
 * which order and with which arguments that matter. The calls are seen by
 * defining their functions here, as a program's symbols come before those of the
 * libraries (it is linked with -rdynamic), and in the tables of the context.
 * Both sides of the connection are in this process.
 */
#include "device.h"
#include <dlfcn.h>
#include <rdma/rdma_cma.h>

/* ---- the record ---- */

static char record[4096];
static int depth; /* what a library calls itself while it does a call is its own business */

__attribute__((format(printf, 1, 2)))
static void note(const char *format, ...)
{
	size_t n = strlen(record);
	va_list args;

	if (depth > 1)
		return;
	va_start(args, format);
	vsnprintf(record + n, sizeof(record) - n, format, args);
	va_end(args);
}

#define TRACE(call) (record[0] = '\0', before(), traced(#call, (call)))

static int traced(const char *call, int ret)
{
	show(call, "%s%s", code_name(ret), record);
	return ret;
}

/* The library's own function of that name. */
static void *real(const char *name)
{
	void *function = dlsym(RTLD_NEXT, name);

	if (function == NULL)
		FAIL("%s", dlerror());
	return function;
}

/* Defines a function that notes what it is told and hands on. */
#define SEEN(type, name, parameters, arguments, ...) \
	type name parameters \
	{ \
		type (*next) parameters = real(#name); \
		type result; \
		depth++; \
		note(" " #name __VA_ARGS__); \
		result = next arguments; \
		depth--; \
		return result; \
	}

#define SEEN_VOID(name, parameters, arguments) \
	void name parameters \
	{ \
		void (*next) parameters = real(#name); \
		depth++; \
		note(" " #name); \
		next arguments; \
		depth--; \
	}

/* ---- connection manager ---- */

SEEN(struct rdma_event_channel *, rdma_create_event_channel, (void), ())
SEEN_VOID(rdma_destroy_event_channel, (struct rdma_event_channel *channel), (channel))
SEEN(int, rdma_create_id, (struct rdma_event_channel *channel, struct rdma_cm_id **id, void *ctx,
		enum rdma_port_space ps), (channel, id, ctx, ps),
		"(%s channel, context %s, port space 0x%x)", channel ? "a" : "no",
		ctx ? "set" : "NULL", ps)
SEEN(int, rdma_destroy_id, (struct rdma_cm_id *id), (id))
SEEN(int, rdma_bind_addr, (struct rdma_cm_id *id, struct sockaddr *a), (id, a))
SEEN(int, rdma_resolve_addr, (struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst,
		int timeout_ms), (id, src, dst, timeout_ms), "(src %s, dst %s, %d ms)",
		src ? "set" : "NULL", dst ? "set" : "NULL", timeout_ms)
SEEN(int, rdma_resolve_route, (struct rdma_cm_id *id, int timeout_ms), (id, timeout_ms),
		"(%d ms)", timeout_ms)
SEEN(int, rdma_listen, (struct rdma_cm_id *id, int backlog), (id, backlog), "(%d)", backlog)
SEEN(int, rdma_reject, (struct rdma_cm_id *id, const void *data, uint8_t len), (id, data, len),
		"(%d bytes)", len)
SEEN(int, rdma_disconnect, (struct rdma_cm_id *id), (id))
SEEN(int, rdma_get_cm_event, (struct rdma_event_channel *channel, struct rdma_cm_event **event),
		(channel, event))
SEEN(int, rdma_ack_cm_event, (struct rdma_cm_event *event), (event))
SEEN(int, rdma_migrate_id, (struct rdma_cm_id *id, struct rdma_event_channel *channel),
		(id, channel))
SEEN_VOID(rdma_destroy_qp, (struct rdma_cm_id *id), (id))
SEEN_VOID(rdma_freeaddrinfo, (struct rdma_addrinfo *info), (info))

static void note_param(const struct rdma_conn_param *p)
{
	if (p == NULL)
		note("(NULL)");
	else
		note("(%d bytes, resources %d, depth %d, flow control %d, retry %d, rnr %d, srq %d)",
				p->private_data_len, p->responder_resources, p->initiator_depth,
				p->flow_control, p->retry_count, p->rnr_retry_count, p->srq);
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	int (*next)(struct rdma_cm_id *, struct rdma_conn_param *) = real("rdma_connect");
	int ret;

	depth++;
	note(" rdma_connect");
	note_param(param);
	ret = next(id, param);
	depth--;
	return ret;
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	int (*next)(struct rdma_cm_id *, struct rdma_conn_param *) = real("rdma_accept");
	int ret;

	depth++;
	note(" rdma_accept");
	note_param(param);
	ret = next(id, param);
	depth--;
	return ret;
}

SEEN(int, rdma_getaddrinfo, (const char *node, const char *service,
		const struct rdma_addrinfo *hints, struct rdma_addrinfo **info),
		(node, service, hints, info),
		"(service %s, flags 0x%x, qp type %d, port space 0x%x)", service ? "set" : "NULL",
		hints->ai_flags, hints->ai_qp_type, hints->ai_port_space)

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	int (*next)(struct rdma_cm_id *, struct ibv_qp_init_attr_ex *) = real("rdma_create_qp_ex");
	int ret;

	depth++;
	note(" rdma_create_qp_ex(sends %u, receives %u, sges %u and %u, inline %u, type %d, "
			"signal all %d, srq %s, context %s, one cq %d, mask 0x%x, operations 0x%jx)",
			attr->cap.max_send_wr, attr->cap.max_recv_wr, attr->cap.max_send_sge,
			attr->cap.max_recv_sge, attr->cap.max_inline_data, attr->qp_type,
			attr->sq_sig_all, attr->srq ? "set" : "NULL",
			attr->qp_context ? "set" : "NULL", attr->send_cq == attr->recv_cq,
			attr->comp_mask, (uintmax_t)attr->send_ops_flags);
	ret = next(id, attr);
	depth--;
	return ret;
}

/* ---- verbs ---- */

/* These may be macros in the header, and are functions in the library. */
#undef ibv_reg_mr

SEEN(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *ctx), (ctx))
SEEN(int, ibv_dealloc_pd, (struct ibv_pd *pd), (pd))
SEEN(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *pd, void *mem, size_t size, int access),
		(pd, mem, size, access), "(%zu bytes, access 0x%x)", size, (unsigned)access)
SEEN(struct ibv_mr *, ibv_reg_mr_iova2, (struct ibv_pd *pd, void *mem, size_t size, uint64_t iova,
		unsigned access), (pd, mem, size, iova, access), "(%zu bytes, access 0x%x)", size,
		access)
SEEN(int, ibv_dereg_mr, (struct ibv_mr *mr), (mr))
SEEN(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *ctx), (ctx))
SEEN(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *channel), (channel))
SEEN(struct ibv_cq *, ibv_create_cq, (struct ibv_context *ctx, int n, void *cq_ctx,
		struct ibv_comp_channel *channel, int vector), (ctx, n, cq_ctx, channel, vector),
		"(%d, context %s, %s channel, vector %d)", n, cq_ctx ? "set" : "NULL",
		channel ? "a" : "no", vector)
SEEN(int, ibv_destroy_cq, (struct ibv_cq *cq), (cq))
SEEN(int, ibv_get_cq_event, (struct ibv_comp_channel *channel, struct ibv_cq **cq, void **ctx),
		(channel, cq, ctx))
SEEN(struct ibv_srq *, ibv_create_srq, (struct ibv_pd *pd, struct ibv_srq_init_attr *attr),
		(pd, attr), "(%u, sge %u, limit %u)", attr->attr.max_wr, attr->attr.max_sge,
		attr->attr.srq_limit)
SEEN(int, ibv_destroy_srq, (struct ibv_srq *srq), (srq))

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	void (*next)(struct ibv_cq *, unsigned) = real("ibv_ack_cq_events");

	depth++;
	note(" ibv_ack_cq_events(%u)", n);
	next(cq, n);
	depth--;
}

/* What the header has inline goes through tables of the context. */
static struct ibv_context_ops ops;
static int (*query_device_ex)(struct ibv_context *ctx, const struct ibv_query_device_ex_input *in,
		struct ibv_device_attr_ex *attr, size_t size);

static int seen_query(struct ibv_context *ctx, const struct ibv_query_device_ex_input *in,
		struct ibv_device_attr_ex *attr, size_t size)
{
	note(" ibv_query_device_ex");
	return query_device_ex(ctx, in, attr, size);
}

static int seen_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	note(" ibv_poll_cq(%d)", n);
	return ops.poll_cq(cq, n, wc);
}

static int seen_notify(struct ibv_cq *cq, int solicited_only)
{
	note(" ibv_req_notify_cq(%d)", solicited_only);
	return ops.req_notify_cq(cq, solicited_only);
}

static int seen_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	note(" ibv_post_send(opcode %d, flags 0x%x, wr_id 0x%jx, sges %d", wr->opcode,
			wr->send_flags, (uintmax_t)wr->wr_id, wr->num_sge);
	if (wr->num_sge > 0)
		note(" of %u", wr->sg_list[0].length);
	/* the operations that have no other side leave these as they are */
	if (wr->opcode == IBV_WR_RDMA_READ || wr->opcode == IBV_WR_RDMA_WRITE ||
			wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		note(", remote %s", wr->wr.rdma.remote_addr != 0 ? "set" : "0");
	if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr->opcode == IBV_WR_SEND_WITH_IMM)
		note(", imm 0x%x in network order", ntohl(wr->imm_data));
	note(wr->next != NULL ? ", and more)" : ")");
	return ops.post_send(qp, wr, bad);
}

static void note_recv(const char *call, const struct ibv_recv_wr *wr)
{
	note(" %s(wr_id 0x%jx, sges %d%s)", call, (uintmax_t)wr->wr_id, wr->num_sge,
			wr->next != NULL ? ", and more" : "");
}

static int seen_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	note_recv("ibv_post_recv", wr);
	return ops.post_recv(qp, wr, bad);
}

static int seen_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	note_recv("ibv_post_srq_recv", wr);
	return ops.post_srq_recv(srq, wr, bad);
}

static void watch_context(void)
{
	struct verbs_context *verbs = verbs_get_ctx(context);

	ops = context->ops;
	query_device_ex = verbs->query_device_ex;
	verbs->query_device_ex = seen_query;
	context->ops.poll_cq = seen_poll;
	context->ops.req_notify_cq = seen_notify;
	context->ops.post_send = seen_send;
	context->ops.post_recv = seen_recv;
	context->ops.post_srq_recv = seen_srq_recv;
}

/* ---- the cases ---- */

static struct rpma_ep *ep;
static struct rpma_mr_local *mr;

static void objects(void)
{
	struct rpma_srq *srq = NULL;
	struct rpma_srq_cfg *cfg = NULL;
	char key[64];

	TRACE(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	TRACE(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE, &context));
	watch_context();
	TRACE(rpma_utils_ibv_context_is_odp_capable(context, OUT));
	TRACE(rpma_peer_new(context, &peer));
	for (int usage = 1; usage <= 0xff; usage <<= 1) {
		if (usage == RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT)
			continue; /* of ordinary memory: a difference of its own */
		snprintf(key, sizeof(key), "mr_reg of usage 0x%02x", (unsigned)usage);
		record[0] = '\0';
		traced(key, rpma_mr_reg(peer, dummy_bytes, 4096, usage, &mr));
		TRACE(rpma_mr_dereg(&mr));
	}
	TRACE(rpma_srq_new(peer, NULL, &srq));
	TRACE(rpma_srq_recv(srq, NULL, 0, 0, OP_CONTEXT));
	TRACE(rpma_srq_delete(&srq));
	MUST(rpma_srq_cfg_new(&cfg));
	MUST(rpma_srq_cfg_set_rcq_size(cfg, 0));
	TRACE(rpma_srq_new(peer, cfg, &srq));
	TRACE(rpma_srq_delete(&srq));
	MUST(rpma_srq_cfg_set_rcq_size(cfg, INT_MAX));
	TRACE(rpma_srq_new(peer, cfg, &srq));
	MUST(rpma_srq_cfg_delete(&cfg));
	TRACE(rpma_peer_delete(&peer));
}

/* From the request to the end, as the configuration arranges it. */
static void life(const struct rpma_conn_cfg *cfg, bool shared_channel)
{
	struct rpma_conn_private_data data = {dummy_bytes, 8};
	struct rpma_conn_req *outgoing = NULL, *incoming = NULL;
	struct rpma_conn *client = NULL, *server = NULL;
	enum rpma_conn_event event;
	struct rpma_cq *cq = NULL;
	int fd;

	TRACE(rpma_conn_req_new(peer, addr, port, cfg, &outgoing));
	TRACE(rpma_conn_req_connect(&outgoing, NULL, &client));
	if (!ep_ready(ep, WAIT_MS))
		FAIL("no request came");
	TRACE(rpma_ep_next_conn_req(ep, cfg, &incoming));
	TRACE(rpma_conn_req_recv(incoming, mr, 0, 8, OP_CONTEXT));
	TRACE(rpma_conn_req_connect(&incoming, &data, &server));
	MUST(rpma_conn_get_event_fd(client, &fd));
	if (!ready(fd, WAIT_MS))
		FAIL("no event came");
	TRACE(rpma_conn_next_event(client, &event));
	expect_event(server, RPMA_CONN_ESTABLISHED);

	TRACE(rpma_send(client, mr, 0, 8, ALWAYS, OP_CONTEXT));
	MUST(rpma_conn_get_cq(client, &cq));
	if (shared_channel) {
		MUST(rpma_conn_get_compl_fd(client, &fd));
		if (!ready(fd, WAIT_MS))
			FAIL("no completion came");
		TRACE(rpma_conn_wait(client, 0, &cq, NULL));
	} else {
		MUST(rpma_cq_get_fd(cq, &fd));
		if (!ready(fd, WAIT_MS))
			FAIL("no completion came");
		TRACE(rpma_cq_wait(cq));
	}
	TRACE(rpma_cq_get_wc(cq, 1, OUT, NULL));
	TRACE(rpma_cq_get_wc(cq, 1, OUT, NULL));

	TRACE(rpma_conn_disconnect(client));
	expect_event(server, RPMA_CONN_CLOSED);
	TRACE(rpma_conn_delete(&client));
	TRACE(rpma_conn_delete(&server));
}

static void connections(void)
{
	struct rpma_conn_cfg *cfg = NULL;
	struct rpma_conn_req *req = NULL;
	struct rpma_ep *second = NULL;

	open_peer();
	watch_context();
	MUST(rpma_mr_reg(peer, dummy_bytes, sizeof(dummy_bytes), USAGE, &mr));
	ep = listen_somewhere();
	show("rpma_ep_listen", "%s", strstr(record, " rdma_create_event_channel"));
	TRACE(rpma_ep_listen(peer, addr, port, &second));

	life(NULL, false);
	MUST(rpma_conn_cfg_new(&cfg));
	MUST(rpma_conn_cfg_set_timeout(cfg, 2345));
	MUST(rpma_conn_cfg_set_cq_size(cfg, 11));
	MUST(rpma_conn_cfg_set_rcq_size(cfg, 12));
	MUST(rpma_conn_cfg_set_sq_size(cfg, 13));
	MUST(rpma_conn_cfg_set_rq_size(cfg, 14));
	life(cfg, false);
	MUST(rpma_conn_cfg_set_compl_channel(cfg, true));
	life(cfg, true);

	/* what was had is given back, the last first */
	TRACE(rpma_conn_req_new(peer, addr, port, cfg, &req));
	TRACE(rpma_conn_req_delete(&req));
	MUST(rpma_conn_cfg_set_rcq_size(cfg, INT_MAX));
	TRACE(rpma_conn_req_new(peer, addr, port, cfg, &req));
	MUST(rpma_conn_cfg_set_rcq_size(cfg, 12));
	MUST(rpma_conn_cfg_set_sq_size(cfg, INT_MAX));
	TRACE(rpma_conn_req_new(peer, addr, port, cfg, &req));
	MUST(rpma_conn_cfg_delete(&cfg));
	TRACE(rpma_conn_req_new(peer, "192.0.2.1", port, NULL, &req));
	TRACE(rpma_conn_req_new(peer, "not an address", port, NULL, &req));

	TRACE(rpma_ep_shutdown(&ep));
	MUST(rpma_mr_dereg(&mr));
	close_peer();
}

/* Clients that are not wanted, or cannot be served: also their ids are to be given back. */
static void refusals(void)
{
	static const struct rpma_conn_private_data too_much = {dummy_bytes, 255};
	struct rpma_conn_req *outgoing = NULL, *incoming = NULL;
	struct rpma_conn *client[3] = {NULL}, *server = NULL;
	struct rpma_conn_cfg *cfg = NULL;

	open_peer();
	watch_context();
	ep = listen_somewhere();
	for (int i = 0; i < 3; i++) {
		MUST(rpma_conn_req_new(peer, addr, port, NULL, &outgoing));
		MUST(rpma_conn_req_connect(&outgoing, NULL, &client[i]));
		if (!ep_ready(ep, WAIT_MS))
			FAIL("no request came");
		if (i == 0) {
			MUST(rpma_ep_next_conn_req(ep, NULL, &incoming));
			DIFF("D3")
				TRACE(rpma_conn_req_delete(&incoming));
		} else if (i == 1) {
			MUST(rpma_conn_cfg_new(&cfg));
			MUST(rpma_conn_cfg_set_rcq_size(cfg, INT_MAX));
			DIFF("D4")
				TRACE(rpma_ep_next_conn_req(ep, cfg, &incoming));
			MUST(rpma_conn_cfg_delete(&cfg));
		} else {
			MUST(rpma_ep_next_conn_req(ep, NULL, &incoming));
			DIFF("D5")
				TRACE(rpma_conn_req_connect(&incoming, &too_much, &server));
		}
		TRACE(rpma_conn_delete(&client[i]));
	}
	MUST(rpma_ep_shutdown(&ep));
	close_peer();
}

/* The work request of each operation. */
static void operations(void)
{
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *client = NULL, *server = NULL;
	struct rpma_mr_remote *remote = NULL;
	struct rpma_conn_cfg *cfg = NULL;
	unsigned char desc[DESC_SIZE];

	open_peer();
	watch_context();
	MUST(rpma_mr_reg(peer, dummy_bytes, sizeof(dummy_bytes), USAGE, &mr));
	MUST(rpma_mr_get_descriptor(mr, desc));
	MUST(rpma_mr_remote_from_descriptor(desc, DESC_SIZE, &remote));
	ep = listen_somewhere();
	MUST(rpma_conn_cfg_new(&cfg));
	MUST(rpma_conn_cfg_set_cq_size(cfg, 100));
	MUST(rpma_conn_cfg_set_sq_size(cfg, 50));
	MUST(rpma_conn_req_new(peer, addr, port, cfg, &req));
	MUST(rpma_conn_req_connect(&req, NULL, &client));
	req = next_req(ep, NULL);
	MUST(rpma_conn_req_connect(&req, NULL, &server));
	expect_event(client, RPMA_CONN_ESTABLISHED);

	TRACE(rpma_read(client, mr, 0, remote, 8, 4, ALWAYS, OP_CONTEXT));
	TRACE(rpma_read(client, mr, 0, remote, 8, 4, ON_ERROR, OP_CONTEXT));
	TRACE(rpma_read(client, mr, 0, remote, 8, 0, ALWAYS, OP_CONTEXT));
	TRACE(rpma_read(client, NULL, 0, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRACE(rpma_write(client, remote, 8, mr, 0, 4, ALWAYS, OP_CONTEXT));
	TRACE(rpma_write(client, remote, 8, mr, 0, 4, ON_ERROR, OP_CONTEXT));
	TRACE(rpma_write(client, remote, 8, mr, 0, 0, ALWAYS, OP_CONTEXT));
	TRACE(rpma_write(client, NULL, 0, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRACE(rpma_write_with_imm(client, remote, 8, mr, 0, 4, ALWAYS, 0x1234, OP_CONTEXT));
	TRACE(rpma_write_with_imm(client, NULL, 0, NULL, 0, 0, ON_ERROR, 0x1234, OP_CONTEXT));
	TRACE(rpma_atomic_write(client, remote, 8, "12345678", ALWAYS, OP_CONTEXT));
	TRACE(rpma_atomic_write(client, remote, 8, "12345678", ON_ERROR, OP_CONTEXT));
	TRACE(rpma_flush(client, remote, 8, 4000, VISIBILITY, ALWAYS, OP_CONTEXT));
	TRACE(rpma_flush(client, remote, 8, 4000, VISIBILITY, ON_ERROR, OP_CONTEXT));
	TRACE(rpma_send(client, mr, 0, 4, ALWAYS, OP_CONTEXT));
	TRACE(rpma_send(client, mr, 0, 0, ON_ERROR, OP_CONTEXT));
	TRACE(rpma_send(client, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRACE(rpma_send_with_imm(client, mr, 0, 4, ALWAYS, 0x1234, OP_CONTEXT));
	TRACE(rpma_send_with_imm(client, NULL, 0, 0, ON_ERROR, 0x1234, OP_CONTEXT));
	TRACE(rpma_recv(client, mr, 0, 4, OP_CONTEXT));
	TRACE(rpma_recv(client, mr, 0, 0, OP_CONTEXT));
	TRACE(rpma_recv(client, NULL, 0, 0, OP_CONTEXT));

	MUST(rpma_conn_delete(&client));
	MUST(rpma_conn_delete(&server));
	MUST(rpma_ep_shutdown(&ep));
	MUST(rpma_mr_remote_delete(&remote));
	MUST(rpma_mr_dereg(&mr));
	MUST(rpma_conn_cfg_delete(&cfg));
	close_peer();
}

static const struct test_case cases[] = {
	{.name = "objects", .run = objects},
	{.name = "connections", .run = connections},
	{.name = "refusals", .run = refusals},
	{.name = "operations", .run = operations},
};

MAIN(cases)
