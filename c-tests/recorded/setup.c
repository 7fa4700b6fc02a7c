/*
 * setup.c -- what many scenarios begin and end with, and what several look at.
 */
#include "recorded.h"

bool take(void *handle)
{
	memcpy(handle, OUT, sizeof(void *));
	return true;
}

bool have_peer(void)
{
	return NEED(rpma_peer_new(in.context, OUT)) && take(&in.peer);
}

bool have_mr(void)
{
	return NEED(rpma_mr_reg(in.peer, memory, sizeof(memory), USAGE_ALL, OUT)) && take(&in.mr);
}

bool have_remote(unsigned usage)
{
	return have_remote_at(0x10000000, 4096, usage);
}

bool have_remote_at(uint64_t addr, uint64_t size, unsigned usage)
{
	unsigned char desc[21] = {0};
	uint32_t rkey = 0xf3003000;

	memcpy(desc, &addr, 8);
	memcpy(desc + 8, &size, 8);
	memcpy(desc + 16, &rkey, 4);
	desc[20] = (unsigned char)usage;
	return NEED(rpma_mr_remote_from_descriptor(desc, sizeof(desc), OUT)) && take(&in.remote);
}

bool have_srq(bool with_rcq)
{
	return NEED(rpma_srq_cfg_new(OUT)) && take(&in.srq_cfg) &&
			NEED(rpma_srq_cfg_set_rcq_size(in.srq_cfg, with_rcq ? 5 : 0)) &&
			NEED(rpma_srq_new(in.peer, in.srq_cfg, OUT)) && take(&in.srq);
}

static bool set_sizes(int timeout, uint32_t cq, uint32_t rcq, uint32_t sq, uint32_t rq)
{
	return NEED(rpma_conn_cfg_set_timeout(in.cfg, timeout)) &&
			NEED(rpma_conn_cfg_set_cq_size(in.cfg, cq)) &&
			NEED(rpma_conn_cfg_set_rcq_size(in.cfg, rcq)) &&
			NEED(rpma_conn_cfg_set_sq_size(in.cfg, sq)) &&
			NEED(rpma_conn_cfg_set_rq_size(in.cfg, rq));
}

/*
 * The configuration that the scenario's words describe; none for no words:
 *
 *   sizes, huge, zero
 *                    of the queues, and a timeout
 *   rcq, shared      a CQ for receives; a shared channel
 *   srq, srq-rcq     a shared RQ, one with its own CQ
 */
bool have_cfg(void)
{
	const char *words = scenario->cfg;

	if (words == NULL)
		return true;
	if (!NEED(rpma_conn_cfg_new(OUT)) || !take(&in.cfg))
		return false;
	if (is_word_of(words, "sizes") && !set_sizes(77, 11, 12, 13, 14))
		return false;
	if (is_word_of(words, "huge") &&
			!set_sizes(INT_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX))
		return false;
	if (is_word_of(words, "zero") && !set_sizes(0, 0, 0, 0, 0))
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

bool have_ep(void)
{
	return NEED(rpma_ep_listen(in.peer, "10.77.0.1", "7471", OUT)) && take(&in.ep);
}

bool have_conn(void)
{
	enum rpma_conn_event event;

	if (!NEED(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", in.cfg, OUT)) || !take(&in.req) ||
			!NEED(rpma_conn_req_connect(&in.req, NULL, OUT)) || !take(&in.conn))
		return false;
	recorder_cm_event(RDMA_CM_EVENT_ESTABLISHED, NULL, 0);
	return NEED(rpma_conn_next_event(in.conn, &event)) &&
			NEED(rpma_conn_get_cq(in.conn, OUT)) && take(&in.cq) &&
			NEED(rpma_conn_get_rcq(in.conn, OUT)) && take(&in.rcq);
}

#define END_NEEDED(function, handle) \
	do { \
		if (handle != NULL) \
			NEED(function(&handle)); \
	} while (0)

void end_all(void)
{
	END_NEEDED(rpma_conn_delete, in.conn);
	END_NEEDED(rpma_conn_req_delete, in.req);
	END_NEEDED(rpma_ep_shutdown, in.ep);
	END_NEEDED(rpma_conn_cfg_delete, in.cfg);
	END_NEEDED(rpma_srq_delete, in.srq);
	END_NEEDED(rpma_srq_cfg_delete, in.srq_cfg);
	END_NEEDED(rpma_peer_cfg_delete, in.peer_cfg);
	END_NEEDED(rpma_mr_remote_delete, in.remote);
	END_NEEDED(rpma_mr_dereg, in.mr);
	END_NEEDED(rpma_peer_delete, in.peer);
}

bool told(bool direct_write)
{
	if (in.peer_cfg == NULL && !(NEED(rpma_peer_cfg_new(OUT)) && take(&in.peer_cfg)))
		return false;
	return NEED(rpma_peer_cfg_set_direct_write_to_pmem(in.peer_cfg, direct_write)) &&
			CALL(rpma_conn_apply_remote_peer_cfg(in.conn, in.peer_cfg)) == 0;
}

void cq_of(struct rpma_cq *cq, const char *name)
{
	static const int polled[] = {0, 1, 2, -1, -7, 3}, many[] = {63, 64, 65};
	struct ibv_wc wc[64];
	int got;

	recorder_line("    %s of %s", cq != NULL ? "the CQ" : "no CQ", name);
	GET(rpma_cq_get_fd, cq, "%d", int);
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
	for (size_t i = 0; i < COUNT(many); i++) {
		recorder_poll(many[i]);
		recorder_line("    the CQ has %d", many[i]);
		memset(wc, 0, sizeof(wc));
		got = 99;
		CALL(rpma_cq_get_wc(cq, 64, wc, &got));
		recorder_line("    %d %#lx, %#lx, %#lx", got, wc[0].wr_id, wc[62].wr_id, wc[63].wr_id);
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
