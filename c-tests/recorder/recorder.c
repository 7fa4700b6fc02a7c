/*
 * recorder.c -- see recorder.h.
 */
#define _GNU_SOURCE
#include "recorder.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#undef ibv_reg_mr /* a macro around the function */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

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

/* ---- the state ---- */

enum kind { PD, MR, CHANNEL, CQ, SRQ, QP, ID, EVENTS, EVENT, INFO, PAGE, KINDS };

static const char *const kind_names[] = {
	"pd", "mr", "channel", "cq", "srq", "qp", "id", "events", "event", "info", "page",
};

struct object {
	enum kind kind;
	int number;
	bool alive;
	const void *at;
};

struct queued {
	enum rdma_cm_event_type event;
	bool has_data;
	size_t len;
	unsigned char data[256];
};

struct memory {
	const char *name;
	const char *start;
	size_t size;
};

static struct {
	char device[128];
	struct fault fault;
	bool quiet;
	bool written; /* the call of the interface that is being made is, and may fail */
	bool broken;  /* all that can fail does */
	int api;
	struct object object[512];
	size_t objects;
	int made[KINDS];
	struct queued cm[16];
	size_t cm_first, cm_end;
	int cq_event;
	bool has_cq_event;
	int poll;
	struct memory memory[8];
	size_t memories;
} now;

static struct recorder_trace own_trace;
struct recorder_trace *recorder_trace = &own_trace;
volatile bool recorder_watching;

static bool device_is(const char *word)
{
	return is_word_of(now.device, word);
}

/* ---- the trace ---- */

static void write_line(const char *format, va_list args)
{
	struct recorder_trace *trace = recorder_trace;
	size_t room = sizeof(trace->text) - trace->length - 1;
	int n = vsnprintf(trace->text + trace->length, room, format, args);

	if (n < 0 || (size_t)n >= room)
		abort();
	trace->length += (size_t)n;
	trace->text[trace->length++] = '\n';
}

void recorder_line(const char *format, ...)
{
	va_list args;

	if (now.quiet)
		return;
	va_start(args, format);
	write_line(format, args);
	va_end(args);
}

/* A call that was made; errno is what it has to be afterwards. */
__attribute__((format(printf, 1, 2)))
static void call(const char *format, ...)
{
	int error = errno;
	va_list args;

	if (!now.written)
		return;
	va_start(args, format);
	write_line(format, args);
	va_end(args);
	errno = error;
}

#define ROOM (2 * UINT8_MAX + 1)

static char *room(void)
{
	static char text[32][ROOM];
	static int turn;

	return text[turn = (turn + 1) % COUNT(text)];
}

static const char *error_name(int error)
{
	char *to = room();
	const char *name = strerrorname_np(error);

	if (error < 0)
		snprintf(to, ROOM, "EAI %d", error);
	else
		snprintf(to, ROOM, "%s", name != NULL && error != 0 ? name : "no errno");
	return to;
}

/* ---- the objects ---- */

static struct object *find(enum kind kind, const void *at)
{
	struct object *dead = NULL;

	for (size_t i = now.objects; i-- > 0;) {
		struct object *o = &now.object[i];

		if (o->kind != kind || o->at != at)
			continue;
		if (o->alive)
			return o;
		if (dead == NULL)
			dead = o;
	}
	return dead;
}

static const char *name(enum kind kind, const void *at)
{
	struct object *o;
	char *to;

	if (now.quiet)
		return "";
	if (at == NULL)
		return "NULL";
	o = find(kind, at);
	to = room();
	if (o == NULL)
		snprintf(to, ROOM, "(no %s)", kind_names[kind]);
	else
		snprintf(to, ROOM, "%s%d%s", kind_names[kind], o->number, o->alive ? "" : "(gone)");
	return to;
}

static int number(enum kind kind, const void *at)
{
	struct object *o = now.quiet ? NULL : find(kind, at);

	return o != NULL ? o->number : 0;
}

static void add(enum kind kind, const void *at)
{
	if (now.quiet)
		return;
	if (now.objects == COUNT(now.object))
		abort();
	now.object[now.objects++] = (struct object){
		.kind = kind, .number = now.made[kind]++, .alive = true, .at = at,
	};
}

