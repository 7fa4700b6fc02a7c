/*
 * recorded.c -- the scenarios, see recorded.h.
 */
#include "recorded.h"

/* ---- what many scenarios begin and end with ---- */

static bool have_peer(void)
{
	if (!NEED(rpma_peer_new(in.context, OUT)))
		return false;
	in.peer = GAVE(struct rpma_peer *);
	return true;
}

#define USAGE_ALL 0xff

static bool have_mr(void)
{
	if (!NEED(rpma_mr_reg(in.peer, memory, sizeof(memory), USAGE_ALL, OUT)))
		return false;
	in.mr = GAVE(struct rpma_mr_local *);
	return true;
}

/* Memory of the other side, for these usages. */
static bool have_remote(unsigned usage)
{
	unsigned char desc[21] = {0};
	uint64_t addr = 0x10000000, size = 4096;
	uint32_t rkey = 0x3000;

	memcpy(desc, &addr, 8);
	memcpy(desc + 8, &size, 8);
	memcpy(desc + 16, &rkey, 4);
	desc[20] = (unsigned char)usage;
	if (!NEED(rpma_mr_remote_from_descriptor(desc, sizeof(desc), OUT)))
		return false;
	in.remote = GAVE(struct rpma_mr_remote *);
	return true;
}

static bool have_srq(bool with_rcq)
{
	if (!NEED(rpma_srq_cfg_new(OUT)))
		return false;
	in.srq_cfg = GAVE(struct rpma_srq_cfg *);
	if (!NEED(rpma_srq_cfg_set_rcq_size(in.srq_cfg, with_rcq ? 5 : 0)) ||
			!NEED(rpma_srq_new(in.peer, in.srq_cfg, OUT)))
		return false;
	in.srq = GAVE(struct rpma_srq *);
	return true;
}

/*
 * The configuration that the scenario's words describe; none for no words:
 *
 *   sizes, huge      of the queues, and a timeout
 *   rcq, shared      a CQ for receives; a shared channel
 *   srq, srq-rcq     a shared RQ, one with its own CQ
 */
static bool have_cfg(void)
{
	const char *words = scenario->cfg;

	if (words == NULL)
		return true;
	if (!NEED(rpma_conn_cfg_new(OUT)))
		return false;
	in.cfg = GAVE(struct rpma_conn_cfg *);
	if (is_word_of(words, "sizes") && !(NEED(rpma_conn_cfg_set_timeout(in.cfg, 77)) &&
			NEED(rpma_conn_cfg_set_cq_size(in.cfg, 11)) &&
			NEED(rpma_conn_cfg_set_rcq_size(in.cfg, 12)) &&
			NEED(rpma_conn_cfg_set_sq_size(in.cfg, 13)) &&
			NEED(rpma_conn_cfg_set_rq_size(in.cfg, 14))))
		return false;
	if (is_word_of(words, "huge") && !(NEED(rpma_conn_cfg_set_timeout(in.cfg, INT_MAX)) &&
			NEED(rpma_conn_cfg_set_cq_size(in.cfg, UINT32_MAX)) &&
			NEED(rpma_conn_cfg_set_rcq_size(in.cfg, UINT32_MAX)) &&
			NEED(rpma_conn_cfg_set_sq_size(in.cfg, UINT32_MAX)) &&
			NEED(rpma_conn_cfg_set_rq_size(in.cfg, UINT32_MAX))))
		return false;
	if (is_word_of(words, "zero") && !(NEED(rpma_conn_cfg_set_timeout(in.cfg, 0)) &&
			NEED(rpma_conn_cfg_set_cq_size(in.cfg, 0)) &&
			NEED(rpma_conn_cfg_set_sq_size(in.cfg, 0)) &&
			NEED(rpma_conn_cfg_set_rq_size(in.cfg, 0))))
		return false;
	if (is_word_of(words, "rcq") && !NEED(rpma_conn_cfg_set_rcq_size(in.cfg, 7)))
		return false;
	if (is_word_of(words, "shared") && !NEED(rpma_conn_cfg_set_compl_channel(in.cfg, true)))
		return false;
	if (is_word_of(words, "srq") || is_word_of(words, "srq-rcq"))
		return have_srq(is_word_of(words, "srq-rcq")) &&
				NEED(rpma_conn_cfg_set_srq(in.cfg, in.srq));
	return true;
}

static bool have_ep(void)
{
	if (!NEED(rpma_ep_listen(in.peer, "10.77.0.1", "7471", OUT)))
		return false;
	in.ep = GAVE(struct rpma_ep *);
	return true;
}

