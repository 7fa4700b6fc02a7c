/*
 * many_clients_server.c -- serves many clients in one thread, with epoll; nothing blocks.
 *
 *   many_clients_server ADDR PORT [MAX]
 *
 * It sends every message back in capitals. What one client does wrong ends that client's connection
 * and nothing else. More than MAX clients at a time are rejected. SIGINT and SIGTERM end it.
 */
#include "common.h"
#include <ctype.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>

#define MESSAGE_SIZE 64
#define DEPTH 4 /* messages of one client under way */
#define MAX_CLIENTS 256

/* Something with a descriptor, and what to do when that is readable. 0: go on; STOP; -1: as STOP, and say so. */
struct server;
struct client;
struct source {
	int (*ready)(struct server *s, struct client *c);
	struct client *client;
};
#define STOP 1

/* A slot of memory is being received into, or sent from, and never both: so it cannot run over. */
struct client {
	struct rpma_conn *conn; /* NULL: this place is free */
	struct rpma_cq *cq;
	bool established;
	struct source events, completions;
};

struct server {
	int epoll, signals, max, n_clients;
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_conn_cfg *cfg;
	struct rpma_ep *ep;
	struct source listener, interrupt;
};

static struct client clients[MAX_CLIENTS];
/* Registered once for all clients: registration is slow. */
static char memory[MAX_CLIENTS][DEPTH][MESSAGE_SIZE];

static size_t offset_of(const char *slot)
{
	return (size_t)(slot - memory[0][0]);
}

static int watch(struct server *s, int fd, struct source *source)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};

	if (set_nonblocking(fd) != 0)
		return -1;
	if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
		return fail("epoll_ctl: %s", strerror(errno));
	return 0;
}

/* ---- one client ---- */

static void drop(struct server *s, struct client *c)
{
	int ret = c->established ? rpma_conn_disconnect(c->conn) : 0;

	if (ret != 0)
		fail("rpma_conn_disconnect: %s", rpma_err_2str(ret));
	/* Its descriptors are closed with it, and so leave the epoll set. */
	ret = rpma_conn_delete(&c->conn);
	if (ret != 0)
		fail("rpma_conn_delete: %s", rpma_err_2str(ret));
	s->n_clients--;
	printf("client %td is gone, %d left\n", c - clients, s->n_clients);
}

static int on_event(struct server *s, struct client *c)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
	int ret = rpma_conn_next_event(c->conn, &event);

	if (ret == RPMA_E_NO_EVENT)
		return 0;
	if (ret == 0 && event == RPMA_CONN_ESTABLISHED) {
		c->established = true;
		return 0;
	}
	if (ret != 0)
		fail("rpma_conn_next_event: %s", rpma_err_2str(ret));
	drop(s, c);
	return 0;
}

static int handle(struct server *s, struct client *c, const struct ibv_wc *wc)
{
	char *slot = (char *)(uintptr_t)wc->wr_id;

	if (wc->status == IBV_WC_WR_FLUSH_ERR)
		return 0; /* the connection has ended, of which an event tells */
	if (wc->status != IBV_WC_SUCCESS)
		return fail("client %td: %s", c - clients, ibv_wc_status_str(wc->status));
	if (wc->opcode == IBV_WC_RECV) {
		for (uint32_t i = 0; i < wc->byte_len; i++)
			slot[i] = (char)toupper((unsigned char)slot[i]);
		TRY(rpma_send(c->conn, s->mr, offset_of(slot), wc->byte_len, RPMA_F_COMPLETION_ALWAYS, slot));
	} else {
		TRY(rpma_recv(c->conn, s->mr, offset_of(slot), MESSAGE_SIZE, slot));
	}
	return 0;
}

static int on_completion(struct server *s, struct client *c)
{
	struct ibv_wc wc[DEPTH];
	int n = 0, ret = rpma_cq_wait(c->cq);

	if (ret == RPMA_E_NO_COMPLETION)
		return 0;
	/* All there are: what is left would not be announced again. */
	while (ret == 0 && (ret = rpma_cq_get_wc(c->cq, DEPTH, wc, &n)) == 0)
		for (int i = 0; i < n && ret == 0; i++)
			ret = handle(s, c, &wc[i]);
	if (ret != RPMA_E_NO_COMPLETION)
		drop(s, c);
	return 0;
}

/* ---- new clients ---- */

