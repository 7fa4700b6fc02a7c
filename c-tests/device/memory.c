/*
 * memory.c -- too little memory at each moment of each function that needs some: a code that says so,
 * nothing written, and the process goes on. For ours only: the original can wait for ever.
 */
#include "../no_memory.h"
#include "device.h"

static struct rpma_ep *ep;

static int get_context(void)
{
	return SHORT(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT));
}

static int peer_new(void)
{
	struct rpma_peer **new = OUT;
	int ret = SHORT(rpma_peer_new(context, new));

	if (ret == 0)
		MUST(rpma_peer_delete(new));
	return ret;
}

static int mr_reg(void)
{
	struct rpma_mr_local **mr = OUT;
	int ret = SHORT(rpma_mr_reg(peer, dummy_bytes, 4096, USAGE, mr));

	if (ret == 0)
		MUST(rpma_mr_dereg(mr));
	return ret;
}

static int srq_new(void)
{
	struct rpma_srq **srq = OUT;
	int ret = SHORT(rpma_srq_new(peer, NULL, srq));

	if (ret == 0)
		MUST(rpma_srq_delete(srq));
	return ret;
}

static int ep_listen(void)
{
	struct rpma_ep **new = OUT;
	char number[16];
	int ret;

	snprintf(number, sizeof(number), "%d", atoi(port) + 1);
	ret = SHORT(rpma_ep_listen(peer, addr, number, new));
	if (ret == 0)
		MUST(rpma_ep_shutdown(new));
	return ret;
}

static int conn_req_new(void)
{
	struct rpma_conn_req **req = OUT;
	int ret = SHORT(rpma_conn_req_new(peer, addr, port, NULL, req));

	if (ret == 0)
		MUST(rpma_conn_req_delete(req));
	return ret;
}

/* ---- with another side, in this process as well ---- */

/*
 * An event for which librdmacm itself has no memory is lost, and it waits for the next one. So that
 * this ends, descriptors are non-blocking; what is said then is a difference of its own.
 */
static int lost_event(int ret)
{
	return ret == RPMA_E_NO_EVENT ? RPMA_E_PROVIDER : ret;
}

static void set_nonblocking(int fd)
{
	if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
		FAIL("O_NONBLOCK: %s", strerror(errno));
}

static struct rpma_conn *request(void)
{
	static struct rpma_conn_private_data data = {dummy_bytes, 56};
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;

	MUST(rpma_conn_req_new(peer, addr, port, NULL, &req));
	MUST(rpma_conn_req_connect(&req, &data, &conn));
	return conn;
}

/* What failed on one side may have come to the other; its client has gone meanwhile. */
static void reject_what_waits(void)
{
	struct rpma_conn_req *req = NULL;

	while (ep_ready(ep, 0))
		if (rpma_ep_next_conn_req(ep, NULL, &req) == 0)
			rpma_conn_req_delete(&req);
}

static int connect_active(void)
{
	struct rpma_conn **conn = OUT;
	struct rpma_conn_req *req = NULL;
	int ret;

	MUST(rpma_conn_req_new(peer, addr, port, NULL, &req));
	ret = SHORT(rpma_conn_req_connect(&req, NULL, conn));
	if (req != NULL)
		FAIL("the request is not consumed");
	if (ret == 0) {
		if (!ep_ready(ep, WAIT_MS))
			FAIL("no request came");
		MUST(rpma_conn_delete(conn));
	}
	reject_what_waits();
	return ret;
}

static int next_conn_req(void)
{
	struct rpma_conn_req **req = OUT;
	struct rpma_conn *client = request();
	int ret;

	if (!ep_ready(ep, WAIT_MS))
		FAIL("no request came");
	ret = lost_event(SHORT(rpma_ep_next_conn_req(ep, NULL, req)));
	if (ret == 0)
		MUST(rpma_conn_req_delete(req));
	MUST(rpma_conn_delete(&client));
	reject_what_waits();
	return ret;
}

static int connect_passive(void)
{
	struct rpma_conn **conn = OUT;
	struct rpma_conn *client = request();
	struct rpma_conn_req *req = next_req(ep, NULL);
	int ret = SHORT(rpma_conn_req_connect(&req, NULL, conn));

	if (req != NULL)
		FAIL("the request is not consumed");
	if (ret == 0)
		MUST(rpma_conn_delete(conn));
	MUST(rpma_conn_delete(&client));
	reject_what_waits();
	return ret;
}

/* The client keeps a copy of what the server said. */
static int next_event(void)
{
	struct rpma_conn *client = request(), *server = NULL;
	struct rpma_conn_req *req = next_req(ep, NULL);
	struct rpma_conn_private_data data = {dummy_bytes, 100};
	int fd, ret;

	MUST(rpma_conn_req_connect(&req, &data, &server));
	MUST(rpma_conn_get_event_fd(client, &fd));
	if (!ready(fd, WAIT_MS))
		FAIL("no event came");
	set_nonblocking(fd);
	ret = lost_event(SHORT(rpma_conn_next_event(client, OUT)));
	MUST(rpma_conn_delete(&client));
	MUST(rpma_conn_delete(&server));
	return ret;
}

static const struct {
	const char *key;
	int (*call)(void);
} calls[] = {
	{"utils_get_ibv_context", get_context},
	{"peer_new", peer_new},
	{"mr_reg", mr_reg},
	{"srq_new", srq_new},
	{"ep_listen", ep_listen},
	{"conn_req_new", conn_req_new},
	{"conn_req_connect, active", connect_active},
	{"ep_next_conn_req", next_conn_req},
	{"conn_req_connect, passive", connect_passive},
	{"conn_next_event", next_event},
};

static void shortages(void)
{
	int fd;

	open_peer();
	ep = listen_somewhere();
	MUST(rpma_ep_get_fd(ep, &fd));
	set_nonblocking(fd);
	for (size_t i = 0; i < COUNT(calls); i++)
		with_too_little_memory(calls[i].key, calls[i].call);
	TRY(rpma_ep_shutdown(&ep));
	close_peer();
}

static const struct test_case cases[] = {
	{.name = "shortages", .run = shortages, .own = true},
};

MAIN(cases)
