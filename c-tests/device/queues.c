/*
 * queues.c -- messages over every arrangement of queues: one completion queue or
 * two, a completion channel of each or a shared one, receives of the
 * connection's own or shared by several, with and without completions apart.
 */
#include "device.h"

static const struct arrangement {
	uint32_t rcq_size;
	bool shared_channel;
	bool srq;
	uint32_t srq_rcq_size;
} arrangements[] = {
	{0, false, false, 0},
	{10, false, false, 0},
	{0, true, false, 0},
	{10, true, false, 0},
	{0, false, true, 0},
	{10, false, true, 0},
	{0, false, true, 10},
	{10, false, true, 10},
	{10, true, true, 0},
};

/* The client has two connections, and sends two messages over each. */
#define CONNS 2
#define MESSAGES 2

static struct side sides[CONNS];
static struct rpma_conn_cfg *cfg;
static struct rpma_srq *srq;
static struct rpma_cq *srq_rcq;
static const struct arrangement *arranged;

static void arrange(void)
{
	struct rpma_srq_cfg *srq_cfg = NULL;

	arranged = &arrangements[variant];
	MUST(rpma_conn_cfg_new(&cfg));
	MUST(rpma_conn_cfg_set_rcq_size(cfg, arranged->rcq_size));
	MUST(rpma_conn_cfg_set_compl_channel(cfg, arranged->shared_channel));
	if (!arranged->srq)
		return;
	MUST(rpma_srq_cfg_new(&srq_cfg));
	MUST(rpma_srq_cfg_set_rcq_size(srq_cfg, arranged->srq_rcq_size));
	TRY(rpma_srq_new(peer, srq_cfg, &srq));
	MUST(rpma_srq_cfg_delete(&srq_cfg));
	TRY(rpma_srq_get_rcq(srq, &srq_rcq));
	show("rcq of the SRQ", "%s", srq_rcq != NULL ? "there" : "NULL");
	MUST(rpma_conn_cfg_set_srq(cfg, srq));
	for (int i = 0; i < CONNS * MESSAGES; i++)
		TRY(rpma_srq_recv(srq, sides[0].mr, RECV_OFFSET(i), RECV_SIZE,
				(void *)(0x2000 + (intptr_t)i)));
}

/* What the connection says of its queues. */
static void show_queues(struct side *s)
{
	struct rpma_cq *rcq = NULL;
	uint32_t qp_num = 0;
	int cq_fd = -1, rcq_fd = -1, compl_fd = -1;

	TRY(rpma_conn_get_rcq(s->conn, &rcq));
	show("rcq of the connection", "%s", rcq == NULL ? "NULL" : rcq == srq_rcq ?
			"that of the SRQ" : rcq == s->cq ? "the cq" : "there");
	s->rcq = srq_rcq != NULL ? srq_rcq : rcq != NULL ? rcq : s->cq;
	TRY(rpma_conn_get_qp_num(s->conn, &qp_num));
	show("qp_num", "%s", qp_num != 0 ? "there" : "0");
	TRY(rpma_cq_get_fd(s->cq, &cq_fd));
	TRY(rpma_cq_get_fd(s->rcq, &rcq_fd));
	TRY(rpma_conn_get_compl_fd(s->conn, &compl_fd));
	show("descriptors", "cq and rcq %s, cq and channel %s",
			cq_fd == rcq_fd ? "the same" : "apart",
			compl_fd < 0 ? "none" : cq_fd == compl_fd ? "the same" : "apart");
	if (arranged->shared_channel) {
		TRY(rpma_cq_wait(s->cq));
		TRY(rpma_cq_wait(s->rcq));
		/* nothing has come yet, and nobody is to wait for it here */
		MUST(fcntl(compl_fd, F_SETFL, O_NONBLOCK));
		TRY(rpma_conn_wait(s->conn, 0, OUT, NULL));
	} else {
		TRY(rpma_conn_wait(s->conn, 0, OUT, NULL));
	}
	if (arranged->srq)
		TRY(rpma_recv(s->conn, s->mr, 0, 8, OP_CONTEXT));
}

/* Waits on the shared channel; is_rcq may be of no interest, and the flags are for nothing. */
static void wait_for_either(struct side *s)
{
	static bool interested;
	struct rpma_cq *cq = NULL;
	bool is_rcq = false;

	interested = !interested;
	MUST(rpma_conn_wait(s->conn, interested ? RPMA_W_WAIT_FOR_COMPLETION : 0, &cq,
			interested ? &is_rcq : NULL));
	if (cq != s->cq && cq != s->rcq)
		show("conn_wait", "tells of another queue");
	if (interested && is_rcq != (cq != s->cq))
		show("conn_wait", "takes one queue for the other");
}

