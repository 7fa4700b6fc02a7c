/*
 * args.c -- what every function says to a bad argument: each parameter NULL and
 * out of range in turn, the others good. No device is needed, because nothing
 * may be touched before the arguments are checked.
 */
#include "../common.h"

#define ALWAYS RPMA_F_COMPLETION_ALWAYS
#define ANY_ADDR "127.0.0.1"
#define ANY_PORT "7204"
#define ALL_USAGES 0xff

static const char eight[8];

static void utils(void)
{
	TRY(rpma_utils_get_ibv_context(NULL, RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT));
	TRY(rpma_utils_get_ibv_context(ANY_ADDR, RPMA_UTIL_IBV_CONTEXT_LOCAL, NULL));
	TRY(rpma_utils_get_ibv_context(NULL, RPMA_UTIL_IBV_CONTEXT_REMOTE, OUT));
	TRY(rpma_utils_get_ibv_context(ANY_ADDR, RPMA_UTIL_IBV_CONTEXT_REMOTE, NULL));
	TRY(rpma_utils_ibv_context_is_odp_capable(NULL, OUT));
	TRY(rpma_utils_ibv_context_is_odp_capable(DUMMY, NULL));
}

static void peer(void)
{
	struct rpma_peer *null = NULL;

	TRY(rpma_peer_new(NULL, OUT));
	TRY(rpma_peer_new(DUMMY, NULL));
	TRY(rpma_peer_new(NULL, NULL));
	TRY(rpma_peer_delete(NULL));
	TRY(rpma_peer_delete(&null));
}

static void peer_cfg(void)
{
	struct rpma_peer_cfg *null = NULL;

	TRY(rpma_peer_cfg_new(NULL));
	TRY(rpma_peer_cfg_delete(NULL));
	TRY(rpma_peer_cfg_delete(&null));
	TRY(rpma_peer_cfg_set_direct_write_to_pmem(NULL, true));
	TRY(rpma_peer_cfg_get_direct_write_to_pmem(NULL, OUT));
	TRY(rpma_peer_cfg_get_direct_write_to_pmem(DUMMY, NULL));
	TRY(rpma_peer_cfg_get_descriptor(NULL, OUT));
	TRY(rpma_peer_cfg_get_descriptor(DUMMY, NULL));
	TRY(rpma_peer_cfg_get_descriptor_size(NULL, OUT));
	TRY(rpma_peer_cfg_get_descriptor_size(DUMMY, NULL));
	TRY(rpma_peer_cfg_from_descriptor(NULL, 1, OUT));
	TRY(rpma_peer_cfg_from_descriptor(DUMMY, 1, NULL));
	TRY(rpma_peer_cfg_from_descriptor(DUMMY, 0, OUT));
}

static void mr(void)
{
	struct rpma_mr_local *null = NULL;
	struct rpma_mr_remote *null_remote = NULL;

	TRY(rpma_mr_reg(NULL, DUMMY, 8, ALL_USAGES, OUT));
	TRY(rpma_mr_reg(DUMMY, NULL, 8, ALL_USAGES, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 0, ALL_USAGES, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 8, 0, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 8, ALL_USAGES + 1, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 8, 1 << 8 | 1, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 8, 1 << 30 | 1, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 8, INT_MIN, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 8, -1, OUT));
	TRY(rpma_mr_reg(DUMMY, DUMMY, 8, ALL_USAGES, NULL));
	TRY(rpma_mr_dereg(NULL));
	TRY(rpma_mr_dereg(&null));
	TRY(rpma_mr_get_descriptor(NULL, OUT));
	TRY(rpma_mr_get_descriptor(DUMMY, NULL));
	TRY(rpma_mr_get_descriptor_size(NULL, OUT));
	TRY(rpma_mr_get_descriptor_size(DUMMY, NULL));
	TRY(rpma_mr_get_ptr(NULL, OUT));
	TRY(rpma_mr_get_ptr(DUMMY, NULL));
	TRY(rpma_mr_get_size(NULL, OUT));
	TRY(rpma_mr_get_size(DUMMY, NULL));
	DIFF("D9")
		TRY_IN_CHILD(rpma_mr_advise(NULL, 0, 8, 0, 0));
	TRY(rpma_mr_remote_from_descriptor(NULL, 21, OUT));
	TRY(rpma_mr_remote_from_descriptor(DUMMY, 21, NULL));
	TRY(rpma_mr_remote_from_descriptor(DUMMY, 20, OUT));
	TRY(rpma_mr_remote_from_descriptor(NULL, 20, OUT));
	TRY(rpma_mr_remote_get_size(NULL, OUT));
	TRY(rpma_mr_remote_get_size(DUMMY, NULL));
	TRY(rpma_mr_remote_get_flush_type(NULL, OUT));
	TRY(rpma_mr_remote_get_flush_type(DUMMY, NULL));
	TRY(rpma_mr_remote_delete(NULL));
	TRY(rpma_mr_remote_delete(&null_remote));
}

