/*
 * What an operation costs: instructions a call, over a device that does nothing.
 *
 * Run under callgrind, which writes one profile an operation, named by it. The verbs and
 * rdma_cm functions that a library calls are those of this program, which is searched before
 * libibverbs and librdmacm.
 *
 *     cost library    the functions of librpma, without native operations
 *     cost native     those that use native operations, with them
 *     cost floor      the same requests, posted by hand
 */
#include <librpma.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

#define CALLS 1000

/* Where wr_flush is, which not all headers have. */
#define WR_FLUSH (offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof(void *))

typedef void flush_fn(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
		uint8_t level);

static bool native;

static struct ibv_device device;
static struct verbs_context device_context;
static struct ibv_context *const context = &device_context.context;
static struct ibv_pd pd = {.context = &device_context.context};
static struct ibv_mr mr = {.context = &device_context.context, .pd = &pd, .lkey = 1, .rkey = 2};
static struct ibv_comp_channel channel = {.context = &device_context.context};
static struct ibv_cq cq = {.context = &device_context.context, .channel = &channel};
static struct ibv_srq srq = {.context = &device_context.context};
static struct rdma_event_channel events;
static struct rdma_cm_id id;
static struct rdma_addrinfo address;
static union {
	struct ibv_qp qp;
	struct ibv_qp_ex ex;
	char room[WR_FLUSH + sizeof(flush_fn *)];
} qp;

/* The device. */

static int
post_send(struct ibv_qp *on, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)on, (void)wr, (void)bad;
	return 0;
}

static int
post_recv(struct ibv_qp *on, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)on, (void)wr, (void)bad;
	return 0;
}

static int
post_srq_recv(struct ibv_srq *on, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)on, (void)wr, (void)bad;
	return 0;
}

static int
poll_cq(struct ibv_cq *on, int entries, struct ibv_wc *wc)
{
	(void)on, (void)entries, (void)wc;
	return 1;
}

static int
req_notify_cq(struct ibv_cq *on, int solicited)
{
	(void)on, (void)solicited;
	return 0;
}

static int
query_device(struct ibv_context *of, const struct ibv_query_device_ex_input *input,
		struct ibv_device_attr_ex *attr, size_t size)
{
	(void)of, (void)input;
	memset(attr, 0, size);
	attr->device_cap_flags_ex = native ? 7ULL << 38 : 0;
	return 0;
}

static void
wr_start(struct ibv_qp_ex *on)
{
	(void)on;
}

static int
wr_complete(struct ibv_qp_ex *on)
{
	(void)on;
	return 0;
}

static void
wr_atomic_write(struct ibv_qp_ex *on, uint32_t rkey, uint64_t addr, const void *data)
{
	(void)on, (void)rkey, (void)addr, (void)data;
}

static void
wr_flush(struct ibv_qp_ex *on, uint32_t rkey, uint64_t addr, size_t len, uint8_t type,
		uint8_t level)
{
	(void)on, (void)rkey, (void)addr, (void)len, (void)type, (void)level;
}

static void
make_device(void)
{
	device.transport_type = IBV_TRANSPORT_IB;
	context->device = &device;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	device_context.sz = sizeof(device_context);
	device_context.query_device_ex = query_device;
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	context->ops.post_srq_recv = post_srq_recv;
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	qp.qp.context = context;
	qp.ex.wr_start = wr_start;
	qp.ex.wr_complete = wr_complete;
	if (native) {
		flush_fn *flush = wr_flush;
		qp.ex.wr_atomic_write = wr_atomic_write;
		memcpy(qp.room + WR_FLUSH, &flush, sizeof(flush));
	}
	id.verbs = context;
}

/* What libibverbs and librdmacm have as functions, as far as a library calls it. */

#undef ibv_reg_mr
#define STAND_IN __attribute__((visibility("default")))
#define ANSWER(type, name, parameters, result) \
	STAND_IN type name parameters; \
	STAND_IN type name parameters { return result; }

#pragma GCC diagnostic ignored "-Wunused-parameter"
ANSWER(struct ibv_pd *, ibv_alloc_pd, (struct ibv_context *on), &pd)
ANSWER(int, ibv_dealloc_pd, (struct ibv_pd *it), 0)
ANSWER(struct ibv_mr *, ibv_reg_mr, (struct ibv_pd *in, void *at, size_t size, int access), &mr)
ANSWER(int, ibv_dereg_mr, (struct ibv_mr *it), 0)
ANSWER(struct ibv_comp_channel *, ibv_create_comp_channel, (struct ibv_context *on), &channel)
ANSWER(int, ibv_destroy_comp_channel, (struct ibv_comp_channel *it), 0)
ANSWER(struct ibv_cq *, ibv_create_cq, (struct ibv_context *on, int size, void *arg,
		struct ibv_comp_channel *to, int vector), &cq)
