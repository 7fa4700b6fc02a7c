/*
 * threads.c -- what may be used from several threads at once, from several threads at once.
 *
 * Run under a tool that sees races (tests/recorded.rs); the device below has no state that threads
 * share, so that nothing of it keeps them apart, but for a QP between the beginning and the end of a
 * native operation.
 *
 *   threads DEVICE     all at once; exits with 1 if a call gave what it must not give
 */
#include "../common.h"
#include "../recorder/recorder.h"
#include <pthread.h>

#define ROUNDS 40

/* How long all of it may take, under such a tool and on a slow machine. */
#define LIMIT_S 1800

static struct ibv_context *device;
static struct rpma_peer *peer;
static struct rpma_mr_local *mr;
static struct rpma_mr_remote *remote;
static struct rpma_srq *srq;
static struct rpma_srq_cfg *srq_cfg;
static struct rpma_conn_cfg *cfg, *unused_cfg;
static struct rpma_peer_cfg *peer_cfg;
static struct rpma_conn *conn;
static unsigned char memory[4096];
static const unsigned char descriptor[21] = {[9] = 0x10, [20] = 0xff};
static int bad;

#define GOOD(call) \
	do { \
		int good_ = (call); \
		if (good_ != 0) { \
			printf("%s gave %s\n", #call, code_name(good_)); \
			__atomic_store_n(&bad, 1, __ATOMIC_SEQ_CST); \
		} \
	} while (0)

static void ignore_log(enum rpma_log_level level, const char *file, const int line,
		const char *function, const char *format, ...)
{
	(void)level, (void)file, (void)line, (void)function, (void)format;
}

static void ignore_log_too(enum rpma_log_level level, const char *file, const int line,
		const char *function, const char *format, ...)
{
	ignore_log(level, file, line, function, format);
}

/* What logs errors, and what they are logged by. */
static void *log_errors(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct rpma_mr_remote *none;

		if (rpma_mr_remote_from_descriptor(memory, 20, &none) != RPMA_E_INVAL)
			GOOD(RPMA_E_UNKNOWN);
	}
	return NULL;
}

static void *change_log(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		enum rpma_log_level level;

		GOOD(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, i % 2 ? RPMA_LOG_LEVEL_DEBUG :
				RPMA_LOG_DISABLED));
		GOOD(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_DISABLED));
		GOOD(rpma_log_get_threshold(RPMA_LOG_THRESHOLD, &level));
		GOOD(rpma_log_set_function(i % 3 == 0 ? ignore_log : i % 3 == 1 ? ignore_log_too :
				RPMA_LOG_USE_DEFAULT_FUNCTION));
	}
	return NULL;
}

/* Objects that a thread has for itself, on a peer that all have. */
static void *own_objects(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct rpma_mr_local *own_mr;
		struct rpma_srq *own_srq;
		struct rpma_ep *ep;
		struct rpma_conn_req *req, *other_req;
		struct rpma_conn *own, *other;
		struct rpma_conn_private_data data;
		struct rpma_cq *cq;
		struct ibv_context *found;
		enum rpma_conn_event event;
		struct ibv_wc wc;
		int fd;

		GOOD(rpma_utils_get_ibv_context("10.77.0.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, &found));
		GOOD(rpma_mr_reg(peer, memory, sizeof(memory), 0xff, &own_mr));
		GOOD(rpma_srq_new(peer, srq_cfg, &own_srq));
		GOOD(rpma_ep_listen(peer, "10.77.0.1", "7471", &ep));
		GOOD(rpma_ep_get_fd(ep, &fd));
		GOOD(rpma_ep_next_conn_req(ep, NULL, &req));
		GOOD(rpma_conn_req_get_private_data(req, &data));
		GOOD(rpma_conn_req_delete(&req));
		GOOD(rpma_ep_next_conn_req(ep, NULL, &req));
		GOOD(rpma_conn_req_connect(&req, NULL, &own));
		GOOD(rpma_conn_req_new(peer, "10.77.0.1", "7471", cfg, &other_req));
		GOOD(rpma_conn_req_recv(other_req, own_mr, 0, 8, NULL));
		GOOD(rpma_conn_req_connect(&other_req, NULL, &other));
		GOOD(rpma_conn_next_event(own, &event));
		GOOD(rpma_conn_get_private_data(own, &data));
		GOOD(rpma_conn_apply_remote_peer_cfg(own, peer_cfg));
		GOOD(rpma_conn_get_cq(own, &cq));
		GOOD(rpma_cq_wait(cq));
		if (rpma_cq_get_wc(cq, 1, &wc, NULL) != RPMA_E_NO_COMPLETION)
			GOOD(RPMA_E_UNKNOWN);
		GOOD(rpma_conn_disconnect(own));
		GOOD(rpma_conn_delete(&own));
		GOOD(rpma_conn_delete(&other));
		GOOD(rpma_ep_shutdown(&ep));
		GOOD(rpma_srq_delete(&own_srq));
		GOOD(rpma_mr_dereg(&own_mr));
	}
	return NULL;
}

/* Configurations, peers and memory of the other side, which a thread has for itself. */
static void *own_configurations(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct rpma_conn_cfg *own;
		struct rpma_srq_cfg *own_srq_cfg;
		struct rpma_peer_cfg *own_peer_cfg;
		struct rpma_mr_remote *own_remote;
		struct rpma_peer *own_peer;
		struct rpma_srq *set;
		struct rpma_conn_req *req;
		uint32_t size;
		int odp;

		GOOD(rpma_utils_ibv_context_is_odp_capable(device, &odp));
		GOOD(rpma_peer_new(device, &own_peer));
		GOOD(rpma_conn_cfg_new(&own));
		GOOD(rpma_conn_cfg_set_sq_size(own, (uint32_t)i));
		GOOD(rpma_conn_cfg_set_rq_size(own, (uint32_t)i));
		GOOD(rpma_conn_cfg_set_srq(own, srq));
		GOOD(rpma_conn_cfg_get_sq_size(own, &size));
		GOOD(rpma_conn_cfg_get_rq_size(own, &size));
		GOOD(rpma_conn_cfg_get_srq(own, &set));
		GOOD(rpma_conn_req_new(own_peer, "10.77.0.1", "7471", own, &req));
		GOOD(rpma_conn_req_delete(&req));
		GOOD(rpma_conn_cfg_delete(&own));
		GOOD(rpma_srq_cfg_new(&own_srq_cfg));
		GOOD(rpma_srq_cfg_set_rq_size(own_srq_cfg, 7));
		GOOD(rpma_srq_cfg_set_rcq_size(own_srq_cfg, 7));
		GOOD(rpma_srq_cfg_delete(&own_srq_cfg));
		GOOD(rpma_peer_cfg_new(&own_peer_cfg));
		GOOD(rpma_peer_cfg_delete(&own_peer_cfg));
		GOOD(rpma_peer_cfg_from_descriptor(descriptor, 1, &own_peer_cfg));
		GOOD(rpma_peer_cfg_delete(&own_peer_cfg));
		GOOD(rpma_mr_remote_from_descriptor(descriptor, sizeof(descriptor), &own_remote));
		GOOD(rpma_mr_remote_delete(&own_remote));
		GOOD(rpma_peer_delete(&own_peer));
	}
	return NULL;
}

