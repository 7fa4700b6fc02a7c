/*
 * cm.c -- librdmacm, see internal.h.
 */
#include "internal.h"

#include <arpa/inet.h>
#include <stdio.h>

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
	EACH_ALIVE(o) {
		const struct info *info = o->at;

		if (o->kind != INFO)
			continue;
		if (at == (const struct sockaddr *)&info->src)
			snprintf(text, ROOM, "info%d src", o->number);
		if (at == (const struct sockaddr *)&info->dst)
			snprintf(text, ROOM, "info%d dst", o->number);
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
	call("rdma_getaddrinfo(%s, %s, flags %#x, family %d, qp_type %d, port_space %#x, src %s %u, "
			"dst %s %u, names %s %s, route %s %zu, connect %s %zu, next %s) = %s%s", node,
			service != NULL ? service : "NULL", (unsigned)hints->ai_flags, hints->ai_family,
			hints->ai_qp_type, (unsigned)hints->ai_port_space, place(hints->ai_src_addr),
			hints->ai_src_len, place(hints->ai_dst_addr), hints->ai_dst_len,
			place(hints->ai_src_canonname), place(hints->ai_dst_canonname),
			place(hints->ai_route), hints->ai_route_len, place(hints->ai_connect),
			hints->ai_connect_len, place(hints->ai_next),
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
				"retry_count %u, rnr_retry_count %u, srq %u, qp_num %u) = %s", which,
				name(ID, id),
				p->private_data != NULL ? bytes(p->private_data, p->private_data_len) : "NULL",
				p->private_data_len, p->responder_resources, p->initiator_depth,
				p->flow_control, p->retry_count, p->rnr_retry_count, p->srq, p->qp_num,
				minus_one(failed));
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

int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp = fails("rdma_create_qp_ex") ? NULL : make_qp(id->verbs, attr);
	uint64_t ops = attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? attr->send_ops_flags : 0;
	bool failed = qp == NULL;

	if (!failed)
		id->qp = qp;
	if (!now.quiet)
		call("rdma_create_qp_ex(%s, context %s, send_cq %s, recv_cq %s, %s, send_wr %u, recv_wr %u, "
				"send_sge %u, recv_sge %u, inline %u, type %d, sig_all %d, mask %#x, %s, "
				"ops %#lx) = %s%s%s", name(ID, id), place(attr->qp_context),
				name(CQ, attr->send_cq), name(CQ, attr->recv_cq), name(SRQ, attr->srq),
				attr->cap.max_send_wr, attr->cap.max_recv_wr, attr->cap.max_send_sge,
				attr->cap.max_recv_sge, attr->cap.max_inline_data, attr->qp_type,
				attr->sq_sig_all, attr->comp_mask, name(PD, attr->pd), ops,
				minus_one(failed), failed ? "" : " ",
				failed ? "" : name(QP, qp));
	return failed ? -1 : 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	call("rdma_destroy_qp(%s %s)", name(ID, id), name(QP, id->qp));
	unmake(QP, id->qp);
	id->qp = NULL;
}

/* ---- events of connections ---- */

static struct queued {
	enum rdma_cm_event_type event;
	bool has_data;
	size_t len;
	unsigned char data[256];
} queue[16];
static size_t queue_first, queue_end;

void recorder_cm_event(enum rdma_cm_event_type event, const void *data, size_t len)
{
	struct queued *queued = &queue[queue_end++ % COUNT(queue)];

	*queued = (struct queued){.event = event, .len = len};
	queued->has_data = data != NULL;
	if (len > 0)
		memcpy(queued->data, data, len);
}

void forget_cm_events(void)
{
	queue_first = queue_end = 0;
}

int rdma_get_cm_event(struct rdma_event_channel *events, struct rdma_cm_event **event)
{
	bool failed = fails("rdma_get_cm_event");
	struct rdma_cm_event *got = NULL;

	if (!failed && !now.quiet && queue_first == queue_end) {
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
			queued = &queue[queue_first++ % COUNT(queue)];

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