static void *make(enum kind kind, size_t size)
{
	bool watching = recorder_watching;
	void *made;

	if (now.quiet)
		return calloc(1, size);
	recorder_watching = false;
	made = calloc(1, size);
	recorder_watching = watching;
	if (made == NULL)
		abort();
	add(kind, made);
	return made;
}

/* Its memory goes with it, so that whoever reads it afterwards can be told. */
static void unmake(enum kind kind, void *at)
{
	struct object *o;

	if (now.quiet) {
		free(at);
		return;
	}
	o = find(kind, at);
	if (o == NULL || !o->alive)
		return;
	o->alive = false;
	if (kind != PAGE)
		free(at);
}

const char *recorder_alive(void)
{
	static char text[4096];
	size_t n = 0;

	strcpy(text, "-");
	for (size_t i = 0; i < now.objects; i++)
		if (now.object[i].alive)
			n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s%d", n ? " " : "",
					kind_names[now.object[i].kind], now.object[i].number);
	return text;
}

/* ---- failing ---- */

/*
 * Whether the call that is being made fails; then with the errno of the fault, which is left alone if
 * that is 0. After a call that works errno means nothing.
 */
static bool fails(const char *which)
{
	struct recorder_trace *trace = recorder_trace;
	int nth = 1;

	if (!now.written)
		return false;
	for (int i = trace->points; i-- > 0 && trace->point[i].api == now.api;)
		nth += strcmp(trace->point[i].call, which) == 0;
	if (trace->points == POINTS_MAX)
		abort();
	trace->point[trace->points++] = (struct fault_point){
		.api = now.api, .nth = nth, .call = which,
	};
	if (now.broken || (now.fault.api == now.api && now.fault.nth == nth &&
			strcmp(now.fault.call, which) == 0)) {
		now.broken = now.fault.on;
		if (now.fault.error != 0)
			errno = now.fault.error < 0 ? EIO : now.fault.error;
		return true;
	}
	errno = EXDEV;
	return false;
}

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

/* The value of a call that gives -1 and sets errno. */
static const char *minus_one(bool failed)
{
	char *to;

	if (now.quiet || !failed)
		return "0";
	to = room();
	snprintf(to, ROOM, "-1 %s", error_name(errno));
	return to;
}

/* The value of a call that gives an object, or NULL and sets errno. */
static const char *made(enum kind kind, const void *at)
{
	char *to;

	if (now.quiet || at != NULL)
		return name(kind, at);
	to = room();
	snprintf(to, ROOM, "NULL %s", error_name(errno));
	return to;
}

bool recorder_fails(const char *which)
{
	int error = errno;
	bool failed = recorder_watching && fails(which);

	if (!failed)
		errno = error;
	return failed;
}

void recorder_begin(const char *device, const struct fault *fault)
{
	for (size_t i = 0; i < now.objects; i++)
		if (now.object[i].alive && now.object[i].kind != PAGE)
			free((void *)now.object[i].at);
	memset(&now, 0, sizeof(now));
	recorder_change(device);
	now.quiet = device_is("quiet");
	if (fault != NULL)
		now.fault = *fault;
	recorder_trace->length = 0;
	recorder_trace->points = 0;
}

void recorder_enter(bool written)
{
	if (now.quiet)
		return;
	now.written = written;
	now.api += written;
	recorder_watching = true;
}

void recorder_leave(void)
{
	if (now.quiet)
		return;
	recorder_watching = false;
	now.written = false;
}

/* ---- memory ---- */

void recorder_memory(const char *memory_name, const void *start, size_t size)
{
	if (now.memories == COUNT(now.memory))
		abort();
	now.memory[now.memories++] = (struct memory){memory_name, start, size};
}

/* An address in the words of the program. */
static const char *place(const void *at)
{
	const char *to = at;
	char *text;

	if (now.quiet)
		return "";
	if (at == NULL)
		return "NULL";
	text = room();
	for (size_t i = 0; i < now.memories; i++) {
		struct memory *m = &now.memory[i];

		if (to >= m->start && to < m->start + m->size) {
			snprintf(text, ROOM, "%s+%td", m->name, to - m->start);
			return text;
		}
	}
	for (size_t i = 0; i < now.objects; i++) {
		struct object *o = &now.object[i];

		if (o->kind == PAGE && o->alive && to >= (const char *)o->at &&
				to < (const char *)o->at + 4096) {
			snprintf(text, ROOM, "page%d+%td", o->number, to - (const char *)o->at);
			return text;
		}
	}
	snprintf(text, ROOM, "%p", at);
	return text;
}

