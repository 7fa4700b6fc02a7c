/*
 * speed.c -- how fast a device is, by verbs and librdmacm alone.
 *
 *   write_lat    a write there and one back, each side looking at its memory;
 *                half of the time that takes
 *   send_lat     the same with sends and receives
 *   write_done   from posting a write to its completion
 *   read_lat     from posting a read to its completion
 *   write_bw     writes one way, a window of them under way
 *   read_bw      reads, the same way
 *   send_bw      sends, the same way
 *   write_rate   writes in chains, one completion a chain
 *
 * In the latencies one message is under way, and the turns go round the
 * connections. Both sides must be of the same byte order.
 */
#include "bench.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

static const char *const names[] = {
	"write_lat", "send_lat", "write_done", "read_lat",
	"write_bw", "read_bw", "send_bw", "write_rate",
};
enum { WRITE_LAT, SEND_LAT, WRITE_DONE, READ_LAT, WRITE_BW, READ_BW, SEND_BW, WRITE_RATE };

#define CONTROL 4096 /* bytes of a side's memory where the other tells of the end */
#define CHAIN 16

/* What a side tells of itself when it connects. */
struct hello {
	struct test test;
	uint16_t index; /* of the connection */
	uint32_t rkey;
	uint64_t addr;
};

/* The first thing in a side's memory: what the client sent, and what of it was wrong. */
struct control {
	uint64_t count[MAX_CONNS];
	uint64_t bad;
};

struct conn {
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	struct hello peer;
	uint64_t posted;    /* messages */
	uint64_t received;  /* likewise */
	unsigned under_way; /* posted and not known to be done */
};

static bool is_server;
static struct test test;
static enum kind kind;
static unsigned window; /* messages under way */
static unsigned slots;  /* messages that a connection has room for */

static struct rdma_event_channel *events;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char *mem;
static size_t mem_size;
static uint32_t inline_size;
static struct conn conns[MAX_CONNS];
static unsigned told; /* empty messages that came: the other side has written its control */

static char *slot(unsigned c, uint64_t i)
{
	return mem + CONTROL + ((size_t)c * slots + i % slots) * test.size;
}

static uint64_t remote(unsigned c, uint64_t i)
{
	return conns[c].peer.addr + (uint64_t)(slot(c, i) - mem);
}

/* ---- posting ---- */

static struct ibv_sge sge_of(void *at, size_t size)
{
	return (struct ibv_sge){ .addr = (uintptr_t)at, .length = (uint32_t)size, .lkey = mr->lkey };
}

static void post_recv(unsigned c, uint64_t i)
{
	struct ibv_sge sge = sge_of(slot(c, i), test.size);
	struct ibv_recv_wr wr = { .wr_id = c, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	MUST(ibv_post_recv(conns[c].qp, &wr, &bad));
}

/* One message of the test between two slots, signalled. */
static void post(unsigned c, enum ibv_wr_opcode opcode, char *local, uint64_t there)
{
	struct ibv_sge sge = sge_of(local, test.size);
	struct ibv_send_wr wr = {
		.wr_id = c,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = there, .rkey = conns[c].peer.rkey },
	};
	struct ibv_send_wr *bad;

	if (opcode != IBV_WR_RDMA_READ && test.size <= inline_size)
		wr.send_flags |= IBV_SEND_INLINE;
	MUST(ibv_post_send(conns[c].qp, &wr, &bad));
	conns[c].posted++;
	conns[c].under_way++;
}

/* CHAIN writes, of which the last is signalled. */
static void post_chain(unsigned c)
{
	struct ibv_sge sges[CHAIN];
	struct ibv_send_wr wrs[CHAIN], *bad;

	for (unsigned i = 0; i < CHAIN; i++) {
		uint64_t turn = conns[c].posted++;

		*stamp(slot(c, turn), test.size) = turn;
		sges[i] = sge_of(slot(c, turn), test.size);
		wrs[i] = (struct ibv_send_wr){
			.wr_id = c,
			.next = i + 1 < CHAIN ? &wrs[i + 1] : NULL,
			.sg_list = &sges[i],
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = (i + 1 < CHAIN ? 0 : IBV_SEND_SIGNALED) |
					(test.size <= inline_size ? IBV_SEND_INLINE : 0),
			.wr.rdma = { .remote_addr = remote(c, turn), .rkey = conns[c].peer.rkey },
		};
	}
	MUST(ibv_post_send(conns[c].qp, wrs, &bad));
	conns[c].under_way += CHAIN;
}

