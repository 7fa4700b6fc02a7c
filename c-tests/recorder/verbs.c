/*
 * verbs.c -- the device and libibverbs, see internal.h.
 */
#include "internal.h"

#include <pthread.h>
#include <stdio.h>

#undef ibv_reg_mr /* a macro around the function */

/* What the headers of rdma-core 44 do not have. */
#define CAP_FLUSH_GLOBAL (1ULL << 38)
#define CAP_FLUSH_PERSISTENT (1ULL << 39)
#define CAP_ATOMIC_WRITE (1ULL << 40)
#define ACCESS_FLUSH_PERSISTENT (1 << 9)
#define WITH_FLUSH (1ULL << 11)
#define WITH_ATOMIC_WRITE (1ULL << 12)
#define WR_ATOMIC_WRITE (offsetof(struct ibv_qp_ex, wr_abort) + sizeof(void *))
#define WR_FLUSH (WR_ATOMIC_WRITE + sizeof(void *))
#define QP_SIZE (WR_FLUSH + sizeof(void *))

/* ---- calls that return an errno ---- */

static const char *zero_or_error(int error)
{
	return now.quiet || error == 0 ? "0" : error_name(error);
}

/*
 * What a call returns that returns its errno, and then leaves another one behind; but not
 * ibv_dealloc_pd, which leaves the same: there the original logs the one that was left.
 */
static int returned(const char *which)
{
	int error = fails(which) ? errno : 0;

	if (strcmp(which, "ibv_dealloc_pd") != 0)
		errno = EXDEV;
	return error;
}

/* A call that returns an errno. */
#define RETURNS(which, ...) \
	do { \
		int error_ = returned(which); \
		call(which __VA_ARGS__, zero_or_error(error_)); \
		return error_; \
	} while (0)

/* ---- what comes next ---- */

static int cq_event;
static bool has_cq_event;
static int polled;

void recorder_cq_event(int cq)
{
	has_cq_event = true;
	cq_event = cq;
}

void recorder_poll(int result)
{
	polled = result;
}

void forget_cq_events(void)
{
	has_cq_event = false;
	polled = 0;
}

/* ---- the device ---- */

/* Keys of 32 bits and numbers of 24, all of which count. */
#define LKEY 0xf1001000
#define RKEY 0xf2002000
#define QP_NUM 0xf00100

static struct ibv_device device;
static struct verbs_context device_context;
#define CONTEXT (&device_context.context)

static const char *context_name(const struct ibv_context *context)
{
	return context == CONTEXT ? "context" : context == NULL ? "NULL" : "(no context)";
}

static int query(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
		struct ibv_device_attr_ex *attr, size_t size)
{
	int error = returned("ibv_query_device_ex");

	call("ibv_query_device_ex(%s, input %s, size %zu) = %s", context_name(context),
			input != NULL ? "given" : "NULL", size, zero_or_error(error));
	if (error != 0)
		return error;
	memset(attr, 0, size);
	if (device_is("atomic"))
		attr->device_cap_flags_ex |= CAP_ATOMIC_WRITE;
	if (device_is("flush"))
		attr->device_cap_flags_ex |= CAP_FLUSH_GLOBAL | CAP_FLUSH_PERSISTENT;
	if (device_is("flush-global"))
		attr->device_cap_flags_ex |= CAP_FLUSH_GLOBAL;
	if (device_is("flush-persistent"))
		attr->device_cap_flags_ex |= CAP_FLUSH_PERSISTENT;
	if (device_is("odp") || device_is("odp-write") || device_is("odp-read"))
		attr->odp_caps.general_caps = IBV_ODP_SUPPORT;
	if (device_is("odp") || device_is("odp-rc") || device_is("odp-write"))
		attr->odp_caps.per_transport_caps.rc_odp_caps |= IBV_ODP_SUPPORT_WRITE;
	if (device_is("odp") || device_is("odp-rc") || device_is("odp-read"))
		attr->odp_caps.per_transport_caps.rc_odp_caps |= IBV_ODP_SUPPORT_READ;
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	int error = returned("ibv_query_device");

	call("ibv_query_device(%s) = %s", context_name(context), zero_or_error(error));
	if (error == 0)
		memset(attr, 0, sizeof(*attr));
	return error;
}