static void conn_cfg(void)
{
	struct rpma_conn_cfg *cfg, *null = NULL;

	TRY(rpma_conn_cfg_new(NULL));
	TRY(rpma_conn_cfg_delete(NULL));
	TRY(rpma_conn_cfg_delete(&null));
	MUST(rpma_conn_cfg_new(&cfg));
	TRY(rpma_conn_cfg_set_timeout(NULL, 1));
	TRY(rpma_conn_cfg_set_timeout(cfg, -1));
	TRY(rpma_conn_cfg_set_timeout(cfg, INT_MIN));
	TRY(rpma_conn_cfg_get_timeout(NULL, OUT));
	TRY(rpma_conn_cfg_get_timeout(cfg, NULL));
	TRY(rpma_conn_cfg_set_cq_size(NULL, 1));
	TRY(rpma_conn_cfg_get_cq_size(NULL, OUT));
	TRY(rpma_conn_cfg_get_cq_size(cfg, NULL));
	TRY(rpma_conn_cfg_set_rcq_size(NULL, 1));
	TRY(rpma_conn_cfg_get_rcq_size(NULL, OUT));
	TRY(rpma_conn_cfg_get_rcq_size(cfg, NULL));
	TRY(rpma_conn_cfg_set_sq_size(NULL, 1));
	TRY(rpma_conn_cfg_get_sq_size(NULL, OUT));
	TRY(rpma_conn_cfg_get_sq_size(cfg, NULL));
	TRY(rpma_conn_cfg_set_rq_size(NULL, 1));
	TRY(rpma_conn_cfg_get_rq_size(NULL, OUT));
	TRY(rpma_conn_cfg_get_rq_size(cfg, NULL));
	TRY(rpma_conn_cfg_set_compl_channel(NULL, true));
	TRY(rpma_conn_cfg_get_compl_channel(NULL, OUT));
	TRY(rpma_conn_cfg_get_compl_channel(cfg, NULL));
	TRY(rpma_conn_cfg_set_srq(NULL, DUMMY));
	TRY(rpma_conn_cfg_set_srq(cfg, NULL));
	TRY(rpma_conn_cfg_get_srq(NULL, OUT));
	TRY(rpma_conn_cfg_get_srq(cfg, NULL));
	MUST(rpma_conn_cfg_delete(&cfg));
}

