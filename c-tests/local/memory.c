/*
 * memory.c -- what needs memory says so when there is none, and leaves everything as it was.
 */
#include "../no_memory.h"

static int conn_cfg_new(void)
{
	struct rpma_conn_cfg **cfg = OUT;
	int ret = SHORT(rpma_conn_cfg_new(cfg));

	if (ret == 0)
		MUST(rpma_conn_cfg_delete(cfg));
	return ret;
}

static int srq_cfg_new(void)
{
	struct rpma_srq_cfg **cfg = OUT;
	int ret = SHORT(rpma_srq_cfg_new(cfg));

	if (ret == 0)
		MUST(rpma_srq_cfg_delete(cfg));
	return ret;
}

static int peer_cfg_new(void)
{
	struct rpma_peer_cfg **cfg = OUT;
	int ret = SHORT(rpma_peer_cfg_new(cfg));

	if (ret == 0)
		MUST(rpma_peer_cfg_delete(cfg));
	return ret;
}

static int peer_cfg_from_descriptor(void)
{
	struct rpma_peer_cfg **cfg = OUT;
	int ret = SHORT(rpma_peer_cfg_from_descriptor("\1", 1, cfg));

	if (ret == 0)
		MUST(rpma_peer_cfg_delete(cfg));
	return ret;
}

static int mr_remote_from_descriptor(void)
{
	static const unsigned char desc[21] = {[20] = 1};
	struct rpma_mr_remote **mr = OUT;
	int ret = SHORT(rpma_mr_remote_from_descriptor(desc, sizeof(desc), mr));

	if (ret == 0)
		MUST(rpma_mr_remote_delete(mr));
	return ret;
}

/* Errors are told of without memory as well. */
static int default_log(void)
{
	return SHORT(rpma_mr_remote_from_descriptor(DUMMY, 20, OUT)) == RPMA_E_INVAL ? 0 : 1;
}

static void shortages(void)
{
	with_too_little_memory("conn_cfg_new", conn_cfg_new);
	with_too_little_memory("srq_cfg_new", srq_cfg_new);
	with_too_little_memory("peer_cfg_new", peer_cfg_new);
	with_too_little_memory("peer_cfg_from_descriptor", peer_cfg_from_descriptor);
	with_too_little_memory("mr_remote_from_descriptor", mr_remote_from_descriptor);
	MUST(rpma_log_set_function(RPMA_LOG_USE_DEFAULT_FUNCTION));
	with_too_little_memory("an error line", default_log);
}

static const struct test_case cases[] = {
	{.name = "shortages", .run = shortages},
};

MAIN(cases)
