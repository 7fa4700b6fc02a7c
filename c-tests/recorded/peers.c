/*
 * peers.c -- scenarios of devices, peers, memory and shared receive queues.
 */
#include "recorded.h"

/* ---- devices and peers ---- */

void utils(void)
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
	GET(rpma_utils_ibv_context_is_odp_capable, in.context, "%d", int);
	WITHOUT(rpma_utils_ibv_context_is_odp_capable, in.context);
}

/* What needs no device, only memory. */
void objects(void)
{
	static const unsigned char desc[21] = {[9] = 0x10, [20] = 0xff};

	if (CALL(rpma_conn_cfg_new(OUT)) == 0)
		take(&in.cfg);
	END(rpma_conn_cfg_delete, in.cfg);
	if (CALL(rpma_srq_cfg_new(OUT)) == 0)
		take(&in.srq_cfg);
	END(rpma_srq_cfg_delete, in.srq_cfg);
	if (CALL(rpma_peer_cfg_new(OUT)) == 0)
		take(&in.peer_cfg);
	END(rpma_peer_cfg_delete, in.peer_cfg);
	if (CALL(rpma_peer_cfg_from_descriptor("\1", 1, OUT)) == 0)
		take(&in.peer_cfg);
	END(rpma_peer_cfg_delete, in.peer_cfg);
	if (CALL(rpma_mr_remote_from_descriptor(desc, sizeof(desc), OUT)) == 0)
		take(&in.remote);
	END(rpma_mr_remote_delete, in.remote);
}

void peer(void)
{
	WITHOUT(rpma_peer_new, in.context);
	if (CALL(rpma_peer_new(in.context, OUT)) == 0)
		take(&in.peer);
	END_ALWAYS(rpma_peer_delete, in.peer);
}

/* ---- memory ---- */

void mr(void)
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
		take(&in.mr);
		if (CALL(rpma_mr_get_ptr(in.mr, OUT)) == 0)
			recorder_line("    memory+%td", GAVE(unsigned char *) - memory);
		GET(rpma_mr_get_size, in.mr, "%zu", size_t);
		GET(rpma_mr_get_descriptor_size, in.mr, "%zu", size_t);
		/* The address is not the same in each run. */
		if (CALL(rpma_mr_get_descriptor(in.mr, OUT)) == 0)
			recorder_line("    ... %s", hex(out_bytes + 8, 56));
		for (size_t i = 0; i < COUNT(advice); i++)
			CALL(rpma_mr_advise(in.mr, 8, 100, advice[i][0], (uint32_t)advice[i][1]));
		CALL(rpma_mr_advise(in.mr, 4096, 0, 0, 0));
	}
	END_ALWAYS(rpma_mr_dereg, in.mr);
	CALL(rpma_mr_get_ptr(NULL, OUT));
	CALL(rpma_mr_get_size(NULL, OUT));
	CALL(rpma_mr_get_descriptor(NULL, OUT));
	CALL(rpma_mr_get_descriptor_size(NULL, OUT));
	end_all();
}

/* Each usage by itself and some together. */
void usages(void)
{
	static const int together[] = {0x0c, 0x30, 0x39, 0x3a, 0xc0, 0x8e, 0xff};

	if (!have_peer())
		return;
	for (size_t i = 0; i < 8 + COUNT(together); i++) {
		int usage = i < 8 ? 1 << i : together[i - 8];

		recorder_line("    usage %#x", usage);
		if (CALL(rpma_mr_reg(in.peer, memory, 4096, usage, OUT)) == 0) {
			take(&in.mr);
			END(rpma_mr_dereg, in.mr);
		}
	}
	end_all();
}

/* ---- shared receive queues ---- */

void srq(void)
{
	if (!have_peer() || !have_mr() || !NEED(rpma_srq_cfg_new(OUT)))
		return;
	take(&in.srq_cfg);
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
		take(&in.srq);
		CALL(rpma_srq_recv(in.srq, in.mr, 16, 100, OP_CONTEXT));
		CALL(rpma_srq_recv(in.srq, in.mr, 0, 0, NULL));
		CALL(rpma_srq_recv(in.srq, NULL, 0, 0, OP_CONTEXT));
		CALL(rpma_srq_recv(in.srq, NULL, 1, 0, OP_CONTEXT));
		CALL(rpma_srq_recv(in.srq, NULL, 0, 1, OP_CONTEXT));
		CALL(rpma_srq_recv(NULL, in.mr, 0, 8, OP_CONTEXT));
		WITHOUT(rpma_srq_get_rcq, in.srq);
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
	END_ALWAYS(rpma_srq_delete, in.srq);
	end_all();
}