/* Configurations that all have. */
static void *configure(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		struct rpma_srq *set;
		uint32_t size;
		size_t length;
		int timeout;
		bool yes;
		char byte;

		GOOD(rpma_conn_cfg_set_timeout(cfg, i));
		GOOD(rpma_conn_cfg_get_timeout(cfg, &timeout));
		GOOD(rpma_conn_cfg_set_cq_size(cfg, 10));
		GOOD(rpma_conn_cfg_get_cq_size(cfg, &size));
		GOOD(rpma_conn_cfg_set_rcq_size(cfg, i % 2 ? 10 : 0));
		GOOD(rpma_conn_cfg_get_rcq_size(cfg, &size));
		GOOD(rpma_conn_cfg_set_compl_channel(cfg, i % 2));
		GOOD(rpma_conn_cfg_get_compl_channel(cfg, &yes));
		GOOD(rpma_conn_cfg_set_sq_size(cfg, 10));
		GOOD(rpma_conn_cfg_get_sq_size(cfg, &size));
		GOOD(rpma_conn_cfg_set_rq_size(cfg, 10));
		GOOD(rpma_conn_cfg_get_rq_size(cfg, &size));
		/* Of no connection, since its channel could not be a shared one. */
		GOOD(rpma_conn_cfg_set_srq(unused_cfg, srq));
		GOOD(rpma_conn_cfg_get_srq(unused_cfg, &set));
		GOOD(rpma_srq_cfg_set_rq_size(srq_cfg, 10));
		GOOD(rpma_srq_cfg_get_rq_size(srq_cfg, &size));
		GOOD(rpma_srq_cfg_set_rcq_size(srq_cfg, i % 2 ? 10 : 0));
		GOOD(rpma_srq_cfg_get_rcq_size(srq_cfg, &size));
		GOOD(rpma_peer_cfg_set_direct_write_to_pmem(peer_cfg, i % 2));
		GOOD(rpma_peer_cfg_get_direct_write_to_pmem(peer_cfg, &yes));
		GOOD(rpma_peer_cfg_get_descriptor(peer_cfg, &byte));
		GOOD(rpma_peer_cfg_get_descriptor_size(peer_cfg, &length));
	}
	return NULL;
}

/* Memory that all have, and texts. */
static void *look(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		unsigned char got[sizeof(descriptor)];
		struct rpma_cq *cq;
		size_t size;
		void *ptr;
		int usage;

		GOOD(rpma_mr_get_descriptor(mr, got));
		GOOD(rpma_mr_get_descriptor_size(mr, &size));
		GOOD(rpma_mr_get_ptr(mr, &ptr));
		GOOD(rpma_mr_get_size(mr, &size));
		GOOD(rpma_mr_advise(mr, 0, 8, 0, 0));
		GOOD(rpma_mr_remote_get_size(remote, &size));
		GOOD(rpma_mr_remote_get_flush_type(remote, &usage));
		GOOD(rpma_srq_get_rcq(srq, &cq));
		if (*rpma_err_2str(-100000 - i % 12) == '\0' || *rpma_utils_conn_event_2str(i % 7) == '\0')
			GOOD(RPMA_E_UNKNOWN);
	}
	return NULL;
}