static int advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags,
		struct ibv_sge *sge, uint32_t sges)
{
	if (sges != 1)
		call("!%u ranges", sges);
	RETURNS("ibv_advise_mr", "(%s, advice %u, flags %#x, %s, length %u, lkey %#x) = %s",
			name(PD, pd), advice, flags, place((void *)sge->addr), sge->length, sge->lkey);
}

static const char *send_text(const struct ibv_send_wr *wr)
{
	static const char *const names[] = {
		[IBV_WR_RDMA_WRITE] = "RDMA_WRITE", [IBV_WR_RDMA_WRITE_WITH_IMM] = "RDMA_WRITE_WITH_IMM",
		[IBV_WR_SEND] = "SEND", [IBV_WR_SEND_WITH_IMM] = "SEND_WITH_IMM",
		[IBV_WR_RDMA_READ] = "RDMA_READ",
	};
	static char text[512];
	/* There are providers that take immediate data along whatever the request is. */
	bool imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr->opcode == IBV_WR_SEND_WITH_IMM ||
			wr->imm_data != 0;
	bool remote = wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM;
	size_t n = (size_t)sprintf(text, "%s, wr_id %#lx, flags %#x, next %s",
			wr->opcode < COUNT(names) && names[wr->opcode] ? names[wr->opcode] : "unknown",
			wr->wr_id, wr->send_flags, wr->next == NULL ? "NULL" : "given");

	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *sge = &wr->sg_list[i];
		const void *at = (const void *)sge->addr;

		if (wr->send_flags & IBV_SEND_INLINE)
			n += (size_t)sprintf(text + n, ", data %s", bytes(at, sge->length));
		else
			n += (size_t)sprintf(text + n, ", %s, length %u, lkey %#x", place(at),
					sge->length, sge->lkey);
	}
	if (imm)
		n += (size_t)sprintf(text + n, ", imm %s", bytes(&wr->imm_data, 4));
	if (remote)
		sprintf(text + n, ", to %#lx, rkey %#x", wr->wr.rdma.remote_addr, wr->wr.rdma.rkey);
	return text;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int error = returned("ibv_post_send");

	if (!now.quiet)
		call("ibv_post_send(%s, %s) = %s", name(QP, qp), send_text(wr), zero_or_error(error));
	if (error != 0)
		*bad = wr;
	return error;
}

static const char *recv_text(const struct ibv_recv_wr *wr)
{
	static char text[512];
	size_t n = (size_t)sprintf(text, "wr_id %#lx, next %s", wr->wr_id,
			wr->next == NULL ? "NULL" : "given");

	for (int i = 0; i < wr->num_sge; i++)
		n += (size_t)sprintf(text + n, ", %s, length %u, lkey %#x",
				place((const void *)wr->sg_list[i].addr), wr->sg_list[i].length,
				wr->sg_list[i].lkey);
	return text;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error = returned("ibv_post_recv");

	if (!now.quiet)
		call("ibv_post_recv(%s, %s) = %s", name(QP, qp), recv_text(wr), zero_or_error(error));
	if (error != 0)
		*bad = wr;
	return error;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int error = returned("ibv_post_srq_recv");

	if (!now.quiet)
		call("ibv_post_srq_recv(%s, %s) = %s", name(SRQ, srq), recv_text(wr),
				zero_or_error(error));
	if (error != 0)
		*bad = wr;
	return error;
}

/* It says no more of a failure than that there was one. */
static int poll_cq(struct ibv_cq *cq, int entries, struct ibv_wc *wc)
{
	int result = fails("ibv_poll_cq") ? -1 : polled;

	for (int i = 0; i < result && i < entries; i++)
		wc[i] = (struct ibv_wc){
			.wr_id = 0x1000 + (unsigned)i, .status = IBV_WC_REM_ACCESS_ERR, .byte_len = 77,
		};
	call("ibv_poll_cq(%s, %d) = %d", name(CQ, cq), entries, result);
	return result;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	RETURNS("ibv_req_notify_cq", "(%s, solicited %d) = %s", name(CQ, cq), solicited);
}

