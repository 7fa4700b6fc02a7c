/*
 * differences.c -- scenarios where libraries are known to differ.
 */
#include "recorded.h"

/* Devices that are not there. */
void no_device_to_request(void)
{
	if (!have_peer())
		return;
	recorder_change("none");
	CALL(rpma_conn_req_new(in.peer, "10.77.0.1", "7471", NULL, OUT));
	end_all();
}

void no_device_to_accept(void)
{
	if (!have_peer() || !have_ep())
		return;
	recorder_change("none");
	recorder_cm_event(RDMA_CM_EVENT_CONNECT_REQUEST, NULL, 0);
	CALL(rpma_ep_next_conn_req(in.ep, NULL, OUT));
	end_all();
}

/* Four bytes more than four gigabytes. */
void long_ops(void)
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
	take(&in.req);
	CALL(rpma_conn_req_recv(in.req, in.mr, 0, 0x100000004, NULL));
	/* The longest that there is. */
	CALL(rpma_send(in.conn, in.mr, 0, 0xffffffff, flags, NULL));
	end_all();
}

/* Flushes of the last bytes of a region, and of what lies behind them. */
void end_flushes(void)
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

void unknown_flushes(void)
{
	if (!have_peer() || !have_conn() || !have_remote(USAGE_ALL) || !told(true))
		return;
	CALL(rpma_flush(in.conn, in.remote, 0, 8, 2, RPMA_F_COMPLETION_ALWAYS, NULL));
	CALL(rpma_flush(in.conn, in.remote, 0, 8, -1, RPMA_F_COMPLETION_ALWAYS, NULL));
	end_all();
}

void advice_on_nothing(void)
{
	CALL(rpma_mr_advise(NULL, 0, 8, 0, 0));
}
