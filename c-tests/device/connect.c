/*
 * connect.c -- how connections come about and end: private data, rejection,
 * disconnection from either side, peers that die, many at once, and what a
 * server can do wrong while it accepts.
 */
#include "device.h"
#include <signal.h>
#include <sys/epoll.h>


/* Connects with `len` bytes of private data, each `len` itself; none for -1. */
static int connect_with(struct rpma_conn_req **req, int len, struct rpma_conn **conn)
{
	unsigned char bytes[255];
	struct rpma_conn_private_data data = {bytes, (uint8_t)len};

	memset(bytes, len, sizeof(bytes));
	return rpma_conn_req_connect(req, len < 0 ? NULL : &data, conn);
}

static void show_private_data(const char *key, const struct rpma_conn_private_data *data)
{
	if (data->ptr == NULL)
		show(key, "none, len %d", data->len);
	else
		show(key, "%d bytes %s", data->len, hex(data->ptr, data->len));
}

static struct rpma_conn_req *new_req(const struct rpma_conn_cfg *cfg)
{
	struct rpma_conn_req *req = NULL;

	MUST(rpma_conn_req_new(peer, addr, port, cfg, &req));
	return req;
}

/* ---- private data ---- */

/*
 * One connection for each pair. 56 bytes is what a client, and 196 what a server
 * can say on this kind of device; a byte more fails on its own side.
 */
static const struct {
	int client, server;
	bool client_fails, server_fails;
} talks[] = {
	{-1, -1, false, false},
	{1, 1, false, false},
	{8, -1, false, false},
	{-1, 21, false, false},
	{56, 196, false, false},
	{57, -1, true, false},
	{255, -1, true, false},
	/* len 0 is refused before anything happens; the request is gone all the same */
	{0, -1, true, false},
	{3, 0, false, true},
};

static void private_client(void)
{
	open_peer();
	for (size_t i = 0; i < COUNT(talks); i++) {
		struct rpma_conn_private_data data = {OUT, 77};
		struct rpma_conn *conn = NULL;
		struct rpma_conn_req *req = new_req(NULL);
		char key[64];

		snprintf(key, sizeof(key), "client says %d", talks[i].client);
		TRY(rpma_conn_req_get_private_data(req, &data));
		show_private_data("of an outgoing request", &data);
		TRY_AS(key, connect_with(&req, talks[i].client, &conn));
		show("request", "%s", req == NULL ? "NULL" : "not NULL");
		if (conn == NULL)
			continue;
		TRY(rpma_conn_get_private_data(conn, &data));
		show_private_data("before the event", &data);
		show("event", "%s", event_name(next_event_in(conn, WAIT_MS)));
		show_last_log("said");
		TRY(rpma_conn_get_private_data(conn, &data));
		show_private_data("server said", &data);
		TRY(rpma_conn_get_private_data(conn, NULL));
		TRY(rpma_conn_get_private_data(NULL, &data));
		if (!talks[i].server_fails) {
			TRY(rpma_conn_disconnect(conn));
			show_last_log("said");
			show("event", "%s", event_name(next_event_in(conn, WAIT_MS)));
			TRY(rpma_conn_get_private_data(conn, &data));
			show_private_data("after the end", &data);
		}
		TRY(rpma_conn_delete(&conn));
		show("connection", "%s", conn == NULL ? "NULL" : "not NULL");
	}
	close_peer();
}

static void private_server(void)
{
	struct rpma_ep *ep;

	open_peer();
	ep = listen_somewhere();
	for (size_t i = 0; i < COUNT(talks); i++) {
		struct rpma_conn_private_data data = {OUT, 77};
		struct rpma_conn_req *req;
		struct rpma_conn *conn = NULL;
		char key[64];

		if (talks[i].client_fails)
			continue;
		req = next_req(ep, NULL);
		TRY(rpma_conn_req_get_private_data(req, &data));
		show_private_data("client says", &data);
		snprintf(key, sizeof(key), "server says %d", talks[i].server);
		TRY_AS(key, connect_with(&req, talks[i].server, &conn));
		show("request", "%s", req == NULL ? "NULL" : "not NULL");
		if (conn == NULL)
			continue;
		show("event", "%s", event_name(next_event_in(conn, WAIT_MS)));
		TRY(rpma_conn_get_private_data(conn, &data));
		show_private_data("client said", &data);
		show("event", "%s", event_name(next_event_in(conn, WAIT_MS)));
		TRY(rpma_conn_disconnect(conn));
		TRY(rpma_conn_delete(&conn));
	}
	TRY(rpma_ep_shutdown(&ep));
	close_peer();
}

/* ---- ends ---- */