static int welcome(struct server *s, struct client *c, struct rpma_conn_req **req)
{
	char (*slots)[MESSAGE_SIZE] = memory[c - clients];
	int fd = -1;

	for (int i = 0; i < DEPTH; i++)
		TRY(rpma_conn_req_recv(*req, s->mr, offset_of(slots[i]), MESSAGE_SIZE, slots[i]));
	TRY(rpma_conn_req_connect(req, NULL, &c->conn));
	c->established = false;
	c->events = (struct source){on_event, c};
	c->completions = (struct source){on_completion, c};
	s->n_clients++;

	TRY(rpma_conn_get_event_fd(c->conn, &fd));
	if (watch(s, fd, &c->events) != 0)
		return -1;
	TRY(rpma_conn_get_cq(c->conn, &c->cq));
	TRY(rpma_cq_get_fd(c->cq, &fd));
	return watch(s, fd, &c->completions);
}

static int on_request(struct server *s, struct client *none)
{
	struct rpma_conn_req *req = NULL;
	struct client *c = clients;
	int ret = rpma_ep_next_conn_req(s->ep, s->cfg, &req);

	(void)none;
	if (ret == RPMA_E_NO_EVENT)
		return 0;
	if (ret != 0) {
		/* That client is rejected; the next may have more luck. */
		fail("rpma_ep_next_conn_req: %s", rpma_err_2str(ret));
		return 0;
	}
	if (s->n_clients == s->max) {
		printf("no room for another client\n");
	} else {
		while (c->conn != NULL)
			c++;
		if (welcome(s, c, &req) == 0)
			printf("client %td is here, %d in all\n", c - clients, s->n_clients);
		else if (c->conn != NULL)
			drop(s, c);
	}
	/* If the request is still there, this rejects it. */
	ret = rpma_conn_req_delete(&req);
	if (ret != 0)
		fail("rpma_conn_req_delete: %s", rpma_err_2str(ret));
	return 0;
}

/* ---- all of it ---- */

static int on_signal(struct server *s, struct client *none)
{
	(void)s;
	(void)none;
	return STOP;
}

static int set_up(struct server *s, const char *addr, const char *port)
{
	sigset_t signals;
	int fd = -1;

	/* Before a device is opened: no thread that is started for it shall take the signals. */
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	if (sigprocmask(SIG_BLOCK, &signals, NULL) != 0)
		return fail("sigprocmask: %s", strerror(errno));
	s->signals = signalfd(-1, &signals, SFD_CLOEXEC);
	s->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (s->signals < 0 || s->epoll < 0)
		return fail("signalfd or epoll_create1: %s", strerror(errno));

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(s->peer, memory, sizeof(memory), RPMA_MR_USAGE_SEND | RPMA_MR_USAGE_RECV, &s->mr));
	TRY(rpma_conn_cfg_new(&s->cfg));
	TRY(rpma_conn_cfg_set_cq_size(s->cfg, 2 * DEPTH));
	if (listen_at(s->peer, addr, port, &s->ep) != 0)
		return -1;
	TRY(rpma_ep_get_fd(s->ep, &fd));
	s->listener = (struct source){on_request, NULL};
	s->interrupt = (struct source){on_signal, NULL};
	return watch(s, fd, &s->listener) != 0 || watch(s, s->signals, &s->interrupt) != 0 ? -1 : 0;
}

static int serve(struct server *s, const char *addr, const char *port)
{
	int ret = set_up(s, addr, port);

	while (ret == 0) {
		struct epoll_event event;
		/* One at a time: of two at once, the first could end the client that the second is about. */
		int n = epoll_wait(s->epoll, &event, 1, -1);

		if (n < 0 && errno != EINTR)
			return fail("epoll_wait: %s", strerror(errno));
		if (n == 1) {
			struct source *source = event.data.ptr;

			ret = source->ready(s, source->client);
		}
	}
	return ret == STOP ? 0 : -1;
}

int main(int argc, char *argv[])
{
	struct server s = {.epoll = -1, .signals = -1};
	int status;

	s.max = argc == 4 ? atoi(argv[3]) : MAX_CLIENTS;
	if (argc < 3 || argc > 4 || s.max < 1 || s.max > MAX_CLIENTS)
		return usage(argv[0], "ADDR PORT [MAX]");
	status = serve(&s, argv[1], argv[2]);
	for (int i = 0; i < MAX_CLIENTS; i++)
		if (clients[i].conn != NULL)
			drop(&s, &clients[i]);
	RELEASE(status, rpma_ep_shutdown(&s.ep));
	RELEASE(status, rpma_conn_cfg_delete(&s.cfg));
	RELEASE(status, rpma_mr_dereg(&s.mr));
	RELEASE(status, rpma_peer_delete(&s.peer));
	if (s.epoll >= 0)
		close(s.epoll);
	if (s.signals >= 0)
		close(s.signals);
	if (status == 0)
		printf("stopped\n");
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