ANSWER(int, ibv_destroy_cq, (struct ibv_cq *it), 0)
ANSWER(struct ibv_srq *, ibv_create_srq, (struct ibv_pd *in, struct ibv_srq_init_attr *attr), &srq)
ANSWER(int, ibv_destroy_srq, (struct ibv_srq *it), 0)
ANSWER(int, ibv_get_cq_event, (struct ibv_comp_channel *on, struct ibv_cq **of, void **arg),
		(*of = &cq, 0))
STAND_IN void
ibv_ack_cq_events(struct ibv_cq *of, unsigned int events)
{
}
ANSWER(struct ibv_qp_ex *, ibv_qp_to_qp_ex, (struct ibv_qp *of), &qp.ex)
ANSWER(int, rdma_getaddrinfo, (const char *node, const char *service,
		const struct rdma_addrinfo *hints, struct rdma_addrinfo **found),
		(*found = &address, 0))
STAND_IN void
rdma_freeaddrinfo(struct rdma_addrinfo *it)
{
}
ANSWER(struct rdma_event_channel *, rdma_create_event_channel, (void), &events)
STAND_IN void
rdma_destroy_event_channel(struct rdma_event_channel *it)
{
}
ANSWER(int, rdma_create_id, (struct rdma_event_channel *on, struct rdma_cm_id **it, void *arg,
		enum rdma_port_space in), (*it = &id, 0))
ANSWER(int, rdma_destroy_id, (struct rdma_cm_id *it), 0)
ANSWER(int, rdma_migrate_id, (struct rdma_cm_id *it, struct rdma_event_channel *to), 0)
ANSWER(int, rdma_resolve_addr, (struct rdma_cm_id *it, struct sockaddr *from, struct sockaddr *to,
		int ms), 0)
ANSWER(int, rdma_resolve_route, (struct rdma_cm_id *it, int ms), 0)
ANSWER(int, rdma_create_qp_ex, (struct rdma_cm_id *it, struct ibv_qp_init_attr_ex *attr),
		(it->qp = &qp.qp, 0))
STAND_IN void
rdma_destroy_qp(struct rdma_cm_id *it)
{
}
ANSWER(int, rdma_connect, (struct rdma_cm_id *it, struct rdma_conn_param *param), 0)
#pragma GCC diagnostic warning "-Wunused-parameter"

/* The measurement. */

static void
check(int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "cost: %s failed\n", what);
		exit(1);
	}
}

#define CHECK(call) check((call) == 0, #call)

/* Once to have the symbols bound, then what is counted. */
#define MEASURE(name, call) \
	do { \
		CHECK(call); \
		int result = 0; \
		CALLGRIND_ZERO_STATS; \
		for (int i = 0; i < CALLS; i++) \
			result |= (call); \
		CALLGRIND_DUMP_STATS_AT(name); \
		CHECK(result); \
	} while (0)

static char memory[4096];
static void *volatile op_context = memory;
#define ALWAYS RPMA_F_COMPLETION_ALWAYS