/* A completion of the one or the other queue, waited for as the arrangement asks. */
static struct ibv_wc take(struct side *s, struct rpma_cq *wanted)
{
	struct ibv_wc wc;
	int fd, ret;

	if (!arranged->shared_channel) {
		if (!wait_wc_in(wanted, &wc, WAIT_MS))
			FAIL("no completion came");
		return wc;
	}
	MUST(rpma_conn_get_compl_fd(s->conn, &fd));
	while ((ret = rpma_cq_get_wc(wanted, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION) {
		if (!ready(fd, WAIT_MS))
			FAIL("no completion came");
		wait_for_either(s);
	}
	MUST(ret);
	return wc;
}

static void see_sent(struct side *s)
{
	struct ibv_wc wc = take(s, s->cq);

	show_wc("sent", s->conn, &wc);
}

static void see_received(struct side *s)
{
	struct ibv_wc wc = take(s, s->rcq);

	show_wc("received", s->conn, &wc);
}

/* A send and what it brings about, which may be there before it is itself. */
static void see_sent_and_received(struct side *s)
{
	struct ibv_wc first = take(s, s->cq), second = take(s, s->rcq);
	bool swapped = first.opcode & IBV_WC_RECV;

	show_wc("sent", s->conn, swapped ? &second : &first);
	show_wc("received", s->conn, swapped ? &first : &second);
}

static void release(void)
{
	for (int i = 0; i < CONNS; i++)
		side_drop(&sides[i]);
	if (srq != NULL)
		TRY(rpma_srq_delete(&srq));
	MUST(rpma_conn_cfg_delete(&cfg));
	side_close(&sides[0]);
}

static void client(void)
{
	open_peer();
	side_memory(&sides[0], 0);
	arrange();
	for (int i = 0; i < CONNS; i++) {
		sides[i].mr = sides[0].mr;
		sides[i].cfg = cfg;
		sides[i].recvs = arranged->srq ? 0 : 1;
		client_request(&sides[i]);
		show_queues(&sides[i]);
	}
	for (int i = 0; i < CONNS; i++) {
		struct side *s = &sides[i];

		for (int k = 0; k < MESSAGES; k++) {
			TRY(rpma_send(s->conn, s->mr, (size_t)(16 * i + k), 8, ALWAYS,
					(void *)(intptr_t)(16 * i + k)));
			if (k < MESSAGES - 1)
				see_sent(s);
		}
		see_sent_and_received(s);
	}
	show("answers", "%s", hex(sides[0].mem + RECV_OFFSET(0), 8));
	for (int i = 0; i < CONNS; i++)
		client_end(&sides[i]);
	release();
}

static void server(void)
{
	server_listen(&sides[0]);
	arrange();
	for (int i = 0; i < CONNS; i++) {
		sides[i].mr = sides[0].mr;
		sides[i].ep = sides[0].ep;
		sides[i].cfg = cfg;
		sides[i].recvs = arranged->srq ? 0 : MESSAGES;
		server_accept(&sides[i]);
		show_queues(&sides[i]);
	}
	for (int i = 0; i < CONNS; i++) {
		struct side *s = &sides[i];

		for (int k = 0; k < MESSAGES; k++)
			see_received(s);
		TRY(rpma_send(s->conn, s->mr, (size_t)(16 * i), 8, ALWAYS, (void *)(intptr_t)i));
		see_sent(s);
	}
	show("messages", "%s", hex(sides[0].mem + RECV_OFFSET(0), 8));
	for (int i = 0; i < CONNS; i++)
		server_wait_for_end(&sides[i]);
	release();
}

#define ARRANGED(number) .server = server, .client = client, .variant = (number)

static const struct test_case cases[] = {
	{.name = "one-cq", ARRANGED(0)},
	{.name = "rcq", ARRANGED(1)},
	{.name = "shared-channel", ARRANGED(2)},
	{.name = "rcq-and-shared-channel", ARRANGED(3)},
	{.name = "srq", ARRANGED(4)},
	{.name = "srq-and-rcq", ARRANGED(5)},
	{.name = "srq-with-rcq", ARRANGED(6)},
	{.name = "srq-with-rcq-and-rcq", ARRANGED(7)},
	{.name = "srq-rcq-and-shared-channel", ARRANGED(8)},
};

MAIN(cases)