__attribute__((constructor))
static void make_device(void)
{
	strcpy(device.name, "recorder0");
	CONTEXT->device = &device;
	CONTEXT->ops.post_send = post_send;
	CONTEXT->ops.post_recv = post_recv;
	CONTEXT->ops.post_srq_recv = post_srq_recv;
	CONTEXT->ops.poll_cq = poll_cq;
	CONTEXT->ops.req_notify_cq = req_notify_cq;
	device_context.query_device_ex = query;
	device_context.advise_mr = advise;
}

struct ibv_context *recorder_device(void)
{
	return device_is("none") ? NULL : CONTEXT;
}

/* The functions that a table of extended ones has from this one on; those before it came later. */
#define FROM(function) (sizeof(struct verbs_context) - offsetof(struct verbs_context, function))

void recorder_change(const char *words)
{
	snprintf(now.device, sizeof(now.device), "%s", words);
	device.transport_type = device_is("iwarp") ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	CONTEXT->abi_compat = device_is("old") ? NULL : __VERBS_ABI_IS_EXTENDED;
	device_context.sz = device_is("no-query") ? FROM(query_device_ex) - sizeof(void *) :
			device_is("no-advice") ? FROM(advise_mr) - sizeof(void *) :
			sizeof(device_context);
}

/* ---- libibverbs ---- */

/* A call that ends an object and returns an errno: if it fails the object stays. */
#define UNMAKE(kind, object, which) \
	do { \
		int error_ = returned(which); \
		call(which "(%s) = %s", name(kind, object), zero_or_error(error_)); \
		if (error_ == 0) \
			unmake(kind, object); \
		return error_; \
	} while (0)

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = MAKE(PD, struct ibv_pd, "ibv_alloc_pd");

	if (pd != NULL)
		pd->context = context;
	call("ibv_alloc_pd(%s) = %s", context_name(context), made(PD, pd));
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	UNMAKE(PD, pd, "ibv_dealloc_pd");
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	bool failed = fails("ibv_reg_mr");
	struct ibv_mr *mr = NULL;

	if (!failed && device_is("paged") && !(access & IBV_ACCESS_ON_DEMAND)) {
		failed = true;
		errno = EOPNOTSUPP;
	}
	if (!failed && device_is("volatile") && (access & ACCESS_FLUSH_PERSISTENT)) {
		failed = true;
		errno = EINVAL;
	}
	if (!failed && device_is("full")) {
		failed = true;
		errno = ENOMEM;
	}
	if (!failed)
		mr = make(MR, sizeof(*mr));
	if (mr != NULL)
		*mr = (struct ibv_mr){
			.context = CONTEXT, .pd = pd, .addr = addr, .length = length,
			.lkey = LKEY + (unsigned)number(MR, mr),
			.rkey = RKEY + (unsigned)number(MR, mr),
		};
	call("ibv_reg_mr(%s, %s, %zu, access %#x) = %s", name(PD, pd), place(addr), length,
			(unsigned)access, made(MR, mr));
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	UNMAKE(MR, mr, "ibv_dereg_mr");
}

struct channel {
	struct ibv_comp_channel channel;
	struct ibv_cq *cq; /* the last one made on it */
};

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct channel *channel = MAKE(CHANNEL, struct channel, "ibv_create_comp_channel");

	if (channel != NULL) {
		channel->channel.context = context;
		channel->channel.fd = 100 + number(CHANNEL, channel);
	}
	call("ibv_create_comp_channel(%s) = %s", context_name(context), made(CHANNEL, channel));
	return (struct ibv_comp_channel *)channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	UNMAKE(CHANNEL, channel, "ibv_destroy_comp_channel");
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
		struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = MAKE(CQ, struct ibv_cq, "ibv_create_cq");

	if (cq != NULL) {
		cq->context = context;
		cq->channel = channel;
		cq->cqe = cqe;
		((struct channel *)channel)->cq = cq;
	}
	call("ibv_create_cq(%s, %d, context %s, %s, vector %d) = %s", context_name(context), cqe,
			place(cq_context), name(CHANNEL, channel), vector, made(CQ, cq));
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	UNMAKE(CQ, cq, "ibv_destroy_cq");
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	bool failed = fails("ibv_get_cq_event");
	static struct ibv_cq unknown;

	if (!failed && !now.quiet && !has_cq_event) {
		failed = true;
		errno = EAGAIN;
	}
	if (!failed) {
		*cq = now.quiet ? ((struct channel *)channel)->cq : &unknown;
		*cq_context = NULL;
		EACH_ALIVE(o)
			if (o->kind == CQ && o->number == cq_event)
				*cq = (struct ibv_cq *)o->at;
		if (!now.quiet)
			has_cq_event = false;
	}
	call("ibv_get_cq_event(%s) = %s%s%s", name(CHANNEL, channel), minus_one(failed),
			failed ? "" : " ", failed ? "" : name(CQ, *cq));
	return failed ? -1 : 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events)
{
	call("ibv_ack_cq_events(%s, %u)", name(CQ, cq), events);
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct ibv_srq *srq = MAKE(SRQ, struct ibv_srq, "ibv_create_srq");

	if (srq != NULL) {
		srq->context = CONTEXT;
		srq->pd = pd;
	}
	call("ibv_create_srq(%s, context %s, max_wr %u, max_sge %u, limit %u) = %s", name(PD, pd),
			place(attr->srq_context), attr->attr.max_wr, attr->attr.max_sge,
			attr->attr.srq_limit, made(SRQ, srq));
	return srq;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	UNMAKE(SRQ, srq, "ibv_destroy_srq");
}