static void
library(void)
{
	struct rpma_peer *peer = NULL;
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;
	struct rpma_mr_local *local = NULL;
	struct rpma_mr_remote *remote = NULL;
	struct rpma_cq *main_cq = NULL;
	struct rpma_srq *shared = NULL;
	struct ibv_wc wc;
	int got;
	char descriptor[64];
	size_t size = 0;

	CHECK(rpma_peer_new(context, &peer));
	CHECK(rpma_conn_req_new(peer, "address", "port", NULL, &req));
	CHECK(rpma_conn_req_connect(&req, NULL, &conn));
	CHECK(rpma_mr_reg(peer, memory, sizeof(memory), 0xff, &local));
	CHECK(rpma_mr_get_descriptor_size(local, &size));
	CHECK(rpma_mr_get_descriptor(local, descriptor));
	CHECK(rpma_mr_remote_from_descriptor(descriptor, size, &remote));
	CHECK(rpma_conn_get_cq(conn, &main_cq));
	CHECK(rpma_srq_new(peer, NULL, &shared));

	if (native) {
		MEASURE("atomic_write, native",
			rpma_atomic_write(conn, remote, 8, memory, ALWAYS, op_context));
		MEASURE("flush, native", rpma_flush(conn, remote, 8, 64,
			RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, op_context));
	} else {
		MEASURE("read", rpma_read(conn, local, 8, remote, 16, 64, ALWAYS, op_context));
		MEASURE("write", rpma_write(conn, remote, 8, local, 16, 64, ALWAYS, op_context));
		MEASURE("write_with_imm", rpma_write_with_imm(conn, remote, 8, local, 16, 64,
			ALWAYS, 42, op_context));
		MEASURE("atomic_write",
			rpma_atomic_write(conn, remote, 8, memory, ALWAYS, op_context));
		MEASURE("flush", rpma_flush(conn, remote, 8, 64, RPMA_FLUSH_TYPE_VISIBILITY,
			ALWAYS, op_context));
		MEASURE("send", rpma_send(conn, local, 8, 64, ALWAYS, op_context));
		MEASURE("send_with_imm",
			rpma_send_with_imm(conn, local, 8, 64, ALWAYS, 42, op_context));
		MEASURE("recv", rpma_recv(conn, local, 8, 64, op_context));
		MEASURE("srq_recv", rpma_srq_recv(shared, local, 8, 64, op_context));
		MEASURE("cq_get_wc", rpma_cq_get_wc(main_cq, 1, &wc, &got));
		MEASURE("cq_wait", rpma_cq_wait(main_cq));
	}

	CHECK(rpma_srq_delete(&shared));
	CHECK(rpma_mr_remote_delete(&remote));
	CHECK(rpma_mr_dereg(&local));
	CHECK(rpma_conn_delete(&conn));
	CHECK(rpma_peer_delete(&peer));
}

/* By hand: what a program has in librpma's place that knows no more than verbs. */

#define BY_HAND static __attribute__((noinline)) int
#define WITHIN static inline __attribute__((always_inline)) int

struct far_mr {
	uint64_t addr;
	uint32_t rkey;
};

