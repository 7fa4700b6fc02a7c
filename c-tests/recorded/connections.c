/*
 * connections.c -- scenarios of endpoints, requests and connections.
 */
#include "recorded.h"

/* ---- the passive side ---- */

static void show_private_data(struct rpma_conn_private_data data)
{
	bool is_there = data.ptr != NULL && data.ptr != DUMMY;

	recorder_line("    %s %u %s", data.ptr == NULL ? "NULL" : is_there ? "data" : "kept", data.len,
			is_there ? hex(data.ptr, data.len) : "");
}

static void private_data_of_req(void)
{
	struct rpma_conn_private_data data = {DUMMY, 99};

	CALL(rpma_conn_req_get_private_data(in.req, &data));
	show_private_data(data);
}

static void private_data_of_conn(void)
{
	struct rpma_conn_private_data data = {DUMMY, 99};

	CALL(rpma_conn_get_private_data(in.conn, &data));
	show_private_data(data);
}

void ep(void)
{
	if (!have_peer())
		return;
	CALL(rpma_ep_listen(NULL, "10.77.0.1", "7471", OUT));
	CALL(rpma_ep_listen(in.peer, NULL, "7471", OUT));
	CALL(rpma_ep_listen(in.peer, "10.77.0.1", NULL, OUT));
	CALL(rpma_ep_listen(in.peer, "10.77.0.1", "7471", NULL));
	if (CALL(rpma_ep_listen(in.peer, "10.77.0.1", "7471", OUT)) == 0) {
		take(&in.ep);
		GET(rpma_ep_get_fd, in.ep, "%d", int);
		WITHOUT(rpma_ep_get_fd, in.ep);
		CALL(rpma_ep_next_conn_req(NULL, NULL, OUT));
		CALL(rpma_ep_next_conn_req(in.ep, NULL, NULL));
		CALL(rpma_ep_next_conn_req(in.ep, NULL, OUT));
	}
	END_ALWAYS(rpma_ep_shutdown, in.ep);
	end_all();
}

/* Events that are no request. */
void other_events(void)
{
	if (!have_peer() || !have_ep())
		return;
	for (int event = RDMA_CM_EVENT_ADDR_RESOLVED; event <= RDMA_CM_EVENT_TIMEWAIT_EXIT + 1;
			event++) {
		if (event == RDMA_CM_EVENT_CONNECT_REQUEST)
			continue;
		recorder_cm_event(event, NULL, 0);
		CALL(rpma_ep_next_conn_req(in.ep, NULL, OUT));
	}
	end_all();
}

static bool next_req(const char *data)
{
	recorder_cm_event(RDMA_CM_EVENT_CONNECT_REQUEST, data, strlen(data));
	return CALL(rpma_ep_next_conn_req(in.ep, in.cfg, OUT)) == 0 && take(&in.req);
}

static void recv_of_req(void)
{
	CALL(rpma_conn_req_recv(in.req, in.mr, 8, 100, OP_CONTEXT));
	CALL(rpma_conn_req_recv(in.req, in.mr, 0, 0, NULL));
	CALL(rpma_conn_req_recv(in.req, NULL, 0, 0, OP_CONTEXT));
	CALL(rpma_conn_req_recv(NULL, in.mr, 0, 8, OP_CONTEXT));
}

/* Requests that come in and are refused. */
void incoming(void)
{
	if (!have_peer() || !have_mr() || !have_cfg() || !have_ep())
		return;
	if (next_req("")) {
		private_data_of_req();
		recv_of_req();
	}
	END(rpma_conn_req_delete, in.req);
	if (next_req("hello"))
		private_data_of_req();
	END(rpma_conn_req_delete, in.req);
	end_all();
}

/* ---- connections ---- */

static const struct rpma_conn_private_data greeting = {(void *)"greeting", 8};

static void look_at_private_data(void)
{
	struct rpma_conn_private_data data;

	rpma_conn_get_private_data(in.conn, &data);
}