static void srq(void)
{
	struct rpma_srq_cfg *cfg, *null_cfg = NULL;
	struct rpma_srq *null = NULL;

	TRY(rpma_srq_cfg_new(NULL));
	TRY(rpma_srq_cfg_delete(NULL));
	TRY(rpma_srq_cfg_delete(&null_cfg));
	MUST(rpma_srq_cfg_new(&cfg));
	TRY(rpma_srq_cfg_set_rq_size(NULL, 1));
	TRY(rpma_srq_cfg_get_rq_size(NULL, OUT));
	TRY(rpma_srq_cfg_get_rq_size(cfg, NULL));
	TRY(rpma_srq_cfg_set_rcq_size(NULL, 1));
	TRY(rpma_srq_cfg_get_rcq_size(NULL, OUT));
	TRY(rpma_srq_cfg_get_rcq_size(cfg, NULL));
	TRY(rpma_srq_new(NULL, cfg, OUT));
	TRY(rpma_srq_new(NULL, NULL, OUT));
	TRY(rpma_srq_new(DUMMY, cfg, NULL));
	TRY(rpma_srq_delete(NULL));
	TRY(rpma_srq_delete(&null));
	TRY(rpma_srq_recv(NULL, DUMMY, 0, 8, OP_CONTEXT));
	TRY(rpma_srq_recv(NULL, NULL, 0, 0, OP_CONTEXT));
	TRY(rpma_srq_recv(DUMMY, NULL, 1, 0, OP_CONTEXT));
	TRY(rpma_srq_recv(DUMMY, NULL, 0, 1, OP_CONTEXT));
	TRY(rpma_srq_get_rcq(NULL, OUT));
	TRY(rpma_srq_get_rcq(DUMMY, NULL));
	MUST(rpma_srq_cfg_delete(&cfg));
}

static void ep(void)
{
	struct rpma_ep *null = NULL;

	TRY(rpma_ep_listen(NULL, ANY_ADDR, ANY_PORT, OUT));
	TRY(rpma_ep_listen(DUMMY, NULL, ANY_PORT, OUT));
	TRY(rpma_ep_listen(DUMMY, ANY_ADDR, NULL, OUT));
	TRY(rpma_ep_listen(DUMMY, ANY_ADDR, ANY_PORT, NULL));
	TRY(rpma_ep_shutdown(NULL));
	TRY(rpma_ep_shutdown(&null));
	TRY(rpma_ep_get_fd(NULL, OUT));
	TRY(rpma_ep_get_fd(DUMMY, NULL));
	TRY(rpma_ep_next_conn_req(NULL, NULL, OUT));
	TRY(rpma_ep_next_conn_req(DUMMY, NULL, NULL));
}

static void conn_req(void)
{
	struct rpma_conn_req *null = NULL;
	struct rpma_conn_private_data data = {dummy_bytes, 8};

	TRY(rpma_conn_req_new(NULL, ANY_ADDR, ANY_PORT, NULL, OUT));
	TRY(rpma_conn_req_new(DUMMY, NULL, ANY_PORT, NULL, OUT));
	TRY(rpma_conn_req_new(DUMMY, ANY_ADDR, NULL, NULL, OUT));
	TRY(rpma_conn_req_new(DUMMY, ANY_ADDR, ANY_PORT, NULL, NULL));
	TRY(rpma_conn_req_delete(NULL));
	TRY(rpma_conn_req_delete(&null));
	TRY(rpma_conn_req_connect(NULL, NULL, OUT));
	TRY(rpma_conn_req_connect(&null, NULL, OUT));
	TRY(rpma_conn_req_connect(&null, &data, OUT));
	TRY(rpma_conn_req_connect(&null, &data, NULL));
	TRY(rpma_conn_req_recv(NULL, DUMMY, 0, 8, OP_CONTEXT));
	TRY(rpma_conn_req_recv(DUMMY, NULL, 0, 8, OP_CONTEXT));
	TRY(rpma_conn_req_recv(DUMMY, NULL, 0, 0, OP_CONTEXT));
	TRY(rpma_conn_req_get_private_data(NULL, OUT));
	TRY(rpma_conn_req_get_private_data(DUMMY, NULL));
}