static const char *bytes(const void *at, size_t n)
{
	char *to;

	if (now.quiet)
		return "";
	to = room();
	to[0] = '\0';
	for (size_t i = 0; i < n && i < UINT8_MAX; i++)
		sprintf(to + 2 * i, "%02x", ((const unsigned char *)at)[i]);
	return n == 0 ? "none" : to;
}

/* The page of a flush; other memory is mapped as it would be without us. */
static void *map(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	bool ours = recorder_watching && (flags & MAP_SHARED) && (flags & MAP_ANONYMOUS);
	void *got = MAP_FAILED;

	if (!ours || !fails("mmap"))
		got = (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
	if (ours && got != MAP_FAILED)
		add(PAGE, got);
	if (ours)
		call("mmap(%zu, protection %#x, flags %#x) = %s", size, (unsigned)protection,
				(unsigned)flags, got == MAP_FAILED ? "failed" : name(PAGE, got));
	return got;
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	return map(at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
	return map(at, size, protection, flags, fd, offset);
}

int munmap(void *at, size_t size)
{
	struct object *page = recorder_watching ? find(PAGE, at) : NULL;
	bool ours = page != NULL && page->alive;
	bool failed = ours && fails("munmap");

	if (ours)
		call("munmap(%s, %zu) = %s", name(PAGE, at), size, minus_one(failed));
	if (failed)
		return -1;
	if (ours)
		unmake(PAGE, at);
	return (int)syscall(SYS_munmap, at, size);
}

static long (*real_sysconf)(int);

long sysconf(int which)
{
	bool ours = recorder_watching && which == _SC_PAGESIZE;
	bool failed = ours && fails("sysconf");

	if (ours)
		call("sysconf(_SC_PAGESIZE) = %s", failed ? "-1" : "the size");
	return failed ? -1 : real_sysconf(which);
}

/* ---- the device ---- */

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

	call("ibv_query_device_ex(%s, input %s) = %s", context_name(context),
			input != NULL ? "given" : "NULL", zero_or_error(error));
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
	bool imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr->opcode == IBV_WR_SEND_WITH_IMM;
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
	int result = fails("ibv_poll_cq") ? -1 : now.poll;

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
	void *symbol = dlsym(RTLD_NEXT, "sysconf");

	memcpy(&real_sysconf, &symbol, sizeof(symbol));
	strcpy(device.name, "recorder0");
	CONTEXT->device = &device;
	CONTEXT->ops.post_send = post_send;
	CONTEXT->ops.post_recv = post_recv;
	CONTEXT->ops.post_srq_recv = post_srq_recv;
	CONTEXT->ops.poll_cq = poll_cq;
	CONTEXT->ops.req_notify_cq = req_notify_cq;
	device_context.sz = sizeof(device_context);
	device_context.query_device_ex = query;
	device_context.advise_mr = advise;
}

struct ibv_context *recorder_device(void)
{
	return device_is("none") ? NULL : CONTEXT;
}

void recorder_change(const char *words)
{
	snprintf(now.device, sizeof(now.device), "%s", words);
	device.transport_type = device_is("iwarp") ? IBV_TRANSPORT_IWARP : IBV_TRANSPORT_IB;
	CONTEXT->abi_compat = device_is("old") ? NULL : __VERBS_ABI_IS_EXTENDED;
}

/* ---- libibverbs ---- */

/* A call that makes an object of a kind and a type. */
#define MAKE(kind, type, which) (fails(which) ? NULL : (type *)make(kind, sizeof(type)))

/* A call that ends one and returns an errno: if it fails the object stays. */
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
			.lkey = 0x1000 + (unsigned)number(MR, mr),
			.rkey = 0x2000 + (unsigned)number(MR, mr),
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

	if (!failed && !now.quiet && !now.has_cq_event) {
		failed = true;
		errno = EAGAIN;
	}
	if (!failed) {
		*cq = now.quiet ? ((struct channel *)channel)->cq : &unknown;
		*cq_context = NULL;
		for (size_t i = 0; i < now.objects; i++) {
			struct object *o = &now.object[i];

			if (o->kind == CQ && o->number == now.cq_event && o->alive)
				*cq = (struct ibv_cq *)o->at;
		}
		if (!now.quiet)
			now.has_cq_event = false;
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

static void wr_start(struct ibv_qp_ex *qp)
{
	call("wr_start(%s)", name(QP, qp));
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	RETURNS("wr_complete", "(%s) = %s", name(QP, qp));
}

static void wr_abort(struct ibv_qp_ex *qp)
{
	call("wr_abort(%s)", name(QP, qp));
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

/* ---- librdmacm ---- */

/* An address that was looked up, and what it points to. */
struct info {
	struct rdma_addrinfo info;
	struct sockaddr_in src, dst;
};

static const char *address(const struct sockaddr *at)
{
	char *text;

	if (now.quiet || at == NULL)
		return "NULL";
	text = room();
	snprintf(text, ROOM, "an address");
	for (size_t i = 0; i < now.objects; i++) {
		const struct info *info = now.object[i].at;

		if (now.object[i].kind != INFO || !now.object[i].alive)
			continue;
		if (at == (const struct sockaddr *)&info->src)
			snprintf(text, ROOM, "info%d src", now.object[i].number);
		if (at == (const struct sockaddr *)&info->dst)
			snprintf(text, ROOM, "info%d dst", now.object[i].number);
	}
	return text;
}

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
		struct rdma_addrinfo **info)
{
	bool failed = fails("rdma_getaddrinfo");
	bool eai = failed && now.fault.error < 0;

	if (!failed) {
		struct info *made_info = make(INFO, sizeof(struct info));

		made_info->info.ai_src_addr = (struct sockaddr *)&made_info->src;
		if (!(hints->ai_flags & RAI_PASSIVE))
			made_info->info.ai_dst_addr = (struct sockaddr *)&made_info->dst;
		*info = &made_info->info;
	}
	call("rdma_getaddrinfo(%s, %s, flags %#x, family %d, qp_type %d, port_space %#x) = %s%s", node,
			service != NULL ? service : "NULL", (unsigned)hints->ai_flags, hints->ai_family,
			hints->ai_qp_type, (unsigned)hints->ai_port_space,
			eai ? error_name(now.fault.error) : minus_one(failed),
			failed || now.quiet ? "" : " info");
	return eai ? now.fault.error : failed ? -1 : 0;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *info)
{
	call("rdma_freeaddrinfo(%s)", name(INFO, info));
	unmake(INFO, info);
}

struct events {
	struct rdma_event_channel channel;
	bool listens; /* the first id was made on it */
};

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct events *events = MAKE(EVENTS, struct events, "rdma_create_event_channel");

	if (events != NULL)
		events->channel.fd = 200 + number(EVENTS, events);
	call("rdma_create_event_channel() = %s", made(EVENTS, events));
	return (struct rdma_event_channel *)events;
}

void rdma_destroy_event_channel(struct rdma_event_channel *events)
{
	call("rdma_destroy_event_channel(%s)", name(EVENTS, events));
	unmake(EVENTS, events);
}

static void give_address(struct rdma_cm_id *id)
{
	struct sockaddr_in *addr = (struct sockaddr_in *)&id->route.addr.src_addr;

	addr->sin_family = AF_INET;
	addr->sin_port = htons(7471);
	addr->sin_addr.s_addr = htonl(0x0a4d0001);
	id->verbs = recorder_device();
}

int rdma_create_id(struct rdma_event_channel *events, struct rdma_cm_id **id, void *context,
		enum rdma_port_space ps)
{
	struct rdma_cm_id *new_id = MAKE(ID, struct rdma_cm_id, "rdma_create_id");

	if (new_id != NULL) {
		new_id->channel = events;
		new_id->context = context;
		new_id->ps = ps;
		if (events != NULL)
			((struct events *)events)->listens = true;
		*id = new_id;
	}
	call("rdma_create_id(%s, context %s, space %#x) = %s", name(EVENTS, events), place(context),
			(unsigned)ps, made(ID, new_id));
	return new_id != NULL ? 0 : -1;
}

/* A call on an id that gives 0 or -1. */
#define ON_ID(which, id, format, ...) \
	bool failed = fails(which); \
	call(which "(%s" format ") = %s", name(ID, id) __VA_ARGS__, minus_one(failed))

int rdma_destroy_id(struct rdma_cm_id *id)
{
	ON_ID("rdma_destroy_id", id, "");
	if (failed)
		return -1;
	if (id->qp != NULL)
		call("!%s has its QP still", name(ID, id));
	unmake(ID, id);
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	ON_ID("rdma_bind_addr", id, ", %s", , address(addr));
	if (!failed)
		give_address(id);
	return failed ? -1 : 0;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst,
		int timeout_ms)
{
	ON_ID("rdma_resolve_addr", id, ", %s, %s, %d", , address(src), address(dst), timeout_ms);
	if (!failed)
		give_address(id);
	return failed ? -1 : 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	ON_ID("rdma_resolve_route", id, ", %d", , timeout_ms);
	return failed ? -1 : 0;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	ON_ID("rdma_listen", id, ", %d", , backlog);
	return failed ? -1 : 0;
}

int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *events)
{
	ON_ID("rdma_migrate_id", id, ", %s", , name(EVENTS, events));
	if (!failed)
		id->channel = events;
	return failed ? -1 : 0;
}