/* An event that has the code of the call after it; a log function may look at the connection. */
static void next_event(enum rdma_cm_event_type event, const char *data)
{
	enum rpma_conn_event got = 99;

	recorder_cm_event(event, data, strlen(data));
	log_calls = look_at_private_data;
	CALL(rpma_conn_next_event(in.conn, &got));
	log_calls = NULL;
	recorder_line("    %d", got);
	private_data_of_conn();
}

static void getters(void)
{
	struct rpma_cq *cq = NULL, *rcq = NULL;

	GET(rpma_conn_get_event_fd, in.conn, "%d", int);
	GET(rpma_conn_get_qp_num, in.conn, "%u", uint32_t);
	GET(rpma_conn_get_compl_fd, in.conn, "%d", int);
	CALL(rpma_conn_get_cq(in.conn, &cq));
	CALL(rpma_conn_get_rcq(in.conn, &rcq));
	recorder_line("    %s, %s", cq == NULL ? "no CQ" : "a CQ", rcq == NULL ? "none for receives" :
			rcq == cq ? "the same for receives" : "another for receives");
	WITHOUT(rpma_conn_get_event_fd, in.conn);
	WITHOUT(rpma_conn_get_qp_num, in.conn);
	WITHOUT(rpma_conn_get_compl_fd, in.conn);
	WITHOUT(rpma_conn_get_cq, in.conn);
	WITHOUT(rpma_conn_get_rcq, in.conn);
	private_data_of_conn();
}

static void end_conn(void)
{
	if (in.conn != NULL)
		CALL(rpma_conn_disconnect(in.conn));
	END(rpma_conn_delete, in.conn);
	END(rpma_conn_delete, in.conn);
}

static void connect_with(const struct rpma_conn_private_data *data)
{
	if (CALL(rpma_conn_req_connect(&in.req, data, OUT)) == 0)
		take(&in.conn);
	recorder_line("    request %s", in.req == NULL ? "NULL" : "kept");
}

/* Connections that come in and are accepted. */
void accepted(void)
{
	if (!have_peer() || !have_cfg() || !have_ep())
		return;
	if (next_req("hello")) {
		connect_with(&greeting);
		if (in.conn != NULL) {
			getters();
			next_event(RDMA_CM_EVENT_ESTABLISHED, "");
			next_event(RDMA_CM_EVENT_ESTABLISHED, "late");
		}
	}
	end_conn();
	end_all();
}

void accepted_plain(void)
{
	if (!have_peer() || !have_cfg() || !have_ep())
		return;
	if (next_req("")) {
		connect_with(NULL);
		if (in.conn != NULL)
			next_event(RDMA_CM_EVENT_ESTABLISHED, "late");
	}
	end_conn();
	end_all();
}

