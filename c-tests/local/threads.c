/*
 * threads.c -- what may be used from several threads at once: one connection
 * configuration, the log's settings, and objects that each thread has for itself.
 */
#include "../common.h"
#include <pthread.h>

#define THREADS 4
#define ROUNDS 20000

static struct rpma_conn_cfg *cfg;

/* Two values whose halves do not mix: a torn read would show. */
static const uint32_t sizes[] = {0x11111111, 0x22222222};

static void *use_one_cfg(void *arg)
{
	uintptr_t bad = 0;

	for (int i = 0; i < ROUNDS; i++) {
		uint32_t mine = sizes[(i ^ (int)(intptr_t)arg) & 1], cq = 0, rcq = 0, sq = 0, rq = 0;
		int timeout = -1;
		bool shared;

		bad += rpma_conn_cfg_set_cq_size(cfg, mine) != 0;
		bad += rpma_conn_cfg_set_rcq_size(cfg, mine) != 0;
		bad += rpma_conn_cfg_set_sq_size(cfg, mine) != 0;
		bad += rpma_conn_cfg_set_rq_size(cfg, mine) != 0;
		bad += rpma_conn_cfg_set_timeout(cfg, (int)mine) != 0;
		bad += rpma_conn_cfg_set_compl_channel(cfg, i & 1) != 0;
		bad += rpma_conn_cfg_get_cq_size(cfg, &cq) != 0;
		bad += rpma_conn_cfg_get_rcq_size(cfg, &rcq) != 0;
		bad += rpma_conn_cfg_get_sq_size(cfg, &sq) != 0;
		bad += rpma_conn_cfg_get_rq_size(cfg, &rq) != 0;
		bad += rpma_conn_cfg_get_timeout(cfg, &timeout) != 0;
		bad += rpma_conn_cfg_get_compl_channel(cfg, &shared) != 0;
		bad += cq != sizes[0] && cq != sizes[1];
		bad += rcq != sizes[0] && rcq != sizes[1];
		bad += sq != sizes[0] && sq != sizes[1];
		bad += rq != sizes[0] && rq != sizes[1];
		bad += timeout != (int)sizes[0] && timeout != (int)sizes[1];
	}
	return (void *)bad;
}

static void *use_own_objects(void *arg)
{
	unsigned char desc[21] = {[8] = 1, [20] = 1};
	uintptr_t bad = 0;
	size_t size;

	(void)arg;
	for (int i = 0; i < ROUNDS / 10; i++) {
		struct rpma_conn_cfg *own = NULL;
		struct rpma_peer_cfg *peer = NULL;
		struct rpma_mr_remote *mr = NULL;

		bad += rpma_conn_cfg_new(&own) != 0 || rpma_conn_cfg_delete(&own) != 0;
		bad += rpma_peer_cfg_from_descriptor(desc, 1, &peer) != 0 ||
				rpma_peer_cfg_delete(&peer) != 0;
		bad += rpma_mr_remote_from_descriptor(desc, sizeof(desc), &mr) != 0 ||
				rpma_mr_remote_get_size(mr, &size) != 0 || size != 1 ||
				rpma_mr_remote_delete(&mr) != 0;
	}
	return (void *)bad;
}

static void *use_log_settings(void *arg)
{
	enum rpma_log_level level = RPMA_LOG_DISABLED;
	uintptr_t bad = 0;

	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		/* The manual lets a change of the log's settings ask for a retry. */
		int set = rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_FATAL + (i & 1));
		int fn = rpma_log_set_function(log_capture);

		bad += set != 0 && set != RPMA_E_AGAIN;
		bad += fn != 0 && fn != RPMA_E_AGAIN;
		bad += rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level) != 0;
		bad += level != RPMA_LOG_LEVEL_FATAL && level != RPMA_LOG_LEVEL_ERROR;
	}
	return (void *)bad;
}

static void in_threads(void *(*routine)(void *))
{
	pthread_t thread[THREADS];
	uintptr_t bad = 0;
	void *result;

	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, routine, (void *)(intptr_t)i) != 0)
			FAIL("no thread");
	for (int i = 0; i < THREADS; i++) {
		pthread_join(thread[i], &result);
		bad += (uintptr_t)result;
	}
	show("wrong results", "%ju", (uintmax_t)bad);
}

static void one_cfg(void)
{
	MUST(rpma_conn_cfg_new(&cfg));
	in_threads(use_one_cfg);
	MUST(rpma_conn_cfg_delete(&cfg));
}

static void own_objects(void)
{
	in_threads(use_own_objects);
	show("log lines", "%d", logged.count);
}

static void log_settings(void)
{
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_FATAL);
	in_threads(use_log_settings);
}

static const struct test_case cases[] = {
	{.name = "one-cfg", .run = one_cfg},
	{.name = "own-objects", .run = own_objects},
	{.name = "log-settings", .run = log_settings},
};

MAIN(cases)