/* ---- completions ---- */

/* Takes what has completed and sees to it that there is a receive for each that came. */
static unsigned reap(void)
{
	struct ibv_wc wcs[16];
	int n = ibv_poll_cq(cq, COUNT(wcs), wcs);

	if (n < 0)
		FAIL("ibv_poll_cq: %d", n);
	for (int i = 0; i < n; i++) {
		struct ibv_wc *wc = &wcs[i];
		struct conn *conn = &conns[wc->wr_id];

		if (wc->status != IBV_WC_SUCCESS)
			FAIL("%s: %s", names[test.name], ibv_wc_status_str(wc->status));
		if (!(wc->opcode & IBV_WC_RECV)) {
			conn->under_way -= test.name == WRITE_RATE ? CHAIN : 1;
			continue;
		}
		if (wc->byte_len == 0) {
			told++;
			continue;
		}
		if (wc->byte_len != test.size)
			FAIL("%s: %u bytes came", names[test.name], wc->byte_len);
		conn->received++;
		if (test.name == SEND_BW)
			post_recv((unsigned)wc->wr_id, conn->received + slots - 1);
	}
	return (unsigned)n;
}

/* Sleeps until there is something to reap, if the mode is to sleep. */
static void wait_cq(bool sleeps)
{
	struct ibv_cq *which;
	void *context;

	if (reap() > 0 || !sleeps)
		return;
	MUST(ibv_req_notify_cq(cq, 0));
	if (reap() > 0)
		return;
	MUST(ibv_get_cq_event(channel, &which, &context));
	ibv_ack_cq_events(cq, 1);
	reap();
}

static bool sleeps(void)
{
	return test.mode == BLOCK || (test.mode == ASLEEP && is_server);
}

static void wait_done(unsigned c)
{
	while (conns[c].under_way > 0)
		wait_cq(sleeps());
}

/* ---- the end of a test ---- */

static void tell(void)
{
	struct ibv_sge sge = sge_of(mem, sizeof(struct control));
	struct ibv_send_wr empty = {
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	struct ibv_send_wr wr = {
		.next = &empty,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = conns[0].peer.addr, .rkey = conns[0].peer.rkey },
	};
	struct ibv_send_wr *bad;

	MUST(ibv_post_send(conns[0].qp, &wr, &bad));
	conns[0].under_way += test.name == WRITE_RATE ? CHAIN : 1;
	wait_done(0);
}

/* What the messages that came brought, at the server. */
static uint64_t wrong_at_server(const struct control *control)
{
	uint64_t bad = 0, turn;

	for (unsigned c = 0; c < test.conns; c++) {
		if (test.name == SEND_BW)
			while (conns[c].received < control->count[c])
				wait_cq(sleeps());
		for (unsigned i = 0; i < slots; i++)
			if (last_turn(control->count[c], slots, i, &turn))
				bad += wrong(slot(c, i), test.size, c * slots + i, turn);
	}
	return bad;
}

static void end_at_client(void)
{
	struct control *control = (struct control *)mem;

	for (unsigned c = 0; c < test.conns; c++)
		control->count[c] = conns[c].posted;
	tell();
	while (told == 0)
		wait_cq(sleeps());
	if (control->bad != 0)
		FAIL("%s: %llu wrong words", names[test.name], (unsigned long long)control->bad);
}

/* ---- latency ---- */

/* The slots of a ping-pong: one for what comes, two in turn for what goes. */
static char *in(unsigned c) { return slot(c, 0); }
static char *out(unsigned c, uint64_t turn) { return slot(c, 1 + turn % 2); }

static uint64_t answer(unsigned c, uint64_t last)
{
	uint64_t received = conns[c].received;

	if (test.name == SEND_LAT) {
		while (conns[c].received == received)
			wait_cq(sleeps());
		if (*stamp(in(c), test.size) == last)
			FAIL("send_lat: a message has not come that was received");
		return *stamp(in(c), test.size);
	}
	while (*stamp(in(c), test.size) == last)
		if (test.mode != MEMORY)
			reap();
	return *stamp(in(c), test.size);
}