static bool new_req(void)
{
	return CALL(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", in.cfg, OUT)) == 0 && take(&in.req);
}

/* Requests that are given up. */
void outgoing(void)
{
	if (!have_peer() || !have_mr() || !have_cfg())
		return;
	CALL(rpma_conn_req_new(NULL, "10.77.0.1", "7471", in.cfg, OUT));
	CALL(rpma_conn_req_new(in.peer, NULL, "7471", in.cfg, OUT));
	CALL(rpma_conn_req_new(in.peer, "10.77.0.1", NULL, in.cfg, OUT));
	CALL(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", in.cfg, NULL));
	if (new_req()) {
		private_data_of_req();
		recv_of_req();
	}
	WITHOUT(rpma_conn_req_get_private_data, in.req);
	END_ALWAYS(rpma_conn_req_delete, in.req);
	end_all();
}

/* Connections that are asked for. */
void requested(void)
{
	if (!have_peer() || !have_cfg())
		return;
	if (new_req()) {
		connect_with(&greeting);
		if (in.conn != NULL) {
			getters();
			next_event(RDMA_CM_EVENT_ESTABLISHED, "welcome");
		}
	}
	end_conn();
	end_all();
}

/* As much private data as there can be, of both sides. */
static unsigned char much[UINT8_MAX];
static const struct rpma_conn_private_data all_of_it = {much, sizeof(much)};

void accept_much(void)
{
	memset(much, 0xbe, sizeof(much));
	if (!have_peer() || !have_ep())
		return;
	recorder_cm_event(RDMA_CM_EVENT_CONNECT_REQUEST, much, sizeof(much));
	if (CALL(rpma_ep_next_conn_req(in.ep, NULL, OUT)) == 0) {
		take(&in.req);
		private_data_of_req();
		connect_with(&all_of_it);
		if (in.conn != NULL)
			private_data_of_conn();
	}
	end_conn();
	end_all();
}

void request_much(void)
{
	memset(much, 0xbe, sizeof(much));
	if (!have_peer())
		return;
	if (new_req()) {
		connect_with(&all_of_it);
		recorder_cm_event(RDMA_CM_EVENT_ESTABLISHED, much, sizeof(much));
		if (in.conn != NULL) {
			CALL(rpma_conn_next_event(in.conn, OUT));
			private_data_of_conn();
		}
	}
	end_conn();
	end_all();
}

/* What a request does not take, which costs it its life. */
void bad_connects(void)
{
	struct rpma_conn_private_data no_data = {NULL, 8}, no_length = {(void *)"x", 0};

	if (!have_peer() || !have_cfg() || !have_ep())
		return;
	CALL(rpma_conn_req_connect(NULL, NULL, OUT));
	CALL(rpma_conn_req_connect(&in.req, NULL, OUT));
	for (int passive = 0; passive <= 1; passive++) {
		if (passive ? next_req("") : new_req())
			connect_with(&no_data);
		if (passive ? next_req("") : new_req())
			connect_with(&no_length);
		if (passive ? next_req("hello") : new_req()) {
			CALL(rpma_conn_req_connect(&in.req, NULL, NULL));
			recorder_line("    request %s", in.req == NULL ? "NULL" : "kept");
		}
	}
	end_all();
}

/* All the events of a connection. */
void events(void)
{
	if (!have_peer() || !have_conn())
		return;
	WITHOUT(rpma_conn_next_event, in.conn);
	CALL(rpma_conn_next_event(in.conn, OUT));
	WITHOUT(rpma_conn_get_private_data, in.conn);
	for (int event = RDMA_CM_EVENT_ADDR_RESOLVED; event <= RDMA_CM_EVENT_TIMEWAIT_EXIT + 1;
			event++)
		if (event != RDMA_CM_EVENT_CONNECT_REQUEST)
			next_event(event, event == RDMA_CM_EVENT_ESTABLISHED ? "" : "no");
	next_event(RDMA_CM_EVENT_ESTABLISHED, "first");
	next_event(RDMA_CM_EVENT_ESTABLISHED, "second");
	CALL(rpma_conn_disconnect(NULL));
	CALL(rpma_conn_disconnect(in.conn));
	CALL(rpma_conn_delete(NULL));
	end_all();
}

static const char *cq_name(const struct rpma_cq *cq)
{
	return cq == DUMMY ? "kept" : cq == NULL ? "NULL" : cq == in.cq ? "the CQ" :
			cq == in.rcq ? "the CQ of receives" : "another";
}

/* Waiting for completions, on a shared channel and without. */
void waiting(void)
{
	struct rpma_cq *cq;
	bool is_rcq;

	if (!have_peer() || !have_cfg() || !have_conn())
		return;
	cq_of(in.cq, "the connection");
	if (in.rcq != NULL)
		cq_of(in.rcq, "the receives");
	for (int number = -1; number <= 2; number++) {
		recorder_line("    an event of CQ %d", number);
		recorder_cq_event(number);
		CALL(rpma_cq_wait(in.cq));
		recorder_cq_event(number);
		cq = DUMMY;
		is_rcq = true;
		CALL(rpma_conn_wait(in.conn, 0, &cq, &is_rcq));
		recorder_line("    %s, %d", cq_name(cq), is_rcq);
		recorder_cq_event(number);
		cq = DUMMY;
		CALL(rpma_conn_wait(in.conn, -1, &cq, NULL));
		recorder_line("    %s", cq_name(cq));
	}
	CALL(rpma_conn_wait(NULL, 0, &cq, NULL));
	CALL(rpma_conn_wait(in.conn, 0, NULL, NULL));
	CALL(rpma_cq_wait(NULL));
	WITHOUT(rpma_cq_get_fd, in.cq);
	end_all();
}
