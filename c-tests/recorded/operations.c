/*
 * operations.c -- scenarios of operations.
 */
#include "recorded.h"

void ops(void)
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
void bad_ops(void)
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

/* What needs all the bits that it has: places, lengths, immediate data, advice. */
void values(void)
{
	static const uint32_t imms[] = {0, 1, 0x80000000, UINT32_MAX};
	static const size_t far[] = {0x200000008, 0x8000000000000000, SIZE_MAX};
	const size_t longest = UINT32_MAX;
	const int flags = RPMA_F_COMPLETION_ALWAYS;
	const void *op = OP_CONTEXT;

	/* Memory that nobody looks at. */
	if (!have_peer() || !NEED(rpma_peer_cfg_new(OUT)) || !take(&in.peer_cfg))
		return;
	if (CALL(rpma_mr_reg(in.peer, (void *)0x700000001000, 0x400000003, USAGE_ALL, OUT)) != 0 ||
			!take(&in.mr))
		return;
	GET(rpma_mr_get_ptr, in.mr, "%p", void *);
	GET(rpma_mr_get_size, in.mr, "%#zx", size_t);
	if (CALL(rpma_mr_get_descriptor(in.mr, OUT)) == 0)
		recorder_line("    %s", hex(OUT, 64));
	CALL(rpma_mr_advise(in.mr, 0x200000008, longest, INT_MAX, UINT32_MAX));
	if (!have_conn() || !have_srq(false) || !have_remote_at(0x8000000010000000, 0x400000003, USAGE_ALL)
			|| !told(true))
		return;
	GET(rpma_mr_remote_get_size, in.remote, "%#zx", size_t);
	GET(rpma_conn_get_qp_num, in.conn, "%#x", uint32_t);
	for (size_t i = 0; i < COUNT(imms); i++) {
		CALL(rpma_write_with_imm(in.conn, in.remote, 16, in.mr, 8, 100, flags, imms[i], op));
		CALL(rpma_write_with_imm(in.conn, NULL, 0, NULL, 0, 0, flags, imms[i], op));
		CALL(rpma_send_with_imm(in.conn, in.mr, 8, 100, flags, imms[i], op));
		CALL(rpma_send_with_imm(in.conn, NULL, 0, 0, flags, imms[i], op));
	}
	for (size_t i = 0; i < COUNT(far); i++) {
		CALL(rpma_read(in.conn, in.mr, far[i], in.remote, 16, longest, flags, op));
		CALL(rpma_read(in.conn, in.mr, 8, in.remote, far[i], longest, flags, op));
		CALL(rpma_write(in.conn, in.remote, 16, in.mr, far[i], longest, flags, op));
		CALL(rpma_write(in.conn, in.remote, far[i], in.mr, 8, longest, flags, op));
		CALL(rpma_write_with_imm(in.conn, in.remote, 16, in.mr, far[i], longest, flags, 5, op));
		CALL(rpma_write_with_imm(in.conn, in.remote, far[i], in.mr, 8, longest, flags, 5, op));
		CALL(rpma_atomic_write(in.conn, in.remote, far[i] & ~7UL, "12345678", flags, op));
		CALL(rpma_send(in.conn, in.mr, far[i], longest, flags, op));
		CALL(rpma_send_with_imm(in.conn, in.mr, far[i], longest, flags, 5, op));
		CALL(rpma_recv(in.conn, in.mr, far[i], longest, op));
		CALL(rpma_srq_recv(in.srq, in.mr, far[i], longest, op));
		CALL(rpma_flush(in.conn, in.remote, far[i], far[i], RPMA_FLUSH_TYPE_VISIBILITY, flags, op));
		CALL(rpma_flush(in.conn, in.remote, far[i], far[i], RPMA_FLUSH_TYPE_PERSISTENT, flags, op));
	}
	/* The last bytes of the region, which are behind four times four gigabytes. */
	for (size_t offset = 0x3fffffff8; offset <= 0x400000004; offset++)
		CALL(rpma_flush(in.conn, in.remote, offset, 1, RPMA_FLUSH_TYPE_VISIBILITY, flags, op));
	end_all();
}

/* Flushes of all kinds; up to eight bytes from the end of the region. */
void flushes(void)
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