static int with_param(const char *which, bool failed, struct rdma_cm_id *id,
		const struct rdma_conn_param *p)
{
	if (!now.quiet)
		call("%s(%s, data %s %u, responder_resources %u, initiator_depth %u, flow_control %u, "
				"retry_count %u, rnr_retry_count %u) = %s", which, name(ID, id),
				p->private_data != NULL ? bytes(p->private_data, p->private_data_len) : "NULL",
				p->private_data_len, p->responder_resources, p->initiator_depth,
				p->flow_control, p->retry_count, p->rnr_retry_count, minus_one(failed));
	return failed ? -1 : 0;
}

int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return with_param("rdma_connect", fails("rdma_connect"), id, param);
}

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	return with_param("rdma_accept", fails("rdma_accept"), id, param);
}

int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
	ON_ID("rdma_reject", id, ", %s, %u", , place(data), len);
	return failed ? -1 : 0;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
	ON_ID("rdma_disconnect", id, "");
	return failed ? -1 : 0;
}

/* Sets a member that not all headers have. */
static void set_op(struct ibv_qp_ex *qp, size_t at, void (*op)(void))
{
	memcpy((char *)qp + at, &op, sizeof(op));
}

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	bool failed = fails("rdma_create_qp_ex");
	bool extended = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	uint64_t ops = extended ? attr->send_ops_flags : 0;
	struct ibv_qp_ex *qp;

	if (!failed && ((device_is("refuse-flush") && (ops & WITH_FLUSH)) ||
			(device_is("refuse-ops") && extended))) {
		failed = true;
		errno = EOPNOTSUPP;
	}
	if (!failed) {
		int num;

		qp = make(QP, QP_SIZE);
		num = 0x100 + number(QP, qp);
		qp->qp_base.context = id->verbs;
		qp->qp_base.qp_num = (unsigned)num;
		if (extended && !device_is("no-extension")) {
			qp->wr_start = wr_start;
			qp->wr_complete = wr_complete;
			qp->wr_abort = wr_abort;
			if (ops & WITH_ATOMIC_WRITE)
				set_op(qp, WR_ATOMIC_WRITE, (void (*)(void))wr_atomic_write);
			if (ops & WITH_FLUSH)
				set_op(qp, WR_FLUSH, (void (*)(void))wr_flush);
		}
		id->qp = &qp->qp_base;
	}
	if (!now.quiet)
		call("rdma_create_qp_ex(%s, context %s, send_cq %s, recv_cq %s, %s, send_wr %u, recv_wr %u, "
				"send_sge %u, recv_sge %u, inline %u, type %d, sig_all %d, mask %#x, %s, "
				"ops %#lx) = %s%s%s", name(ID, id), place(attr->qp_context),
				name(CQ, attr->send_cq), name(CQ, attr->recv_cq), name(SRQ, attr->srq),
				attr->cap.max_send_wr, attr->cap.max_recv_wr, attr->cap.max_send_sge,
				attr->cap.max_recv_sge, attr->cap.max_inline_data, attr->qp_type,
				attr->sq_sig_all, attr->comp_mask, name(PD, attr->pd), ops,
				minus_one(failed), failed ? "" : " ",
				failed ? "" : name(QP, id->qp));
	return failed ? -1 : 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	call("rdma_destroy_qp(%s %s)", name(ID, id), name(QP, id->qp));
	unmake(QP, id->qp);
	id->qp = NULL;
}