/* One connection that all post to and poll. */
static void *one_connection(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		const int flags = RPMA_F_COMPLETION_ALWAYS;
		struct rpma_cq *cq, *rcq;
		struct ibv_wc wc;
		uint32_t number;
		int fd, ret;
		bool is_rcq;

		GOOD(rpma_read(conn, mr, 0, remote, 0, 8, flags, NULL));
		GOOD(rpma_write(conn, remote, 0, mr, 0, 8, flags, NULL));
		GOOD(rpma_write_with_imm(conn, remote, 0, mr, 0, 8, flags, 1, NULL));
		GOOD(rpma_atomic_write(conn, remote, 0, (const char *)memory, flags, NULL));
		GOOD(rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_VISIBILITY, flags, NULL));
		ret = rpma_flush(conn, remote, 0, 8, RPMA_FLUSH_TYPE_PERSISTENT, flags, NULL);
		if (ret != RPMA_E_NOSUPP) /* which goes by peer_cfg, as it is just then */
			GOOD(ret);
		GOOD(rpma_send(conn, mr, 0, 8, flags, NULL));
		GOOD(rpma_send_with_imm(conn, mr, 0, 8, flags, 1, NULL));
		GOOD(rpma_recv(conn, mr, 0, 8, NULL));
		GOOD(rpma_srq_recv(srq, mr, 0, 8, NULL));
		GOOD(rpma_conn_get_cq(conn, &cq));
		GOOD(rpma_conn_get_rcq(conn, &rcq));
		GOOD(rpma_conn_get_qp_num(conn, &number));
		GOOD(rpma_conn_get_event_fd(conn, &fd));
		GOOD(rpma_conn_get_compl_fd(conn, &fd));
		GOOD(rpma_cq_get_fd(cq, &fd));
		GOOD(rpma_conn_wait(conn, 0, &cq, &is_rcq));
		GOOD(rpma_conn_apply_remote_peer_cfg(conn, peer_cfg));
		if (rpma_cq_get_wc(cq, 1, &wc, NULL) != RPMA_E_NO_COMPLETION)
			GOOD(RPMA_E_UNKNOWN);
	}
	return NULL;
}

int main(int argc, char *argv[])
{
	static void *(*const all[])(void *) = {
		log_errors, log_errors, change_log, change_log, own_objects, own_objects,
		own_configurations, own_configurations, configure, configure, look, look, one_connection,
		one_connection, one_connection,
	};
	pthread_t threads[COUNT(all)];
	struct rpma_conn_cfg *shared;
	struct rpma_conn_req *req;

	if (argc != 2)
		FAIL("usage: %s DEVICE", argv[0]);
	alarm(LIMIT_S);
	recorder_begin(argv[1], NULL);
	device = recorder_device();
	MUST(rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_DISABLED));
	MUST(rpma_peer_new(device, &peer));
	MUST(rpma_mr_reg(peer, memory, sizeof(memory), 0xff, &mr));
	MUST(rpma_mr_remote_from_descriptor(descriptor, sizeof(descriptor), &remote));
	MUST(rpma_srq_new(peer, NULL, &srq));
	MUST(rpma_srq_cfg_new(&srq_cfg));
	MUST(rpma_conn_cfg_new(&cfg));
	MUST(rpma_conn_cfg_new(&unused_cfg));
	MUST(rpma_peer_cfg_new(&peer_cfg));
	MUST(rpma_conn_cfg_new(&shared));
	MUST(rpma_conn_cfg_set_compl_channel(shared, true));
	MUST(rpma_conn_req_new(peer, "10.77.0.1", "7471", shared, &req));
	MUST(rpma_conn_req_connect(&req, NULL, &conn));
	MUST(rpma_conn_cfg_delete(&shared));
	for (size_t i = 0; i < COUNT(all); i++)
		if (pthread_create(&threads[i], NULL, all[i], NULL) != 0)
			FAIL("no thread");
	for (size_t i = 0; i < COUNT(all); i++)
		pthread_join(threads[i], NULL);
	MUST(rpma_conn_delete(&conn));
	MUST(rpma_peer_cfg_delete(&peer_cfg));
	MUST(rpma_conn_cfg_delete(&cfg));
	MUST(rpma_conn_cfg_delete(&unused_cfg));
	MUST(rpma_srq_cfg_delete(&srq_cfg));
	MUST(rpma_srq_delete(&srq));
	MUST(rpma_mr_remote_delete(&remote));
	MUST(rpma_mr_dereg(&mr));
	MUST(rpma_peer_delete(&peer));
	return bad;
}