enum {
	CLIENT_DISCONNECTS, SERVER_DISCONNECTS, CLIENT_DELETES, SERVER_DELETES,
	CLIENT_IS_KILLED, SERVER_IS_KILLED,
};

/* Ends the connection in one of the ways, or sees how the other side does. */
static void end_from(struct side *s, bool mine, int way)
{
	if (mine && way >= CLIENT_IS_KILLED) {
		/* the other side is there: it has said so */
		show("received", "%d", see_wc("go", s, s->rcq));
		kill(getpid(), SIGKILL);
	}
	if (mine && way >= CLIENT_DELETES) {
		show("received", "%d", see_wc("go", s, s->rcq));
		TRY(rpma_conn_delete(&s->conn));
	} else if (mine) {
		TRY(rpma_conn_disconnect(s->conn));
		show("event", "%s", event_name(next_event_in(s->conn, WAIT_MS)));
		/* it is over: nothing to end any more */
		TRY(rpma_conn_disconnect(s->conn));
		TRY(rpma_send(s->conn, s->mr, 0, 8, ALWAYS, OP_CONTEXT));
		see_wc("send after the end", s, s->cq);
		TRY(rpma_conn_delete(&s->conn));
	} else {
		if (way >= CLIENT_DELETES) {
			TRY(rpma_send(s->conn, s->mr, 0, 8, ALWAYS, OP_CONTEXT));
			see_wc("go", s, s->cq);
		}
		show("event", "%s", event_name(next_event_in(s->conn, WAIT_MS)));
		TRY(rpma_conn_disconnect(s->conn));
		TRY(rpma_conn_delete(&s->conn));
	}
	show("connection", "%s", s->conn == NULL ? "NULL" : "not NULL");
	MUST(rpma_mr_remote_delete(&s->remote));
	TRY(rpma_mr_dereg(&s->mr));
	if (s->ep != NULL)
		TRY(rpma_ep_shutdown(&s->ep));
	close_peer();
}

static void end_client(void)
{
	struct side s = {.recvs = 1};

	client_connect(&s);
	end_from(&s, variant % 2 == 0, variant);
}

static void end_server(void)
{
	struct side s = {.recvs = 1};

	server_connect(&s);
	end_from(&s, variant % 2 == 1, variant);
}

/* ---- connections that do not come about ---- */

/* In which is seen that nothing comes; what does come is there long before. */
#define NOTHING_MS 10000

enum {REJECTED, CANNOT_BE_SERVED, CANNOT_BE_ACCEPTED};

static void refused_client(void)
{
	struct rpma_conn *conn = NULL;
	struct rpma_conn_req *req;

	open_peer();
	req = new_req(NULL);
	TRY(rpma_conn_req_connect(&req, NULL, &conn));
	if (variant == CANNOT_BE_SERVED)
		DIFF("D4")
			/* The original's client waits for all of that, in vain. */
			show("event", "%s", event_name(next_event_in(conn, NOTHING_MS)));
	else
		show("event", "%s", event_name(next_event_in(conn, WAIT_MS)));
	TRY(rpma_conn_delete(&conn));
	close_peer();
}

static void refuse_server(void)
{
	struct rpma_ep *ep;
	struct rpma_conn_cfg *cfg = NULL;
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;

	open_peer();
	ep = listen_somewhere();
	MUST(rpma_conn_cfg_new(&cfg));
	if (variant == CANNOT_BE_SERVED)
		MUST(rpma_conn_cfg_set_cq_size(cfg, INT_MAX));
	if (!ep_ready(ep, WAIT_MS))
		FAIL("no client came");
	TRY(rpma_ep_next_conn_req(ep, cfg, &req));
	if (variant == REJECTED)
		TRY(rpma_conn_req_delete(&req));
	if (variant == CANNOT_BE_ACCEPTED)
		TRY(connect_with(&req, 255, &conn));
	show("request", "%s", req == NULL ? "NULL" : "not NULL");
	MUST(rpma_conn_cfg_delete(&cfg));
	/* the end of the process would end the client's waiting as well */
	wait_for_client_exit();
	TRY(rpma_ep_shutdown(&ep));
	close_peer();
}

/* Nobody listens there. */
static void nobody(void)
{
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn = NULL;

	open_peer();
	ep = listen_somewhere();
	MUST(rpma_ep_shutdown(&ep)); /* its port is free, and known */
	req = new_req(NULL);
	TRY(rpma_conn_req_connect(&req, NULL, &conn));
	show("event", "%s", event_name(next_event_in(conn, WAIT_MS)));
	show_last_log("said");
	TRY(rpma_conn_delete(&conn));

	/* a request that is given up */
	req = new_req(NULL);
	TRY(rpma_conn_req_delete(&req));
	show("request", "%s", req == NULL ? "NULL" : "not NULL");
	/* no place for the connection: the request is gone */
	req = new_req(NULL);
	TRY(rpma_conn_req_connect(&req, NULL, NULL));
	show("request", "%s", req == NULL ? "NULL" : "not NULL");
	close_peer();
}