WITHIN
post(struct ibv_qp *on, enum ibv_wr_opcode opcode, unsigned int flags, const struct ibv_mr *src,
		size_t offset, size_t len, const struct far_mr *dst, size_t dst_offset, uint32_t imm,
		void *arg)
{
	struct ibv_sge sge = {.addr = (uint64_t)src->addr + offset, .length = len, .lkey = src->lkey};
	struct ibv_send_wr wr, *bad;

	wr.wr_id = (uint64_t)arg;
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.opcode = opcode;
	wr.send_flags = flags;
	if (opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr.imm_data = htobe32(imm);
	if (dst != NULL) {
		wr.wr.rdma.remote_addr = dst->addr + dst_offset;
		wr.wr.rdma.rkey = dst->rkey;
	}
	return ibv_post_send(on, &wr, &bad);
}

BY_HAND
hand_read(struct ibv_qp *on, struct ibv_mr *dst, size_t dst_offset, struct far_mr *src,
		size_t src_offset, size_t len, void *arg)
{
	return post(on, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, dst, dst_offset, len, src, src_offset, 0,
			arg);
}

BY_HAND
hand_write(struct ibv_qp *on, struct far_mr *dst, size_t dst_offset, struct ibv_mr *src,
		size_t src_offset, size_t len, void *arg)
{
	return post(on, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED, src, src_offset, len, dst, dst_offset, 0,
			arg);
}

BY_HAND
hand_write_with_imm(struct ibv_qp *on, struct far_mr *dst, size_t dst_offset, struct ibv_mr *src,
		size_t src_offset, size_t len, uint32_t imm, void *arg)
{
	return post(on, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_SEND_SIGNALED, src, src_offset, len, dst,
			dst_offset, imm, arg);
}

BY_HAND
hand_atomic_write(struct ibv_qp *on, struct far_mr *dst, size_t dst_offset, void *src, void *arg)
{
	const struct ibv_mr inlined = {.addr = src};

	return post(on, IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED | IBV_SEND_INLINE | IBV_SEND_FENCE,
			&inlined, 0, 8, dst, dst_offset, 0, arg);
}

BY_HAND
hand_flush(struct ibv_qp *on, struct far_mr *dst, size_t dst_offset, struct ibv_mr *buffer, void *arg)
{
	return post(on, IBV_WR_RDMA_READ, IBV_SEND_SIGNALED, buffer, 0, 8, dst, dst_offset, 0, arg);
}

BY_HAND
hand_send(struct ibv_qp *on, struct ibv_mr *src, size_t offset, size_t len, void *arg)
{
	return post(on, IBV_WR_SEND, IBV_SEND_SIGNALED, src, offset, len, NULL, 0, 0, arg);
}

BY_HAND
hand_send_with_imm(struct ibv_qp *on, struct ibv_mr *src, size_t offset, size_t len, uint32_t imm,
		void *arg)
{
	return post(on, IBV_WR_SEND_WITH_IMM, IBV_SEND_SIGNALED, src, offset, len, NULL, 0, imm, arg);
}

WITHIN
take(struct ibv_qp *on, struct ibv_srq *of, struct ibv_mr *dst, size_t offset, size_t len, void *arg)
{
	struct ibv_sge sge = {.addr = (uint64_t)dst->addr + offset, .length = len, .lkey = dst->lkey};
	struct ibv_recv_wr wr = {.wr_id = (uint64_t)arg, .sg_list = &sge, .num_sge = 1}, *bad;

	return of ? ibv_post_srq_recv(of, &wr, &bad) : ibv_post_recv(on, &wr, &bad);
}

BY_HAND
hand_recv(struct ibv_qp *on, struct ibv_mr *dst, size_t offset, size_t len, void *arg)
{
	return take(on, NULL, dst, offset, len, arg);
}

BY_HAND
hand_srq_recv(struct ibv_srq *of, struct ibv_mr *dst, size_t offset, size_t len, void *arg)
{
	return take(NULL, of, dst, offset, len, arg);
}

BY_HAND
hand_poll(struct ibv_cq *of, struct ibv_wc *wc)
{
	return ibv_poll_cq(of, 1, wc);
}

BY_HAND
hand_wait(struct ibv_comp_channel *on)
{
	struct ibv_cq *of;
	void *arg;

	if (ibv_get_cq_event(on, &of, &arg))
		return -1;
	ibv_ack_cq_events(of, 1);
	return ibv_req_notify_cq(of, 0);
}

BY_HAND
hand_atomic_write_native(struct ibv_qp_ex *on, struct far_mr *dst, size_t dst_offset, void *src,
		void *arg)
{
	on->wr_start(on);
	on->wr_id = (uint64_t)arg;
	on->wr_flags = IBV_SEND_SIGNALED;
	on->wr_atomic_write(on, dst->rkey, dst->addr + dst_offset, src);
	return on->wr_complete(on);
}

BY_HAND
hand_flush_native(struct ibv_qp_ex *on, struct far_mr *dst, size_t dst_offset, size_t len, void *arg)
{
	flush_fn *flush;

	on->wr_start(on);
	on->wr_id = (uint64_t)arg;
	on->wr_flags = IBV_SEND_SIGNALED;
	memcpy(&flush, (char *)on + WR_FLUSH, sizeof(flush));
	flush(on, dst->rkey, dst->addr + dst_offset, len, 1, 0);
	return on->wr_complete(on);
}

static void
by_hand(void)
{
	struct far_mr far = {0x1000, 2};
	struct ibv_wc wc;

	mr.addr = memory;
	MEASURE("read", hand_read(&qp.qp, &mr, 8, &far, 16, 64, op_context));
	MEASURE("write", hand_write(&qp.qp, &far, 8, &mr, 16, 64, op_context));
	MEASURE("write_with_imm",
		hand_write_with_imm(&qp.qp, &far, 8, &mr, 16, 64, 42, op_context));
	MEASURE("atomic_write", hand_atomic_write(&qp.qp, &far, 8, memory, op_context));
	MEASURE("flush", hand_flush(&qp.qp, &far, 8, &mr, op_context));
	MEASURE("send", hand_send(&qp.qp, &mr, 8, 64, op_context));
	MEASURE("send_with_imm", hand_send_with_imm(&qp.qp, &mr, 8, 64, 42, op_context));
	MEASURE("recv", hand_recv(&qp.qp, &mr, 8, 64, op_context));
	MEASURE("srq_recv", hand_srq_recv(&srq, &mr, 8, 64, op_context));
	MEASURE("cq_get_wc", hand_poll(&cq, &wc) - 1);
	MEASURE("cq_wait", hand_wait(&channel));
	MEASURE("atomic_write, native",
		hand_atomic_write_native(&qp.ex, &far, 8, memory, op_context));
	MEASURE("flush, native", hand_flush_native(&qp.ex, &far, 8, 64, op_context));
}

int
main(int argc, char *argv[])
{
	const char *what = argc == 2 ? argv[1] : "";

	native = strcmp(what, "library") != 0;
	make_device();
	if (strcmp(what, "floor") == 0) {
		by_hand();
	} else if (strcmp(what, "library") == 0 || strcmp(what, "native") == 0) {
		library();
	} else {
		fprintf(stderr, "usage: %s library|native|floor\n", argv[0]);
		return 2;
	}
	return 0;
}