/* `back`: this is the last that is sent there, so no answer comes. */
static void say(unsigned c, uint64_t turn, bool back)
{
	/* The slot that is used again must not be under way any more. */
	while (conns[c].under_way > 1)
		wait_cq(sleeps());
	*stamp(out(c, conns[c].posted), test.size) = turn;
	if (test.name == SEND_LAT) {
		if (back)
			post_recv(c, 0);
		post(c, IBV_WR_SEND, out(c, conns[c].posted), 0);
	} else {
		post(c, IBV_WR_RDMA_WRITE, out(c, conns[c].posted), remote(c, 0));
	}
	if (test.mode == MEMORY)
		wait_done(c);
}

/* The last turn, which the client announces, has the highest bit. */
#define LAST ((uint64_t)1 << 63)

static void pingpong_server(void)
{
	uint64_t last[MAX_CONNS] = { 0 };
	unsigned c = 0;
	uint64_t turn;

	do {
		turn = answer(c, last[c]);
		last[c] = turn;
		say(c, turn, !(turn & LAST));
		c = (c + 1) % test.conns;
	} while (!(turn & LAST));
}

static void pingpong_client(void)
{
	uint64_t last[MAX_CONNS] = { 0 };
	struct span during = span();
	uint64_t t = now(), turn = 0;
	unsigned c;

	for (c = 0; !(turn & LAST); c = (c + 1) % test.conns) {
		uint64_t start = t;

		turn = (turn + 1) | (t < during.to ? 0 : LAST);
		/* The first round finds its receives posted. */
		say(c, turn, turn > test.conns);
		if (answer(c, last[c]) != turn)
			FAIL("%s: a wrong answer", names[test.name]);
		last[c] = turn;
		t = now();
		if (start >= during.from)
			sample(t - start);
	}
	c = (c + test.conns - 1) % test.conns;
	if (wrong(in(c), test.size, c * slots + 1 + (conns[c].posted - 1) % 2, turn) != 0)
		FAIL("%s: wrong bytes", names[test.name]);
	print_latency(names[test.name], test, 2);
}

/* From posting to completion. */
static void done_client(void)
{
	bool reads = test.name == READ_LAT;
	struct span during = span();
	uint64_t t = now();

	for (unsigned c = 0; t < during.to; c = (c + 1) % test.conns) {
		uint64_t turn = conns[c].posted, start = t;

		if (!reads)
			*stamp(slot(c, turn), test.size) = turn;
		post(c, reads ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, slot(c, turn),
				remote(c, reads ? turn + 1 : turn));
		wait_done(c);
		t = now();
		if (start >= during.from)
			sample(t - start);
	}
	print_latency(names[test.name], test, 1);
}

/* ---- bandwidth and rate ---- */

/* Each turn has a slot of its own here, and a read brings what is in another one there. */
static void post_turn(unsigned c)
{
	uint64_t turn = conns[c].posted;

	if (test.name == WRITE_RATE) {
		post_chain(c);
	} else if (test.name == READ_BW) {
		post(c, IBV_WR_RDMA_READ, slot(c, turn), remote(c, turn + 1));
	} else {
		*stamp(slot(c, turn), test.size) = turn;
		post(c, test.name == SEND_BW ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, slot(c, turn),
				remote(c, turn));
	}
}

static void stream_client(void)
{
	struct meter m = { .span = span() };
	unsigned step = test.name == WRITE_RATE ? CHAIN : 1;
	uint64_t done = 0;
	bool running = true;

	while (running) {
		for (unsigned c = 0; c < test.conns; c++)
			while (conns[c].under_way + step <= window)
				post_turn(c);
		wait_cq(sleeps());
		done = 0;
		for (unsigned c = 0; c < test.conns; c++)
			done += conns[c].posted - conns[c].under_way;
		running = meter(&m, done);
	}
	for (unsigned c = 0; c < test.conns; c++)
		wait_done(c);
	print_meter(names[test.name], test, kind, &m);
}

static void check_reads(void)
{
	uint64_t bad = 0, turn;

	for (unsigned c = 0; c < test.conns; c++)
		for (unsigned i = 0; i < slots; i++)
			if (last_turn(conns[c].posted, slots, i, &turn)) {
				uint64_t from = c * slots + (turn + 1) % slots;

				bad += wrong(slot(c, i), test.size, from, word(from, test.size / 8 - 1));
			}
	if (bad != 0)
		FAIL("%s: %llu wrong words", names[test.name], (unsigned long long)bad);
}