/* ---- the extended interface of a QP ---- */

/* From the beginning of an operation to its end a QP is one thread's, as providers see to. */
static pthread_mutex_t *lock_of(struct ibv_qp_ex *qp)
{
	return (pthread_mutex_t *)((char *)qp + QP_SIZE);
}

static void wr_start(struct ibv_qp_ex *qp)
{
	call("wr_start(%s)", name(QP, qp));
	if (now.quiet)
		pthread_mutex_lock(lock_of(qp));
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	if (now.quiet)
		pthread_mutex_unlock(lock_of(qp));
	RETURNS("wr_complete", "(%s) = %s", name(QP, qp));
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	call("wr_abort(%s)", name(QP, qp));
	if (now.quiet)
		pthread_mutex_unlock(lock_of(qp));
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, const void *data)
{
	call("wr_atomic_write(%s, wr_id %#lx, flags %#x, to %#lx, rkey %#x, data %s)", name(QP, qp),
			qp->wr_id, qp->wr_flags, addr, rkey, bytes(data, 8));
}

static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
		uint8_t level)
{
	call("wr_flush(%s, wr_id %#lx, flags %#x, to %#lx, rkey %#x, length %zu, type %u, level %u)",
			name(QP, qp), qp->wr_id, qp->wr_flags, addr, rkey, len, type, level);
}

/* Another view of a QP: it does not fail, but may not be there. */
struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct ibv_qp_ex *ex = (struct ibv_qp_ex *)qp;

	if (ex->wr_start == NULL)
		ex = NULL;
	call("ibv_qp_to_qp_ex(%s) = %s", name(QP, qp), ex == NULL ? "NULL" : "given");
	return ex;
}

/* Sets a member that not all headers have. */
static void set_op(struct ibv_qp_ex *qp, size_t at, void (*op)(void))
{
	memcpy((char *)qp + at, &op, sizeof(op));
}

struct ibv_qp *make_qp(struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr)
{
	bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	uint64_t ops = extended ? attr->send_ops_flags : 0;
	struct ibv_qp_ex *qp;

	if ((device_is("refuse-flush") && (ops & WITH_FLUSH)) ||
			(device_is("refuse-ops") && extended)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	qp = make(QP, QP_SIZE + sizeof(pthread_mutex_t));
	pthread_mutex_init(lock_of((struct ibv_qp_ex *)qp), NULL);
	qp->qp_base.context = context;
	qp->qp_base.qp_num = QP_NUM + (unsigned)number(QP, qp);
	if (extended && !device_is("no-extension")) {
		qp->wr_start = wr_start;
		qp->wr_complete = wr_complete;
		qp->wr_abort = wr_abort;
		if (ops & WITH_ATOMIC_WRITE)
			set_op(qp, WR_ATOMIC_WRITE, (void (*)(void))wr_atomic_write);
		if (ops & WITH_FLUSH)
			set_op(qp, WR_FLUSH, (void (*)(void))wr_flush);
	}
	return &qp->qp_base;
}