/* ---- events of connections ---- */

void recorder_cm_event(enum rdma_cm_event_type event, const void *data, size_t len)
{
	struct queued *queued = &now.cm[now.cm_end++ % COUNT(now.cm)];

	*queued = (struct queued){.event = event, .len = len};
	queued->has_data = data != NULL;
	if (len > 0)
		memcpy(queued->data, data, len);
}

void recorder_cq_event(int cq)
{
	now.has_cq_event = true;
	now.cq_event = cq;
}

void recorder_poll(int result)
{
	now.poll = result;
}

int rdma_get_cm_event(struct rdma_event_channel *events, struct rdma_cm_event **event)
{
	bool failed = fails("rdma_get_cm_event");
	struct rdma_cm_event *got = NULL;

	if (!failed && !now.quiet && now.cm_first == now.cm_end) {
		failed = true;
		errno = EAGAIN;
	}
	if (!failed) {
		struct queued of_threads = {
			.event = ((struct events *)events)->listens ? RDMA_CM_EVENT_CONNECT_REQUEST :
					RDMA_CM_EVENT_ESTABLISHED,
		};
		struct queued *queued = &of_threads;

		if (!now.quiet)
			queued = &now.cm[now.cm_first++ % COUNT(now.cm)];

		/* The data lies behind the event and goes with it. */
		got = make(EVENT, sizeof(*got) + sizeof(queued->data));
		got->event = queued->event;
		memcpy(got + 1, queued->data, queued->len);
		if (queued->has_data)
			got->param.conn.private_data = got + 1;
		got->param.conn.private_data_len = (uint8_t)queued->len;
		if (queued->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			got->id = make(ID, sizeof(*got->id));
			got->id->channel = events;
			give_address(got->id);
		}
		*event = got;
	}
	call("rdma_get_cm_event(%s) = %s%s%s", name(EVENTS, events), minus_one(failed),
			failed ? "" : " ", failed ? "" : rdma_event_str(got->event));
	return failed ? -1 : 0;
}