/* ---- nothing waits ---- */

static void set_nonblocking(int fd)
{
	if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
		FAIL("O_NONBLOCK: %s", strerror(errno));
}

/* Both sides in one process, each call made when it has nothing to do and when it has. */
static void nonblocking(void)
{
	struct rpma_ep *ep;
	struct rpma_conn_req *req = NULL, *outgoing;
	struct rpma_conn *client = NULL, *server = NULL;
	enum rpma_conn_event event;
	struct rpma_cq *cq = NULL;
	int ep_fd, client_fd, server_fd, cq_fd;

	open_peer();
	ep = listen_somewhere();
	MUST(rpma_ep_get_fd(ep, &ep_fd));
	set_nonblocking(ep_fd);
	DIFF("D2")
		TRY(rpma_ep_next_conn_req(ep, NULL, OUT));
	outgoing = new_req(NULL);
	MUST(rpma_conn_req_connect(&outgoing, NULL, &client));
	MUST(rpma_conn_get_event_fd(client, &client_fd));
	set_nonblocking(client_fd);
	DIFF("D2")
		TRY(rpma_conn_next_event(client, OUT));
	if (!ready(ep_fd, WAIT_MS))
		FAIL("no request came");
	TRY(rpma_ep_next_conn_req(ep, NULL, &req));
	DIFF("D2")
		TRY(rpma_ep_next_conn_req(ep, NULL, OUT));
	MUST(rpma_conn_req_connect(&req, NULL, &server));
	MUST(rpma_conn_get_event_fd(server, &server_fd));
	set_nonblocking(server_fd);
	DIFF("D2")
		TRY(rpma_conn_next_event(server, OUT));
	if (!ready(client_fd, WAIT_MS))
		FAIL("no event came");
	TRY(rpma_conn_next_event(client, &event));
	show("event", "%s", event_name(event));
	if (!ready(server_fd, WAIT_MS))
		FAIL("no event came");
	TRY(rpma_conn_next_event(server, &event));
	show("event", "%s", event_name(event));

	MUST(rpma_conn_get_cq(client, &cq));
	MUST(rpma_cq_get_fd(cq, &cq_fd));
	set_nonblocking(cq_fd);
	TRY(rpma_cq_wait(cq));
	TRY(rpma_cq_get_wc(cq, 1, OUT, NULL));
	TRY(rpma_write(client, NULL, 0, NULL, 0, 0, ALWAYS, OP_CONTEXT));
	if (!ready(cq_fd, WAIT_MS))
		FAIL("no completion came");
	TRY(rpma_cq_wait(cq));
	TRY(rpma_cq_get_wc(cq, 1, OUT, NULL));
	TRY(rpma_cq_wait(cq));

	TRY(rpma_conn_disconnect(client));
	expect_event(server, RPMA_CONN_CLOSED);
	TRY(rpma_conn_disconnect(server));
	expect_event(client, RPMA_CONN_CLOSED);
	TRY(rpma_conn_delete(&client));
	TRY(rpma_conn_delete(&server));
	TRY(rpma_ep_shutdown(&ep));
	close_peer();
}

/* ---- many at once ---- */

#define MANY 50

struct one {
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	size_t offset; /* of its message in the common memory */
	bool answered;
};

/* What epoll tells: which connection, and whether its events or its completions. */
struct source {
	struct one *one;
	bool completions;
};

static int epoll;
static struct rpma_mr_local *many_mr;
static unsigned char many_mem[2 * MANY * 8];
static struct one all[MANY];
static struct source sources[MANY][2];

static void watch(int fd, void *source)
{
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = source};

	set_nonblocking(fd);
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) != 0)
		FAIL("epoll: %s", strerror(errno));
}

/* Connects the request and watches its connection, a receive for it posted before. */
static void take_in(int i, struct rpma_conn_req *req)
{
	struct one *one = &all[i];
	int fd;

	one->offset = 16 * (size_t)i;
	MUST(rpma_conn_req_recv(req, many_mr, one->offset + 8, 8, NULL));
	MUST(rpma_conn_req_connect(&req, NULL, &one->conn));
	MUST(rpma_conn_get_cq(one->conn, &one->cq));
	for (int completions = 0; completions <= 1; completions++) {
		sources[i][completions] = (struct source){one, completions};
		if (completions)
			MUST(rpma_cq_get_fd(one->cq, &fd));
		else
			MUST(rpma_conn_get_event_fd(one->conn, &fd));
		watch(fd, &sources[i][completions]);
	}
}

