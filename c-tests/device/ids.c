/*
 * ids.c -- what ids of librdmacm do that the library never sees, as it has no use for them: what was
 * posted by who is left, until it leaves as well. librpma has no part in it, so that both libraries
 * print the same; it is the device that is compared.
 */
#include "device.h"
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { CHANNEL, SYNCHRONOUS };

#define NOTHING_MS 300 /* in which is seen that nothing comes */

#define DO(call) \
	do { \
		if ((call) != 0) \
			FAIL("%s: %s", #call, strerror(errno)); \
	} while (0)

static struct rdma_event_channel *channel; /* NULL: ids are synchronous */
static unsigned char memory[4096];
static struct ibv_mr *mr;

static struct ibv_qp_init_attr *attributes(void)
{
	static struct ibv_qp_init_attr attr;

	attr = (struct ibv_qp_init_attr){
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	return &attr;
}

/* An id at the address: of whom listens or of whom connects, which has a queue pair then. */
static struct rdma_cm_id *new_id(bool passive)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC};
	struct rdma_addrinfo *info;
	struct rdma_cm_id *id;

	hints.ai_flags = passive ? RAI_PASSIVE : 0;
	DO(rdma_getaddrinfo(addr, passive ? NULL : port, &hints, &info));
	DO(rdma_create_ep(&id, info, NULL, attributes()));
	rdma_freeaddrinfo(info);
	if (variant == CHANNEL) {
		channel = rdma_create_event_channel();
		if (channel == NULL)
			FAIL("no channel: %s", strerror(errno));
		DO(rdma_migrate_id(id, channel));
	}
	return id;
}

static void see_event(struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;

	if (!ready(channel->fd, WAIT_MS))
		FAIL("no event");
	DO(rdma_get_cm_event(channel, &event));
	show("event", "%s", rdma_event_str(event->event));
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
		*id = event->id;
	DO(rdma_ack_cm_event(event));
}

static void post_receive(struct rdma_cm_id *id, intptr_t number)
{
	int ret = rdma_post_recv(id, (void *)number, memory, sizeof(memory), mr);

	show("receive posted", "%s", ret == 0 ? "yes" : strerror(errno));
}

static void register_memory(struct rdma_cm_id *id)
{
	mr = rdma_reg_msgs(id, memory, sizeof(memory));
	if (mr == NULL)
		FAIL("no region: %s", strerror(errno));
}

static void see_state(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	DO(ibv_query_qp(id->qp, &attr, IBV_QP_STATE, &init));
	show("queue pair", "%s", attr.qp_state == IBV_QPS_RTS ? "ready to send" :
			attr.qp_state == IBV_QPS_ERR ? "in error" : "in another state");
}

static void see_received(const char *key, struct rdma_cm_id *id, int timeout_ms)
{
	struct ibv_wc wc;
	int n;

	while ((n = ibv_poll_cq(id->recv_cq, 1, &wc)) == 0 && timeout_ms-- > 0)
		poll(NULL, 0, 1);
	if (n == 0)
		show(key, "nothing came");
	else
		show(key, "%s wr_id=%" PRIu64, ibv_wc_status_str(wc.status), wc.wr_id);
}

static void delete_all(struct rdma_cm_id *id)
{
	DO(rdma_dereg_mr(mr));
	rdma_destroy_ep(id);
	if (channel != NULL)
		rdma_destroy_event_channel(channel);
}

static void left_server(void)
{
	struct rdma_cm_id *listener = new_id(true), *id = NULL;

	DO(rdma_listen(listener, 1));
	printf("port: %d\n", ntohs(rdma_get_src_port(listener)));
	if (channel != NULL) {
		see_event(&id);
		DO(rdma_create_qp(id, NULL, attributes()));
	} else {
		DO(rdma_get_request(listener, &id));
	}
	register_memory(id);
	post_receive(id, 1);
	post_receive(id, 2);
	DO(rdma_accept(id, NULL));
	if (channel != NULL) {
		see_event(&id);
		see_event(&id);
	} else if (!ready(id->channel->fd, WAIT_MS)) {
		FAIL("nobody leaves");
	}
	/* The other side has left. */
	see_received("before leaving", id, NOTHING_MS);
	see_state(id);
	post_receive(id, 3);
	see_received("before leaving", id, NOTHING_MS);
	/* So does this one. */
	DO(rdma_disconnect(id));
	for (int i = 0; i < 4; i++)
		see_received("after leaving", id, i < 3 ? WAIT_MS : NOTHING_MS);
	see_state(id);
	post_receive(id, 4);
	see_received("posted in error", id, NOTHING_MS);
	rdma_destroy_ep(listener);
	delete_all(id);
}

static void left_client(void)
{
	struct rdma_cm_id *id = new_id(false);

	register_memory(id);
	post_receive(id, 1);
	DO(rdma_connect(id, NULL));
	if (channel != NULL)
		see_event(&id);
	see_state(id);
	DO(rdma_disconnect(id));
	see_received("after leaving", id, WAIT_MS);
	see_state(id);
	if (channel != NULL)
		see_event(&id);
	delete_all(id);
}

static const struct test_case cases[] = {
	{.name = "left", .server = left_server, .client = left_client, .variant = CHANNEL},
	{.name = "left-synchronous", .server = left_server, .client = left_client, .variant = SYNCHRONOUS},
};

MAIN(cases)