static void conn(void)
{
	struct rpma_conn *null = NULL;

	TRY(rpma_conn_get_event_fd(NULL, OUT));
	TRY(rpma_conn_get_event_fd(DUMMY, NULL));
	TRY(rpma_conn_next_event(NULL, OUT));
	TRY(rpma_conn_next_event(DUMMY, NULL));
	TRY(rpma_conn_get_private_data(NULL, OUT));
	TRY(rpma_conn_get_private_data(DUMMY, NULL));
	TRY(rpma_conn_apply_remote_peer_cfg(NULL, DUMMY));
	TRY(rpma_conn_apply_remote_peer_cfg(DUMMY, NULL));
	TRY(rpma_conn_get_qp_num(NULL, OUT));
	TRY(rpma_conn_get_qp_num(DUMMY, NULL));
	TRY(rpma_conn_get_cq(NULL, OUT));
	TRY(rpma_conn_get_cq(DUMMY, NULL));
	TRY(rpma_conn_get_rcq(NULL, OUT));
	TRY(rpma_conn_get_rcq(DUMMY, NULL));
	TRY(rpma_conn_get_compl_fd(NULL, OUT));
	TRY(rpma_conn_get_compl_fd(DUMMY, NULL));
	TRY(rpma_conn_wait(NULL, 0, OUT, NULL));
	TRY(rpma_conn_wait(DUMMY, 0, NULL, OUT));
	TRY(rpma_conn_disconnect(NULL));
	TRY(rpma_conn_delete(NULL));
	TRY(rpma_conn_delete(&null));
}