/* An established connection that this side has asked for. */
static bool have_conn(void)
{
	enum rpma_conn_event event;

	if (!NEED(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", in.cfg, OUT)))
		return false;
	in.req = GAVE(struct rpma_conn_req *);
	if (!NEED(rpma_conn_req_connect(&in.req, NULL, OUT)))
		return false;
	in.conn = GAVE(struct rpma_conn *);
	recorder_cm_event(RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	if (!NEED(rpma_conn_next_event(in.conn, &event)) || !NEED(rpma_conn_get_cq(in.conn, OUT)))
		return false;
	in.cq = GAVE(struct rpma_cq *);
	if (!NEED(rpma_conn_get_rcq(in.conn, OUT)))
		return false;
	in.rcq = GAVE(struct rpma_cq *);
	return true;
}

/* Ends what there is still, so that what stays alive is what was lost. */
static void end_all(void)
{
	if (in.conn != NULL)
		NEED(rpma_conn_delete(&in.conn));
	if (in.req != NULL)
		NEED(rpma_conn_req_delete(&in.req));
	if (in.ep != NULL)
		NEED(rpma_ep_shutdown(&in.ep));
	if (in.cfg != NULL)
		NEED(rpma_conn_cfg_delete(&in.cfg));
	if (in.srq != NULL)
		NEED(rpma_srq_delete(&in.srq));
	if (in.srq_cfg != NULL)
		NEED(rpma_srq_cfg_delete(&in.srq_cfg));
	if (in.peer_cfg != NULL)
		NEED(rpma_peer_cfg_delete(&in.peer_cfg));
	if (in.remote != NULL)
		NEED(rpma_mr_remote_delete(&in.remote));
	if (in.mr != NULL)
		NEED(rpma_mr_dereg(&in.mr));
	if (in.peer != NULL)
		NEED(rpma_peer_delete(&in.peer));
}

/* ---- devices and peers ---- */

static void utils(void)
{
	if (CALL(rpma_utils_get_ibv_context("10.77.0.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT)) == 0)
		recorder_line("    %s", GAVE(void *) == NULL ? "NULL" : "the device");
	if (CALL(rpma_utils_get_ibv_context("10.77.0.2", RPMA_UTIL_IBV_CONTEXT_REMOTE, OUT)) == 0)
		recorder_line("    %s", GAVE(void *) == NULL ? "NULL" : "the device");
	CALL(rpma_utils_get_ibv_context("10.77.0.2", 2, OUT));
	CALL(rpma_utils_get_ibv_context(NULL, RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT));
	CALL(rpma_utils_get_ibv_context("10.77.0.2", RPMA_UTIL_IBV_CONTEXT_LOCAL, NULL));
	if (in.context == NULL)
		return;
	if (CALL(rpma_utils_ibv_context_is_odp_capable(in.context, OUT)) == 0)
		recorder_line("    %d", GAVE(int));
	CALL(rpma_utils_ibv_context_is_odp_capable(NULL, OUT));
	CALL(rpma_utils_ibv_context_is_odp_capable(in.context, NULL));
}

static void peer(void)
{
	CALL(rpma_peer_new(NULL, OUT));
	CALL(rpma_peer_new(in.context, NULL));
	if (CALL(rpma_peer_new(in.context, OUT)) == 0)
		in.peer = GAVE(struct rpma_peer *);
	END(rpma_peer_delete, in.peer);
	END(rpma_peer_delete, in.peer);
	CALL(rpma_peer_delete(NULL));
}

/* ---- memory ---- */

static void mr(void)
{
	static const int advice[][2] = {{0, 0}, {1, 1}, {2, 0}, {-1, 7}};

	if (!have_peer())
		return;
	CALL(rpma_mr_reg(NULL, memory, 64, RPMA_MR_USAGE_SEND, OUT));
	CALL(rpma_mr_reg(in.peer, NULL, 64, RPMA_MR_USAGE_SEND, OUT));
	CALL(rpma_mr_reg(in.peer, memory, 0, RPMA_MR_USAGE_SEND, OUT));
	CALL(rpma_mr_reg(in.peer, memory, 64, 0, OUT));
	CALL(rpma_mr_reg(in.peer, memory, 64, 0x100, OUT));
	CALL(rpma_mr_reg(in.peer, memory, 64, 0x101, OUT));
	CALL(rpma_mr_reg(in.peer, memory, 64, -1, OUT));
	CALL(rpma_mr_reg(in.peer, memory, 64, RPMA_MR_USAGE_SEND, NULL));
	if (CALL(rpma_mr_reg(in.peer, memory + 8, 4096, USAGE_ALL, OUT)) == 0) {
		in.mr = GAVE(struct rpma_mr_local *);
		if (CALL(rpma_mr_get_ptr(in.mr, OUT)) == 0)
			recorder_line("    memory+%td", GAVE(unsigned char *) - memory);
		if (CALL(rpma_mr_get_size(in.mr, OUT)) == 0)
			recorder_line("    %zu", GAVE(size_t));
		if (CALL(rpma_mr_get_descriptor_size(in.mr, OUT)) == 0)
			recorder_line("    %zu", GAVE(size_t));
		/* The address is not the same in each run. */
		if (CALL(rpma_mr_get_descriptor(in.mr, OUT)) == 0)
			recorder_line("    ... %s", hex(out_bytes + 8, 56));
		for (size_t i = 0; i < COUNT(advice); i++)
			CALL(rpma_mr_advise(in.mr, 8, 100, advice[i][0], (uint32_t)advice[i][1]));
		CALL(rpma_mr_advise(in.mr, 4096, 0, 0, 0));
	}
	END(rpma_mr_dereg, in.mr);
	END(rpma_mr_dereg, in.mr);
	CALL(rpma_mr_dereg(NULL));
	CALL(rpma_mr_get_ptr(NULL, OUT));
	CALL(rpma_mr_get_size(NULL, OUT));
	CALL(rpma_mr_get_descriptor(NULL, OUT));
	CALL(rpma_mr_get_descriptor_size(NULL, OUT));
	end_all();
}

/* Each usage by itself and some together. */
static void usages(void)
{
	static const int together[] = {0x0c, 0x30, 0x39, 0x3a, 0xc0, 0x8e, 0xff};

	if (!have_peer())
		return;
	for (size_t i = 0; i < 8 + COUNT(together); i++) {
		int usage = i < 8 ? 1 << i : together[i - 8];

		recorder_line("    usage %#x", usage);
		if (CALL(rpma_mr_reg(in.peer, memory, 4096, usage, OUT)) == 0) {
			in.mr = GAVE(struct rpma_mr_local *);
			END(rpma_mr_dereg, in.mr);
		}
	}
	end_all();
}

/* ---- shared receive queues ---- */

static void cq_of(struct rpma_cq *cq, const char *name)
{
	static const int polled[] = {0, 1, -1, -7, 3};
	struct ibv_wc wc[4];
	int got;

	recorder_line("    %s of %s", cq != NULL ? "the CQ" : "no CQ", name);
	if (CALL(rpma_cq_get_fd(cq, OUT)) == 0)
		recorder_line("    %d", GAVE(int));
	for (size_t i = 0; i < COUNT(polled); i++) {
		recorder_poll(polled[i]);
		recorder_line("    the CQ has %d", polled[i]);
		memset(wc, 0, sizeof(wc));
		if (CALL(rpma_cq_get_wc(cq, 1, wc, NULL)) == 0)
			recorder_line("    %#lx, %#lx", wc[0].wr_id, wc[1].wr_id);
		got = 99;
		CALL(rpma_cq_get_wc(cq, 1, wc, &got));
		recorder_line("    %d", got);
		memset(wc, 0, sizeof(wc));
		got = 99;
		CALL(rpma_cq_get_wc(cq, 2, wc, &got));
		recorder_line("    %d %#lx, %#lx", got, wc[0].wr_id, wc[1].wr_id);
	}
	got = 99;
	CALL(rpma_cq_get_wc(cq, 2, wc, NULL));
	CALL(rpma_cq_get_wc(cq, 0, wc, &got));
	CALL(rpma_cq_get_wc(cq, -1, wc, &got));
	CALL(rpma_cq_get_wc(cq, 1, NULL, &got));
	CALL(rpma_cq_get_wc(NULL, 1, wc, &got));
	CALL(rpma_cq_get_wc(NULL, 2, wc, &got));
	recorder_line("    %d", got);
}

static void srq(void)
{
	if (!have_peer() || !have_mr() || !NEED(rpma_srq_cfg_new(OUT)))
		return;
	in.srq_cfg = GAVE(struct rpma_srq_cfg *);
	if (is_word_of(scenario->cfg, "huge")) {
		NEED(rpma_srq_cfg_set_rq_size(in.srq_cfg, UINT32_MAX));
		NEED(rpma_srq_cfg_set_rcq_size(in.srq_cfg, UINT32_MAX));
	}
	if (is_word_of(scenario->cfg, "no-rcq"))
		NEED(rpma_srq_cfg_set_rcq_size(in.srq_cfg, 0));
	if (is_word_of(scenario->cfg, "default"))
		NEED(rpma_srq_cfg_delete(&in.srq_cfg));
	CALL(rpma_srq_new(NULL, in.srq_cfg, OUT));
	CALL(rpma_srq_new(in.peer, in.srq_cfg, NULL));
	if (CALL(rpma_srq_new(in.peer, in.srq_cfg, OUT)) == 0) {
		in.srq = GAVE(struct rpma_srq *);
		CALL(rpma_srq_recv(in.srq, in.mr, 16, 100, OP_CONTEXT));
		CALL(rpma_srq_recv(in.srq, in.mr, 0, 0, NULL));
		CALL(rpma_srq_recv(in.srq, NULL, 0, 0, OP_CONTEXT));
		CALL(rpma_srq_recv(in.srq, NULL, 1, 0, OP_CONTEXT));
		CALL(rpma_srq_recv(in.srq, NULL, 0, 1, OP_CONTEXT));
		CALL(rpma_srq_recv(NULL, in.mr, 0, 8, OP_CONTEXT));
		CALL(rpma_srq_get_rcq(NULL, OUT));
		CALL(rpma_srq_get_rcq(in.srq, NULL));
		if (CALL(rpma_srq_get_rcq(in.srq, OUT)) == 0 && GAVE(void *) != NULL) {
			struct rpma_cq *rcq = GAVE(struct rpma_cq *);

			cq_of(rcq, "the shared RQ");
			CALL(rpma_cq_wait(rcq));
			recorder_cq_event(0);
			CALL(rpma_cq_wait(rcq));
			recorder_cq_event(-1);
			CALL(rpma_cq_wait(rcq));
		}
	}
	END(rpma_srq_delete, in.srq);
	END(rpma_srq_delete, in.srq);
	CALL(rpma_srq_delete(NULL));
	end_all();
}

/* ---- the passive side ---- */

static void private_data_of_req(void)
{
	struct rpma_conn_private_data data = {(void *)1, 99};

	CALL(rpma_conn_req_get_private_data(in.req, &data));
	recorder_line("    %s %u %s", data.ptr == NULL ? "NULL" : data.ptr == (void *)1 ? "kept" :
			"data", data.len, data.ptr == NULL || data.ptr == (void *)1 ? "" :
			hex(data.ptr, data.len));
}

static void private_data_of_conn(void)
{
	struct rpma_conn_private_data data = {(void *)1, 99};

	CALL(rpma_conn_get_private_data(in.conn, &data));
	recorder_line("    %s %u %s", data.ptr == NULL ? "NULL" : data.ptr == (void *)1 ? "kept" :
			"data", data.len, data.ptr == NULL || data.ptr == (void *)1 ? "" :
			hex(data.ptr, data.len));
}

static void ep(void)
{
	if (!have_peer())
		return;
	CALL(rpma_ep_listen(NULL, "10.77.0.1", "7471", OUT));
	CALL(rpma_ep_listen(in.peer, NULL, "7471", OUT));
	CALL(rpma_ep_listen(in.peer, "10.77.0.1", NULL, OUT));
	CALL(rpma_ep_listen(in.peer, "10.77.0.1", "7471", NULL));
	if (CALL(rpma_ep_listen(in.peer, "10.77.0.1", "7471", OUT)) == 0) {
		in.ep = GAVE(struct rpma_ep *);
		if (CALL(rpma_ep_get_fd(in.ep, OUT)) == 0)
			recorder_line("    %d", GAVE(int));
		CALL(rpma_ep_get_fd(NULL, OUT));
		CALL(rpma_ep_get_fd(in.ep, NULL));
		CALL(rpma_ep_next_conn_req(NULL, NULL, OUT));
		CALL(rpma_ep_next_conn_req(in.ep, NULL, NULL));
		CALL(rpma_ep_next_conn_req(in.ep, NULL, OUT));
	}
	END(rpma_ep_shutdown, in.ep);
	END(rpma_ep_shutdown, in.ep);
	CALL(rpma_ep_shutdown(NULL));
	end_all();
}

/* Events that are no request. */
static void other_events(void)
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
	if (CALL(rpma_ep_next_conn_req(in.ep, in.cfg, OUT)) != 0)
		return false;
	in.req = GAVE(struct rpma_conn_req *);
	return true;
}

static void recv_of_req(void)
{
	CALL(rpma_conn_req_recv(in.req, in.mr, 8, 100, OP_CONTEXT));
	CALL(rpma_conn_req_recv(in.req, in.mr, 0, 0, NULL));
	CALL(rpma_conn_req_recv(in.req, NULL, 0, 0, OP_CONTEXT));
	CALL(rpma_conn_req_recv(NULL, in.mr, 0, 8, OP_CONTEXT));
}

/* Requests that come in and are refused. */
static void incoming(void)
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

	if (CALL(rpma_conn_get_event_fd(in.conn, OUT)) == 0)
		recorder_line("    %d", GAVE(int));
	if (CALL(rpma_conn_get_qp_num(in.conn, OUT)) == 0)
		recorder_line("    %u", GAVE(uint32_t));
	if (CALL(rpma_conn_get_compl_fd(in.conn, OUT)) == 0)
		recorder_line("    %d", GAVE(int));
	CALL(rpma_conn_get_cq(in.conn, &cq));
	CALL(rpma_conn_get_rcq(in.conn, &rcq));
	recorder_line("    %s, %s", cq == NULL ? "no CQ" : "a CQ", rcq == NULL ? "none for receives" :
			rcq == cq ? "the same for receives" : "another for receives");
	CALL(rpma_conn_get_event_fd(NULL, OUT));
	CALL(rpma_conn_get_event_fd(in.conn, NULL));
	CALL(rpma_conn_get_qp_num(NULL, OUT));
	CALL(rpma_conn_get_qp_num(in.conn, NULL));
	CALL(rpma_conn_get_compl_fd(NULL, OUT));
	CALL(rpma_conn_get_compl_fd(in.conn, NULL));
	CALL(rpma_conn_get_cq(NULL, OUT));
	CALL(rpma_conn_get_cq(in.conn, NULL));
	CALL(rpma_conn_get_rcq(NULL, OUT));
	CALL(rpma_conn_get_rcq(in.conn, NULL));
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
		in.conn = GAVE(struct rpma_conn *);
	recorder_line("    request %s", in.req == NULL ? "NULL" : "kept");
}

/* Connections that come in and are accepted. */
static void accepted(void)
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

static void accepted_plain(void)
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
	if (CALL(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", in.cfg, OUT)) != 0)
		return false;
	in.req = GAVE(struct rpma_conn_req *);
	return true;
}

/* Requests that are given up. */
static void outgoing(void)
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
	CALL(rpma_conn_req_get_private_data(NULL, OUT));
	CALL(rpma_conn_req_get_private_data(in.req, NULL));
	END(rpma_conn_req_delete, in.req);
	END(rpma_conn_req_delete, in.req);
	CALL(rpma_conn_req_delete(NULL));
	end_all();
}

/* Connections that are asked for. */
static void requested(void)
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

static void accept_much(void)
{
	memset(much, 0xbe, sizeof(much));
	if (!have_peer() || !have_ep())
		return;
	recorder_cm_event(RDMA_CM_EVENT_CONNECT_REQUEST, much, sizeof(much));
	if (CALL(rpma_ep_next_conn_req(in.ep, NULL, OUT)) == 0) {
		in.req = GAVE(struct rpma_conn_req *);
		private_data_of_req();
		connect_with(&all_of_it);
		if (in.conn != NULL)
			private_data_of_conn();
	}
	end_conn();
	end_all();
}

static void request_much(void)
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
static void bad_connects(void)
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
static void events(void)
{
	if (!have_peer() || !have_conn())
		return;
	CALL(rpma_conn_next_event(NULL, OUT));
	CALL(rpma_conn_next_event(in.conn, NULL));
	CALL(rpma_conn_next_event(in.conn, OUT));
	CALL(rpma_conn_get_private_data(NULL, OUT));
	CALL(rpma_conn_get_private_data(in.conn, NULL));
	for (int event = RDMA_CM_EVENT_ADDR_RESOLVED; event <= RDMA_CM_EVENT_TIMEWAIT_EXIT + 1;
			event++)
		if (event != RDMA_CM_EVENT_CONNECT_REQUEST)
			next_event(event, event == RDMA_CM_EVENT_REJECTED ? "no" : "");
	next_event(RDMA_CM_EVENT_ESTABLISHED, "first");
	next_event(RDMA_CM_EVENT_ESTABLISHED, "second");
	CALL(rpma_conn_disconnect(NULL));
	CALL(rpma_conn_disconnect(in.conn));
	CALL(rpma_conn_delete(NULL));
	end_all();
}

/* Waiting for completions, on a shared channel and without. */
static void waiting(void)
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
		recorder_line("    %s, %d", cq == DUMMY ? "kept" : cq == NULL ? "NULL" : cq == in.cq ?
				"the CQ" : cq == in.rcq ? "the CQ of receives" : "another", is_rcq);
		recorder_cq_event(number);
		cq = DUMMY;
		CALL(rpma_conn_wait(in.conn, -1, &cq, NULL));
		recorder_line("    %s", cq == DUMMY ? "kept" : cq == NULL ? "NULL" : cq == in.cq ?
				"the CQ" : cq == in.rcq ? "the CQ of receives" : "another");
	}
	CALL(rpma_conn_wait(NULL, 0, &cq, NULL));
	CALL(rpma_conn_wait(in.conn, 0, NULL, NULL));
	CALL(rpma_cq_wait(NULL));
	CALL(rpma_cq_get_fd(NULL, OUT));
	CALL(rpma_cq_get_fd(in.cq, NULL));
	end_all();
}

/* ---- operations ---- */

static void ops(void)
{
	static const int flag_values[] = {
		RPMA_F_COMPLETION_ON_ERROR, RPMA_F_COMPLETION_ALWAYS, 2, 4, -1, 0,
	};
	const void *op = OP_CONTEXT;

	if (!have_peer() || !have_mr() || !have_cfg() || !have_conn() || !have_remote(USAGE_ALL))
		return;
	for (size_t i = 0; i < COUNT(flag_values); i++) {
		int flags = flag_values[i];

		recorder_line("    flags %d", flags);
		CALL(rpma_read(in.conn, in.mr, 8, in.remote, 16, 100, flags, op));
		CALL(rpma_read(in.conn, NULL, 0, NULL, 0, 0, flags, op));
		CALL(rpma_write(in.conn, in.remote, 16, in.mr, 8, 100, flags, op));
		CALL(rpma_write(in.conn, NULL, 0, NULL, 0, 0, flags, op));
		CALL(rpma_write_with_imm(in.conn, in.remote, 16, in.mr, 8, 100, flags, 0x01020304, op));
		CALL(rpma_write_with_imm(in.conn, NULL, 0, NULL, 0, 0, flags, 0x01020304, op));
		CALL(rpma_atomic_write(in.conn, in.remote, 16, "12345678", flags, op));
		CALL(rpma_send(in.conn, in.mr, 8, 100, flags, op));
		CALL(rpma_send(in.conn, NULL, 0, 0, flags, op));
		CALL(rpma_send_with_imm(in.conn, in.mr, 8, 100, flags, 0x01020304, op));
		CALL(rpma_send_with_imm(in.conn, NULL, 0, 0, flags, 0x01020304, op));
		CALL(rpma_flush(in.conn, in.remote, 16, 100, RPMA_FLUSH_TYPE_VISIBILITY, flags, op));
	}
	CALL(rpma_recv(in.conn, in.mr, 8, 100, op));
	CALL(rpma_recv(in.conn, NULL, 0, 0, op));
	end_all();
}

/* Memory on one side alone, offsets without memory, and other things that make no sense. */
static void bad_ops(void)
{
	static const size_t triples[][3] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
	const int flags = RPMA_F_COMPLETION_ALWAYS;
	const void *op = OP_CONTEXT;

	if (!have_peer() || !have_mr() || !have_conn() || !have_remote(USAGE_ALL))
		return;
	for (int i = 0; i < 4; i++) {
		struct rpma_mr_local *local = i & 1 ? in.mr : NULL;
		struct rpma_mr_remote *remote = i & 2 ? in.remote : NULL;

		for (size_t j = 0; j < COUNT(triples); j++) {
			size_t a = triples[j][0], b = triples[j][1], n = triples[j][2];

			recorder_line("    %s, %s, %zu, %zu, %zu", local ? "local" : "no local",
					remote ? "remote" : "no remote", a, b, n);
			CALL(rpma_read(in.conn, local, a, remote, b, n, flags, op));
			CALL(rpma_write(in.conn, remote, a, local, b, n, flags, op));
			CALL(rpma_write_with_imm(in.conn, remote, a, local, b, n, flags, 5, op));
			if (remote != NULL)
				continue;
			CALL(rpma_send(in.conn, local, a, n, flags, op));
			CALL(rpma_send_with_imm(in.conn, local, a, n, flags, 5, op));
			CALL(rpma_recv(in.conn, local, a, n, op));
		}
	}
	CALL(rpma_read(NULL, in.mr, 0, in.remote, 0, 8, flags, op));
	CALL(rpma_write(NULL, in.remote, 0, in.mr, 0, 8, flags, op));
	CALL(rpma_write_with_imm(NULL, in.remote, 0, in.mr, 0, 8, flags, 5, op));
	CALL(rpma_send(NULL, in.mr, 0, 8, flags, op));
	CALL(rpma_send_with_imm(NULL, in.mr, 0, 8, flags, 5, op));
	CALL(rpma_recv(NULL, in.mr, 0, 8, op));
	for (size_t offset = 0; offset < 24; offset += 3)
		CALL(rpma_atomic_write(in.conn, in.remote, offset, "12345678", flags, op));
	CALL(rpma_atomic_write(NULL, in.remote, 0, "12345678", flags, op));
	CALL(rpma_atomic_write(in.conn, NULL, 0, "12345678", flags, op));
	CALL(rpma_atomic_write(in.conn, in.remote, 0, NULL, flags, op));
	CALL(rpma_flush(NULL, in.remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, flags, op));
	CALL(rpma_flush(in.conn, NULL, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, flags, op));
	end_all();
}

static bool told(bool direct_write)
{
	if (in.peer_cfg == NULL) {
		if (!NEED(rpma_peer_cfg_new(OUT)))
			return false;
		in.peer_cfg = GAVE(struct rpma_peer_cfg *);
	}
	return NEED(rpma_peer_cfg_set_direct_write_to_pmem(in.peer_cfg, direct_write)) &&
			CALL(rpma_conn_apply_remote_peer_cfg(in.conn, in.peer_cfg)) == 0;
}

/* Flushes of all kinds; up to eight bytes from the end of the region. */
static void flushes(void)
{
	static const unsigned remote_usages[] = {0x3f, 0x1f, 0x2f, 0x0f};
	static const size_t offsets[] = {0, 4088};
	const int flags = RPMA_F_COMPLETION_ALWAYS;
	const void *op = OP_CONTEXT;

	if (!have_peer() || !have_conn())
		return;
	CALL(rpma_conn_apply_remote_peer_cfg(NULL, DUMMY));
	CALL(rpma_conn_apply_remote_peer_cfg(in.conn, NULL));
	for (size_t i = 0; i < COUNT(remote_usages); i++) {
		if (!have_remote(remote_usages[i]))
			return;
		recorder_line("    remote usage %#x", remote_usages[i]);
		for (int direct = 0; direct <= 1; direct++) {
			if (!told(direct))
				return;
			recorder_line("    direct write %d", direct);
			for (size_t j = 0; j < COUNT(offsets); j++) {
				CALL(rpma_flush(in.conn, in.remote, offsets[j], 8, RPMA_FLUSH_TYPE_PERSISTENT,
						flags, op));
				CALL(rpma_flush(in.conn, in.remote, offsets[j], 0, RPMA_FLUSH_TYPE_VISIBILITY,
						flags, op));
			}
		}
		NEED(rpma_mr_remote_delete(&in.remote));
	}
	end_all();
}

/* ---- where libraries are known to differ ---- */

/* Devices that are not there. */
static void no_device_to_request(void)
{
	if (!have_peer())
		return;
	recorder_change("none");
	CALL(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", NULL, OUT));
	end_all();
}

static void no_device_to_accept(void)
{
	if (!have_peer() || !have_ep())
		return;
	recorder_change("none");
	recorder_cm_event(RDMA_CM_EVENT_CONNECT_REQUEST, NULL, 0);
	CALL(rpma_ep_next_conn_req(in.ep, NULL, OUT));
	end_all();
}

/* Four bytes more than four gigabytes. */
static void long_ops(void)
{
	const int flags = RPMA_F_COMPLETION_ALWAYS;

	if (!have_peer() || !have_mr() || !have_conn() || !have_remote(USAGE_ALL) || !have_srq(false))
		return;
	CALL(rpma_read(in.conn, in.mr, 0, in.remote, 0, 0x100000004, flags, NULL));
	CALL(rpma_write(in.conn, in.remote, 0, in.mr, 0, 0x100000004, flags, NULL));
	CALL(rpma_write_with_imm(in.conn, in.remote, 0, in.mr, 0, 0x100000004, flags, 5, NULL));
	CALL(rpma_send(in.conn, in.mr, 0, 0x100000004, flags, NULL));
	CALL(rpma_send_with_imm(in.conn, in.mr, 0, 0x100000004, flags, 5, NULL));
	CALL(rpma_recv(in.conn, in.mr, 0, 0x100000004, NULL));
	CALL(rpma_srq_recv(in.srq, in.mr, 0, 0x100000004, NULL));
	CALL(rpma_mr_advise(in.mr, 0, 0x100000004, 0, 0));
	if (!NEED(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", NULL, OUT)))
		return;
	in.req = GAVE(struct rpma_conn_req *);
	CALL(rpma_conn_req_recv(in.req, in.mr, 0, 0x100000004, NULL));
	/* The longest that there is. */
	CALL(rpma_send(in.conn, in.mr, 0, 0xffffffff, flags, NULL));
	end_all();
}

/* Flushes of the last bytes of a region, and of what lies behind them. */
static void end_flushes(void)
{
	if (!have_peer() || !have_conn() || !have_remote(USAGE_ALL))
		return;
	for (size_t offset = 4086; offset <= 4098; offset++)
		CALL(rpma_flush(in.conn, in.remote, offset, 1, RPMA_FLUSH_TYPE_VISIBILITY,
				RPMA_F_COMPLETION_ALWAYS, NULL));
	CALL(rpma_flush(in.conn, in.remote, SIZE_MAX, 1, RPMA_FLUSH_TYPE_VISIBILITY,
			RPMA_F_COMPLETION_ALWAYS, NULL));
	end_all();
}

static void unknown_flushes(void)
{
	if (!have_peer() || !have_conn() || !have_remote(USAGE_ALL) || !told(true))
		return;
	CALL(rpma_flush(in.conn, in.remote, 0, 8, 2, RPMA_F_COMPLETION_ALWAYS, NULL));
	CALL(rpma_flush(in.conn, in.remote, 0, 8, -1, RPMA_F_COMPLETION_ALWAYS, NULL));
	end_all();
}

static void advice_on_nothing(void)
{
	CALL(rpma_mr_advise(NULL, 0, 8, 0, 0));
}

#define ANY_DEVICE(name, run, cfg, clean) \
	{name " on plain", run, "", cfg, clean}, \
	{name " on native", run, "flush atomic", cfg, clean}

#define ANY_CFG(name, run, device) \
	{name " by default", run, device, NULL, false}, \
	{name " with sizes", run, device, "sizes", false}, \
	{name " with huge", run, device, "huge", false}, \
	{name " with zero", run, device, "zero", false}, \
	{name " with rcq", run, device, "rcq", false}, \
	{name " with shared", run, device, "shared", false}, \
	{name " with shared rcq", run, device, "shared rcq", false}, \
	{name " with srq", run, device, "srq", false}, \
	{name " with srq rcq", run, device, "srq rcq", false}, \
	{name " with srq-rcq", run, device, "srq-rcq", false}, \
	{name " with srq-rcq rcq", run, device, "srq-rcq rcq", false}, \
	{name " with shared srq", run, device, "shared srq", false}, \
	{name " with shared srq rcq", run, device, "shared srq rcq", false}, \
	{name " with shared srq-rcq", run, device, "shared srq-rcq", false}

static const struct scenario scenarios[] = {
	ANY_DEVICE("utils", utils, NULL, false),
	{"utils on odp", utils, "odp", NULL, false},
	{"utils on odp-write", utils, "odp-write", NULL, false},
	{"utils on odp-read", utils, "odp-read", NULL, false},
	{"utils on odp-rc", utils, "odp-rc", NULL, false},
	{"utils on old", utils, "old", NULL, false},
	{"utils on none", utils, "none", NULL, false},
	ANY_DEVICE("peer", peer, NULL, false),
	{"peer on flush", peer, "flush", NULL, false},
	{"peer on flush-global", peer, "flush-global", NULL, false},
	{"peer on flush-persistent", peer, "flush-persistent", NULL, false},
	{"peer on atomic", peer, "atomic", NULL, false},
	{"peer on odp", peer, "odp", NULL, false},
	{"peer on old", peer, "old", NULL, false},
	ANY_DEVICE("mr", mr, NULL, false),
	{"mr on odp", mr, "odp", NULL, false},
	{"mr on odp native", mr, "odp flush atomic", NULL, false},
	{"mr on odp-write", mr, "odp-write", NULL, false},
	{"mr on iwarp", mr, "iwarp", NULL, false},
	{"mr on old", mr, "old", NULL, false},
	ANY_DEVICE("usages", usages, NULL, true),
	{"usages on odp", usages, "odp", NULL, false},
	{"usages on odp paged", usages, "odp paged", NULL, true},
	{"usages on odp paged native", usages, "odp paged flush atomic", NULL, true},
	{"usages on paged", usages, "paged", NULL, true},
	{"usages on volatile", usages, "volatile flush atomic", NULL, true},
	{"usages on odp paged volatile", usages, "odp paged volatile flush atomic", NULL, true},
	{"usages on volatile full", usages, "volatile full flush atomic", NULL, true},
	{"usages on iwarp", usages, "iwarp", NULL, true},
	{"usages on iwarp native", usages, "iwarp flush atomic", NULL, true},
	{"srq by default", srq, "", "default", false},
	{"srq with cfg", srq, "", "", false},
	{"srq with no-rcq", srq, "", "no-rcq", false},
	{"srq with huge", srq, "", "huge", false},
	{"ep", ep, "", NULL, false},
	{"other_events", other_events, "", NULL, false},
	ANY_CFG("incoming", incoming, ""),
	ANY_CFG("outgoing", outgoing, ""),
	ANY_CFG("accepted", accepted, ""),
	{"accepted on native", accepted, "flush atomic", NULL, false},
	{"accepted on flush", accepted, "flush", NULL, false},
	{"accepted on no-extension", accepted, "flush atomic no-extension", NULL, false},
	{"accepted on atomic", accepted, "atomic", NULL, false},
	{"accepted on odp", accepted, "odp", NULL, false},
	{"accepted on iwarp", accepted, "iwarp", NULL, false},
	ANY_DEVICE("accepted_plain", accepted_plain, NULL, false),
	{"accepted_plain on atomic", accepted_plain, "atomic", NULL, false},
	ANY_CFG("requested", requested, ""),
	{"requested on native", requested, "flush atomic", NULL, false},
	{"requested on flush", requested, "flush", NULL, false},
	{"requested on no-extension", requested, "flush atomic no-extension", NULL, false},
	{"requested on atomic", requested, "atomic", NULL, false},
	{"requested on odp", requested, "odp", NULL, false},
	{"requested on iwarp", requested, "iwarp", NULL, false},
	{"accept_much", accept_much, "", NULL, false},
	{"request_much", request_much, "", NULL, false},
	ANY_DEVICE("bad_connects", bad_connects, NULL, false),
	{"bad_connects on atomic", bad_connects, "atomic", NULL, false},
	{"bad_connects with shared rcq", bad_connects, "", "shared rcq", false},
	ANY_DEVICE("events", events, NULL, false),
	{"waiting by default", waiting, "", NULL, false},
	{"waiting with rcq", waiting, "", "rcq", false},
	{"waiting with shared", waiting, "", "shared", false},
	{"waiting with shared rcq", waiting, "", "shared rcq", false},
	{"waiting with srq-rcq", waiting, "", "srq-rcq", false},
	{"waiting with shared srq", waiting, "", "shared srq", false},
	ANY_DEVICE("ops", ops, NULL, false),
	{"ops with srq", ops, "", "srq", true},
	{"ops with shared rcq", ops, "", "shared rcq", true},
	{"ops on flush", ops, "flush", NULL, false},
	{"ops on atomic", ops, "atomic", NULL, false},
	{"ops on no-extension", ops, "flush atomic no-extension", NULL, false},
	ANY_DEVICE("bad_ops", bad_ops, NULL, false),
	ANY_DEVICE("flushes", flushes, NULL, false),
	{"no_device_to_request", no_device_to_request, "", NULL, false},
	{"no_device_to_accept", no_device_to_accept, "", NULL, false},
	{"long_ops", long_ops, "", NULL, false},
	ANY_DEVICE("end_flushes", end_flushes, NULL, false),
	ANY_DEVICE("unknown_flushes", unknown_flushes, NULL, false),
	{"advice_on_nothing", advice_on_nothing, "", NULL, false},
	{"requested on refuse-flush", requested, "flush atomic refuse-flush", NULL, true},
	{"requested on refuse-ops", requested, "flush atomic refuse-ops", NULL, true},
	{"accepted on refuse-flush", accepted, "flush refuse-flush", NULL, true},
	{"accepted on refuse-ops", accepted, "flush atomic refuse-ops", NULL, true},
};

MAIN(scenarios)