/* ---- a test ---- */

static bool is(uint8_t first, uint8_t second)
{
	return test.name == first || test.name == second;
}

static void run_server(void)
{
	struct control *control = (struct control *)mem;

	if (is(WRITE_LAT, SEND_LAT))
		pingpong_server();
	while (told == 0)
		wait_cq(sleeps());
	control->bad = is(WRITE_LAT, SEND_LAT) || is(READ_LAT, READ_BW) ? 0 : wrong_at_server(control);
	tell();
}

static void run_client(void)
{
	if (is(WRITE_LAT, SEND_LAT))
		pingpong_client();
	else if (is(WRITE_DONE, READ_LAT))
		done_client();
	else
		stream_client();
	if (is(READ_LAT, READ_BW))
		check_reads();
	end_at_client();
}

/* Everything but the connections, on the device that the first of them is on. */
static void set_up(struct ibv_context *device)
{
	kind = test.name < WRITE_BW ? LATENCY : test.name < WRITE_RATE ? BANDWIDTH : RATE;
	window = window_of(test, kind);
	slots = test.name == SEND_BW ? 2 * window : is(WRITE_LAT, SEND_LAT) ? 3 : window;
	mem_size = CONTROL + (size_t)slots * test.conns * test.size;
	told = 0;
	memset(conns, 0, sizeof(conns));
	mem = memory(mem_size);
	/* Messages are where they come from, and zeroes where they go to. */
	for (unsigned i = 0; i < slots * test.conns; i++)
		if (is(WRITE_LAT, SEND_LAT) ? i % slots > 0 : is(READ_LAT, READ_BW) == is_server)
			fill(slot(0, 0) + (size_t)i * test.size, test.size, i);

	pd = ibv_alloc_pd(device);
	channel = ibv_create_comp_channel(device);
	if (pd == NULL || channel == NULL)
		FAIL("the device: %s", strerror(errno));
	cq = ibv_create_cq(device, (int)((window + slots + 8) * test.conns), NULL, channel, 0);
	mr = ibv_reg_mr(pd, mem, mem_size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			IBV_ACCESS_REMOTE_READ);
	if (cq == NULL || mr == NULL)
		FAIL("the device: %s", strerror(errno));
}

static void tear_down(void)
{
	for (unsigned c = 0; c < test.conns; c++)
		rdma_destroy_qp(conns[c].id);
	MUST(ibv_dereg_mr(mr));
	MUST(ibv_destroy_cq(cq));
	MUST(ibv_destroy_comp_channel(channel));
	MUST(ibv_dealloc_pd(pd));
	munmap(mem, mem_size);
	for (unsigned c = 0; c < test.conns; c++)
		MUST(rdma_destroy_id(conns[c].id));
}

/* ---- connections ---- */

static void add(struct rdma_cm_id *id, unsigned c)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {
			.max_send_wr = window + 2,
			.max_recv_wr = slots + 1,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = 32,
		},
		.qp_type = IBV_QPT_RC,
	};

	MUST(rdma_create_qp(id, pd, &attr));
	inline_size = attr.cap.max_inline_data;
	conns[c].id = id;
	conns[c].qp = id->qp;
	if (test.name == SEND_BW && is_server) {
		for (unsigned i = 0; i < slots; i++)
			post_recv(c, i);
		return;
	}
	if (test.name == SEND_LAT)
		post_recv(c, 0);
	if (c == 0) /* the empty message at the end */
		post_recv(c, 0);
}

