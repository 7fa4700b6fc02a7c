/*
 * srq_server.c -- several clients, whose messages go into one pool of buffers.
 *
 *   srq_server ADDR PORT CLIENTS
 *
 * Without a shared receive queue each connection needs buffers of its own, most of which lie idle.
 * With one, a few serve all. A message that finds none free is sent again by the client's device.
 */
#include "common.h"

#define MESSAGE_SIZE 64
#define BUFFERS 4
#define MAX_CLIENTS 16

static char buffers[BUFFERS][MESSAGE_SIZE];

struct client {
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_cq *cq;
	uint32_t qp_num;
	char answer[MESSAGE_SIZE];
	bool answering; /* the completion of the answer has not been taken yet */
};

static struct client clients[MAX_CLIENTS];

struct server {
	struct rpma_peer *peer;
	struct rpma_mr_local *buffers_mr, *clients_mr;
	struct rpma_srq *srq;
	struct rpma_cq *rcq;
	struct rpma_conn_cfg *cfg;
	struct rpma_ep *ep;
	int n_clients;
};

static int post_buffer(struct server *s, char *buffer)
{
	TRY(rpma_srq_recv(s->srq, s->buffers_mr, (size_t)(buffer - buffers[0]), MESSAGE_SIZE, buffer));
	return 0;
}

/* Sends the message back to where it came from. */
static int answer(struct server *s, struct client *c, const char *message, uint32_t len)
{
	struct ibv_wc wc;

	printf("client %td: \"%.*s\"\n", c - clients, (int)len, message);
	if (c->answering && expect_completion(c->conn, c->cq, c, &wc) != 0)
		return -1;
	memcpy(c->answer, message, len);
	TRY(rpma_send(c->conn, s->clients_mr, (size_t)(c->answer - (char *)clients), len,
			RPMA_F_COMPLETION_ALWAYS, c));
	c->answering = true;
	return 0;
}

static int handle_messages(struct server *s)
{
	struct ibv_wc wc;
	int ret;

	TRY(rpma_cq_wait(s->rcq));
	/* All there are: what is left would not be announced again. */
	while ((ret = rpma_cq_get_wc(s->rcq, 1, &wc, NULL)) == 0) {
		char *buffer = (char *)(uintptr_t)wc.wr_id;

		if (wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR)
			return fail("a receive failed: %s", ibv_wc_status_str(wc.status));
		/* The number of the queue pair tells whose message it is. */
		for (int i = 0; i < s->n_clients && wc.status == IBV_WC_SUCCESS; i++)
			if (clients[i].qp_num == wc.qp_num && answer(s, &clients[i], buffer, wc.byte_len) != 0)
				return -1;
		if (post_buffer(s, buffer) != 0)
			return -1;
	}
	return ret == RPMA_E_NO_COMPLETION ? 0 : fail("rpma_cq_get_wc: %s", rpma_err_2str(ret));
}

static int serve_clients(struct server *s)
{
	struct pollfd fds[1 + MAX_CLIENTS] = {{.events = POLLIN}};
	int here = s->n_clients;

	TRY(rpma_cq_get_fd(s->rcq, &fds[0].fd));
	for (int i = 0; i < s->n_clients; i++) {
		fds[1 + i].events = POLLIN;
		TRY(rpma_conn_get_event_fd(clients[i].conn, &fds[1 + i].fd));
	}
	while (here > 0) {
		if (wait_readable(fds, 1 + (nfds_t)s->n_clients, FOR_EVER, "a message") != 0)
			return -1;
		if (fds[0].revents != 0) {
			if (handle_messages(s) != 0)
				return -1;
			continue; /* messages come before the end of a connection */
		}
		for (int i = 0; i < s->n_clients; i++) {
			if (fds[1 + i].revents == 0)
				continue;
			if (wait_closed(clients[i].conn) != 0)
				return -1;
			printf("client %d has left\n", i);
			fds[1 + i].fd = -1; /* poll() passes over it */
			here--;
		}
	}
	return 0;
}

static int serve(struct server *s, const char *addr, const char *port)
{
	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0)
		return -1;
	TRY(rpma_mr_reg(s->peer, buffers, sizeof(buffers), RPMA_MR_USAGE_RECV, &s->buffers_mr));
	TRY(rpma_mr_reg(s->peer, clients, sizeof(clients), RPMA_MR_USAGE_SEND, &s->clients_mr));
	/* Without a configuration it has 20 places, and a receive CQ for all its connections. */
	TRY(rpma_srq_new(s->peer, NULL, &s->srq));
	TRY(rpma_srq_get_rcq(s->srq, &s->rcq));
	for (int i = 0; i < BUFFERS; i++)
		if (post_buffer(s, buffers[i]) != 0)
			return -1;
	TRY(rpma_conn_cfg_new(&s->cfg));
	TRY(rpma_conn_cfg_set_srq(s->cfg, s->srq));
	if (listen_at(s->peer, addr, port, &s->ep) != 0)
		return -1;
	for (int i = 0; i < s->n_clients; i++) {
		struct client *c = &clients[i];

		if (next_request(s->ep, s->cfg, &c->req) != 0 || accept_request(&c->req, NULL, 0, &c->conn) != 0)
			return -1;
		TRY(rpma_conn_get_cq(c->conn, &c->cq));
		TRY(rpma_conn_get_qp_num(c->conn, &c->qp_num));
	}
	return serve_clients(s);
}

int main(int argc, char *argv[])
{
	struct server s = {0};
	int status;

	s.n_clients = argc == 4 ? atoi(argv[3]) : 0;
	if (s.n_clients < 1 || s.n_clients > MAX_CLIENTS)
		return usage(argv[0], "ADDR PORT CLIENTS (1 to 16)");
	status = serve(&s, argv[1], argv[2]);
	/* The connections go before the queue they receive from. */
	for (int i = 0; i < s.n_clients; i++) {
		RELEASE(status, rpma_conn_delete(&clients[i].conn));
		RELEASE(status, rpma_conn_req_delete(&clients[i].req));
	}
	RELEASE(status, rpma_ep_shutdown(&s.ep));
	RELEASE(status, rpma_conn_cfg_delete(&s.cfg));
	RELEASE(status, rpma_srq_delete(&s.srq));
	RELEASE(status, rpma_mr_dereg(&s.clients_mr));
	RELEASE(status, rpma_mr_dereg(&s.buffers_mr));
	RELEASE(status, rpma_peer_delete(&s.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