static struct {
	int established, closed, received, other;
	uint64_t sum;
} seen;

static void send_number(struct one *one, uint64_t number)
{
	memcpy(many_mem + one->offset, &number, 8);
	MUST(rpma_send(one->conn, many_mr, one->offset, 8, ALWAYS, NULL));
}

/* The client sends its number and leaves with the answer; the server gives it back doubled. */
static void handle(const struct source *source, bool is_client)
{
	struct one *one = source->one;
	enum rpma_conn_event event;
	struct ibv_wc wc;
	uint64_t number;
	int ret;

	if (source->completions) {
		ret = rpma_cq_wait(one->cq);
		if (ret == RPMA_E_NO_COMPLETION)
			return;
		MUST(ret);
		while ((ret = rpma_cq_get_wc(one->cq, 1, &wc, NULL)) == 0) {
			if (wc.status != IBV_WC_SUCCESS) {
				seen.other++;
				continue;
			}
			if (!(wc.opcode & IBV_WC_RECV))
				continue;
			memcpy(&number, many_mem + one->offset + 8, 8);
			seen.received++;
			seen.sum += number;
			if (is_client)
				MUST(rpma_conn_disconnect(one->conn));
			else
				send_number(one, 2 * number);
		}
		if (ret != RPMA_E_NO_COMPLETION)
			MUST(ret);
		return;
	}
	MUST(rpma_conn_next_event(one->conn, &event));
	if (event == RPMA_CONN_ESTABLISHED) {
		seen.established++;
		if (is_client)
			send_number(one, 1000 + (uint64_t)(one - all));
	} else if (event == RPMA_CONN_CLOSED) {
		seen.closed++;
		if (!is_client)
			MUST(rpma_conn_disconnect(one->conn));
		MUST(rpma_conn_delete(&one->conn));
	} else {
		seen.other++;
	}
}

/* Serves what epoll has until every connection has come and gone. */
static void serve_all(struct rpma_ep *ep)
{
	int accepted = 0;

	while (seen.closed < MANY) {
		struct epoll_event e;
		int n = epoll_wait(epoll, &e, 1, WAIT_MS);

		if (n != 1)
			break;
		if (e.data.ptr == NULL) {
			struct rpma_conn_req *req = NULL;

			MUST(rpma_ep_next_conn_req(ep, NULL, &req));
			take_in(accepted++, req);
		} else {
			handle(e.data.ptr, ep == NULL);
		}
	}
	show("many", "established %d, closed %d, received %d, sum %ju, other %d", seen.established,
			seen.closed, seen.received, (uintmax_t)seen.sum, seen.other);
}

static void many(bool is_client)
{
	struct rpma_ep *ep = NULL;
	int fd;

	open_peer();
	epoll = epoll_create1(0);
	MUST(rpma_mr_reg(peer, many_mem, sizeof(many_mem), USAGE, &many_mr));
	if (is_client) {
		for (int i = 0; i < MANY; i++)
			take_in(i, new_req(NULL));
	} else {
		ep = listen_somewhere();
		MUST(rpma_ep_get_fd(ep, &fd));
		watch(fd, NULL);
	}
	serve_all(ep);
	if (ep != NULL)
		TRY(rpma_ep_shutdown(&ep));
	TRY(rpma_mr_dereg(&many_mr));
	close_peer();
}

static void many_client(void)
{
	many(true);
}

static void many_server(void)
{
	many(false);
}

#define END(way) .server = end_server, .client = end_client, .variant = (way)
#define REFUSE(way) .server = refuse_server, .client = refused_client, .variant = (way)

static const struct test_case cases[] = {
	{.name = "private-data", .server = private_server, .client = private_client},
	{.name = "client-disconnects", END(CLIENT_DISCONNECTS)},
	{.name = "server-disconnects", END(SERVER_DISCONNECTS)},
	{.name = "client-deletes", END(CLIENT_DELETES)},
	{.name = "server-deletes", END(SERVER_DELETES)},
	{.name = "client-is-killed", END(CLIENT_IS_KILLED)},
	{.name = "server-is-killed", END(SERVER_IS_KILLED)},
	{.name = "rejected", REFUSE(REJECTED)},
	{.name = "cannot-be-served", REFUSE(CANNOT_BE_SERVED)},
	{.name = "cannot-be-accepted", REFUSE(CANNOT_BE_ACCEPTED)},
	{.name = "nobody", .run = nobody},
	{.name = "nonblocking", .run = nonblocking},
	{.name = "many", .server = many_server, .client = many_client},
};

MAIN(cases)