/* The event is gone also when this fails, as with librdmacm's. */
int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	bool failed = fails("rdma_ack_cm_event");

	call("rdma_ack_cm_event(%s) = %s", name(EVENT, event), minus_one(failed));
	unmake(EVENT, event);
	return failed ? -1 : 0;
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const names[] = {
		[RDMA_CM_EVENT_ADDR_RESOLVED] = "ADDR_RESOLVED",
		[RDMA_CM_EVENT_CONNECT_REQUEST] = "CONNECT_REQUEST",
		[RDMA_CM_EVENT_CONNECT_ERROR] = "CONNECT_ERROR",
		[RDMA_CM_EVENT_UNREACHABLE] = "UNREACHABLE",
		[RDMA_CM_EVENT_REJECTED] = "REJECTED",
		[RDMA_CM_EVENT_ESTABLISHED] = "ESTABLISHED",
		[RDMA_CM_EVENT_DISCONNECTED] = "DISCONNECTED",
		[RDMA_CM_EVENT_DEVICE_REMOVAL] = "DEVICE_REMOVAL",
		[RDMA_CM_EVENT_ADDR_CHANGE] = "ADDR_CHANGE",
		[RDMA_CM_EVENT_TIMEWAIT_EXIT] = "TIMEWAIT_EXIT",
	};

	return event < COUNT(names) && names[event] != NULL ? names[event] : "another event";
}