static struct rdma_conn_param introduce(struct hello *hello, unsigned c)
{
	*hello = (struct hello){
		.test = test,
		.index = (uint16_t)c,
		.rkey = mr->rkey,
		.addr = (uintptr_t)mem,
	};
	return (struct rdma_conn_param){
		.private_data = hello,
		.private_data_len = sizeof(*hello),
		.responder_resources = RDMA_MAX_RESP_RES,
		.initiator_depth = RDMA_MAX_INIT_DEPTH,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

/* The next event, of one of two types, its id, and what the other side says of itself. */
static enum rdma_cm_event_type next_event(enum rdma_cm_event_type type,
		enum rdma_cm_event_type other, struct rdma_cm_id **id, struct hello *hello)
{
	struct rdma_cm_event *event;
	enum rdma_cm_event_type came;

	do {
		MUST(rdma_get_cm_event(events, &event));
		came = event->event;
		if (came != type && came != other && came != RDMA_CM_EVENT_TIMEWAIT_EXIT)
			FAIL("%s came, status %d, not %s", rdma_event_str(came), event->status,
					rdma_event_str(type));
		*id = event->id;
		if (event->param.conn.private_data_len >= sizeof(*hello))
			memcpy(hello, event->param.conn.private_data, sizeof(*hello));
		MUST(rdma_ack_cm_event(event));
	} while (came == RDMA_CM_EVENT_TIMEWAIT_EXIT);
	return came;
}

static struct hello expect(enum rdma_cm_event_type type)
{
	struct rdma_cm_id *id;
	struct hello hello = { 0 };

	next_event(type, type, &id, &hello);
	return hello;
}

static void connect_one(struct sockaddr *addr, unsigned c)
{
	struct rdma_conn_param param;
	struct rdma_cm_id *id;
	struct hello hello;

	MUST(rdma_create_id(events, &id, NULL, RDMA_PS_TCP));
	MUST(rdma_resolve_addr(id, NULL, addr, 5000));
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	MUST(rdma_resolve_route(id, 5000));
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	if (c == 0)
		set_up(id->verbs);
	add(id, c);
	param = introduce(&hello, c);
	MUST(rdma_connect(id, &param));
	conns[c].peer = expect(RDMA_CM_EVENT_ESTABLISHED);
	if (conns[c].peer.addr == 0)
		FAIL("the server says nothing of itself");
}

static void accept_one(struct rdma_cm_id *id, const struct hello *peer)
{
	struct rdma_conn_param param;
	struct hello hello;

	if (peer->addr == 0 || peer->index >= MAX_CONNS)
		FAIL("the client says nothing of itself");
	if (peer->index == 0) {
		alarm(GIVE_UP);
		test = peer->test;
		set_up(id->verbs);
	}
	add(id, peer->index);
	conns[peer->index].peer = *peer;
	param = introduce(&hello, peer->index);
	MUST(rdma_accept(id, &param));
}

static void serve(struct sockaddr *addr)
{
	struct rdma_cm_id *listener, *id;

	MUST(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP));
	MUST(rdma_bind_addr(listener, addr));
	MUST(rdma_listen(listener, MAX_CONNS));
	printf("port %d\n", ntohs(rdma_get_src_port(listener)));
	fflush(stdout);
	while (!test.last) {
		unsigned established = 0;

		do {
			struct hello peer = { 0 };

			if (next_event(RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_ESTABLISHED, &id,
					&peer) == RDMA_CM_EVENT_CONNECT_REQUEST)
				accept_one(id, &peer);
			else
				established++;
		} while (established < test.conns);
		run_server();
		for (unsigned c = 0; c < test.conns; c++) {
			struct hello none;

			next_event(RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DISCONNECTED, &id, &none);
			rdma_disconnect(id);
		}
		tear_down();
	}
	MUST(rdma_destroy_id(listener));
}

static void run_tests(struct sockaddr *addr, char **texts)
{
	for (; *texts != NULL; texts++) {
		alarm(GIVE_UP);
		test = parse(names, COUNT(names), *texts);
		test.last = texts[1] == NULL;
		for (unsigned c = 0; c < test.conns; c++)
			connect_one(addr, c);
		run_client();
		for (unsigned c = 0; c < test.conns; c++)
			MUST(rdma_disconnect(conns[c].id));
		for (unsigned c = 0; c < test.conns; c++)
			expect(RDMA_CM_EVENT_DISCONNECTED);
		tear_down();
	}
}

int main(int argc, char **argv)
{
	struct command c = command(argc, argv);
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST };
	struct addrinfo *info;

	alarm(GIVE_UP);
	if (getaddrinfo(c.addr, c.port, &hints, &info) != 0)
		FAIL("no address: %s %s", c.addr, c.port);
	events = rdma_create_event_channel();
	if (events == NULL)
		FAIL("rdma_create_event_channel: %s", strerror(errno));
	is_server = c.server;
	if (is_server)
		serve(info->ai_addr);
	else
		run_tests(info->ai_addr, c.tests);
	freeaddrinfo(info);
	rdma_destroy_event_channel(events);
	return 0;
}