/* Each operation takes memory on both sides or none at all, and never no flags. */
static void ops(void)
{
	TRY(rpma_read(NULL, DUMMY, 0, DUMMY, 0, 8, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, NULL, 0, DUMMY, 0, 8, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, DUMMY, 0, NULL, 0, 8, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, DUMMY, 0, DUMMY, 0, 8, 0, OP_CONTEXT));
	TRY(rpma_read(NULL, NULL, 0, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, NULL, 0, DUMMY, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, DUMMY, 0, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, NULL, 1, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, NULL, 0, NULL, 1, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, NULL, 0, NULL, 0, 1, ALWAYS, OP_CONTEXT));
	TRY(rpma_read(DUMMY, NULL, 0, NULL, 0, 0, 0, OP_CONTEXT));

	TRY(rpma_write(NULL, DUMMY, 0, DUMMY, 0, 8, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, NULL, 0, DUMMY, 0, 8, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, DUMMY, 0, NULL, 0, 8, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, DUMMY, 0, DUMMY, 0, 8, 0, OP_CONTEXT));
	TRY(rpma_write(NULL, NULL, 0, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, NULL, 0, DUMMY, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, DUMMY, 0, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, NULL, 1, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, NULL, 0, NULL, 1, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, NULL, 0, NULL, 0, 1, ALWAYS, OP_CONTEXT));
	TRY(rpma_write(DUMMY, NULL, 0, NULL, 0, 0, 0, OP_CONTEXT));

	TRY(rpma_write_with_imm(NULL, DUMMY, 0, DUMMY, 0, 8, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, NULL, 0, DUMMY, 0, 8, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, DUMMY, 0, NULL, 0, 8, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, DUMMY, 0, DUMMY, 0, 8, 0, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(NULL, NULL, 0, NULL, 0, 0, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, NULL, 0, DUMMY, 0, 0, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, DUMMY, 0, NULL, 0, 0, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, NULL, 1, NULL, 0, 0, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, NULL, 0, NULL, 1, 0, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, NULL, 0, NULL, 0, 1, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_write_with_imm(DUMMY, NULL, 0, NULL, 0, 0, 0, 1, OP_CONTEXT));

	TRY(rpma_atomic_write(NULL, DUMMY, 0, eight, ALWAYS, OP_CONTEXT));
	TRY(rpma_atomic_write(DUMMY, NULL, 0, eight, ALWAYS, OP_CONTEXT));
	TRY(rpma_atomic_write(DUMMY, DUMMY, 0, NULL, ALWAYS, OP_CONTEXT));
	TRY(rpma_atomic_write(DUMMY, DUMMY, 0, eight, 0, OP_CONTEXT));
	for (size_t offset = 1; offset < 8; offset++)
		TRY(rpma_atomic_write(DUMMY, DUMMY, offset, eight, ALWAYS, OP_CONTEXT));

	TRY(rpma_flush(NULL, DUMMY, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, OP_CONTEXT));
	TRY(rpma_flush(DUMMY, NULL, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, ALWAYS, OP_CONTEXT));
	TRY(rpma_flush(DUMMY, DUMMY, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, 0, OP_CONTEXT));
	TRY(rpma_flush(DUMMY, DUMMY, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, 0, OP_CONTEXT));

	TRY(rpma_send(NULL, DUMMY, 0, 8, ALWAYS, OP_CONTEXT));
	TRY(rpma_send(DUMMY, DUMMY, 0, 8, 0, OP_CONTEXT));
	TRY(rpma_send(NULL, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_send(DUMMY, NULL, 0, 0, 0, OP_CONTEXT));
	TRY(rpma_send(DUMMY, NULL, 1, 0, ALWAYS, OP_CONTEXT));
	TRY(rpma_send(DUMMY, NULL, 0, 1, ALWAYS, OP_CONTEXT));

	TRY(rpma_send_with_imm(NULL, DUMMY, 0, 8, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_send_with_imm(DUMMY, DUMMY, 0, 8, 0, 1, OP_CONTEXT));
	TRY(rpma_send_with_imm(NULL, NULL, 0, 0, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_send_with_imm(DUMMY, NULL, 0, 0, 0, 1, OP_CONTEXT));
	TRY(rpma_send_with_imm(DUMMY, NULL, 1, 0, ALWAYS, 1, OP_CONTEXT));
	TRY(rpma_send_with_imm(DUMMY, NULL, 0, 1, ALWAYS, 1, OP_CONTEXT));

	TRY(rpma_recv(NULL, DUMMY, 0, 8, OP_CONTEXT));
	TRY(rpma_recv(NULL, NULL, 0, 0, OP_CONTEXT));
	TRY(rpma_recv(DUMMY, NULL, 1, 0, OP_CONTEXT));
	TRY(rpma_recv(DUMMY, NULL, 0, 1, OP_CONTEXT));
}

static void cq(void)
{
	struct ibv_wc wc[2];

	TRY(rpma_cq_get_fd(NULL, OUT));
	TRY(rpma_cq_get_fd(DUMMY, NULL));
	TRY(rpma_cq_wait(NULL));
	TRY(rpma_cq_get_wc(NULL, 1, wc, OUT));
	TRY(rpma_cq_get_wc(NULL, 1, wc, NULL));
	TRY(rpma_cq_get_wc(DUMMY, 0, wc, OUT));
	TRY(rpma_cq_get_wc(DUMMY, -1, wc, OUT));
	TRY(rpma_cq_get_wc(DUMMY, INT_MIN, wc, OUT));
	TRY(rpma_cq_get_wc(DUMMY, 1, NULL, OUT));
	TRY(rpma_cq_get_wc(DUMMY, 2, wc, NULL));
}

static void log_args(void)
{
	TRY(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, NULL));
	for (int t = -2; t <= 3; t++) {
		char key[64];

		snprintf(key, sizeof(key), "rpma_log_get_threshold(%d, OUT)", t);
		TRY_AS(key, rpma_log_get_threshold((enum rpma_log_threshold)t, OUT));
		snprintf(key, sizeof(key), "rpma_log_set_threshold(%d, 5)", t);
		TRY_AS(key, rpma_log_set_threshold((enum rpma_log_threshold)t,
				RPMA_LOG_LEVEL_DEBUG));
	}
}

static const struct test_case cases[] = {
	{.name = "utils", .run = utils},
	{.name = "peer", .run = peer},
	{.name = "peer-cfg", .run = peer_cfg},
	{.name = "mr", .run = mr},
	{.name = "conn-cfg", .run = conn_cfg},
	{.name = "srq", .run = srq},
	{.name = "ep", .run = ep},
	{.name = "conn-req", .run = conn_req},
	{.name = "conn", .run = conn},
	{.name = "ops", .run = ops},
	{.name = "cq", .run = cq},
	{.name = "log", .run = log_args},
};

MAIN(cases)
