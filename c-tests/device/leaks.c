/*
 * leaks.c -- what is left in the process and in the kernel after connections
 * that came to an end in each possible way. Server and client are one process
 * here, so that one count sees both.
 */
#include "device.h"
#include <dirent.h>
#include <malloc.h>
#include <sys/resource.h>

static struct rpma_ep *ep;

/* ---- counting ---- */

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	if (dir == NULL)
		FAIL("no /proc/self/fd");
	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

/* The kernel's objects, and the word their lines in `rdma resource` begin with after the device. */
static const struct {
	const char *kind, *word;
} kinds[] = {
	{"cm_id", "cm-idn"}, {"qp", "lqpn"}, {"cq", "cqn"}, {"mr", "mrn"}, {"pd", "pdn"},
	{"srq", "srqn"},
};

struct counts {
	int fds;
	int kernel[COUNT(kinds)];
	size_t heap;
};

/* What there is of this process. */
static struct counts count(void)
{
	char command[256] = "rdma -b /dev/stdin <<END\n", line[1024], pid[32], word[32];
	struct counts c = {.fds = count_fds()};
	FILE *list;

	for (size_t i = 0; i < COUNT(kinds); i++)
		sprintf(command + strlen(command), "resource show %s\n", kinds[i].kind);
	strcat(command, "END");
	snprintf(pid, sizeof(pid), " pid %d ", getpid());
	list = popen(command, "r");
	if (list == NULL)
		FAIL("rdma: %s", strerror(errno));
	while (fgets(line, sizeof(line), list) != NULL)
		for (size_t i = 0; i < COUNT(kinds); i++)
			c.kernel[i] += strstr(line, pid) != NULL &&
					sscanf(line, "%*s %*s %31s", word) == 1 &&
					strcmp(word, kinds[i].word) == 0;
	if (pclose(list) != 0)
		FAIL("rdma (of iproute2) failed");
	c.heap = mallinfo2().uordblks;
	return c;
}

/* What came on top since `then`, all kinds of objects in one line. */
static void show_left(const char *key, const struct counts *then)
{
	struct counts now = count();
	char text[256];
	int n = snprintf(text, sizeof(text), "fds %+d", now.fds - then->fds);

	for (size_t i = 0; i < COUNT(kinds); i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %s %+d", kinds[i].kind,
				now.kernel[i] - then->kernel[i]);
	show(key, "%s heap %s", text, now.heap > then->heap ? "more" : "+0");
}

/* ---- the ways for a connection to end ---- */

#define ROUNDS 8

static struct rpma_conn *connect_client(void)
{
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;

	MUST(rpma_conn_req_new(peer, addr, port, NULL, &req));
	MUST(rpma_conn_req_connect(&req, NULL, &conn));
	return conn;
}

/* Connected, used, disconnected. */
static void round_trip(void)
{
	struct rpma_conn *client = connect_client(), *server = NULL;
	struct rpma_conn_req *req = next_req(ep, NULL);
	struct rpma_mr_local *mr = NULL;
	struct rpma_cq *cq = NULL;
	struct ibv_wc wc;

	MUST(rpma_mr_reg(peer, dummy_bytes, sizeof(dummy_bytes), USAGE, &mr));
	MUST(rpma_conn_req_recv(req, mr, 64, 64, NULL));
	MUST(rpma_conn_req_connect(&req, NULL, &server));
	expect_event(client, RPMA_CONN_ESTABLISHED); /* it is the client's turn first */
	expect_event(server, RPMA_CONN_ESTABLISHED);
	MUST(rpma_send(client, mr, 0, 64, ALWAYS, NULL));
	MUST(rpma_conn_get_cq(server, &cq));
	if (!wait_wc_in(cq, &wc, WAIT_MS) || wc.status != IBV_WC_SUCCESS)
		FAIL("no message");
	MUST(rpma_conn_disconnect(client));
	expect_event(server, RPMA_CONN_CLOSED);
	MUST(rpma_conn_disconnect(server));
	expect_event(client, RPMA_CONN_CLOSED);
	MUST(rpma_conn_delete(&client));
	MUST(rpma_conn_delete(&server));
	MUST(rpma_mr_dereg(&mr));
}

/* Connected, and each side just deleted. */
static void dropped(void)
{
	struct rpma_conn *client = connect_client(), *server = NULL;
	struct rpma_conn_req *req = next_req(ep, NULL);

	MUST(rpma_conn_req_connect(&req, NULL, &server));
	expect_event(client, RPMA_CONN_ESTABLISHED);
	MUST(rpma_conn_delete(&server));
	MUST(rpma_conn_delete(&client));
}

static void given_up(void)
{
	struct rpma_conn_req *req = NULL;

	MUST(rpma_conn_req_new(peer, addr, port, NULL, &req));
	MUST(rpma_conn_req_delete(&req));
}

static void rejected(void)
{
	struct rpma_conn *client = connect_client();
	struct rpma_conn_req *req = next_req(ep, NULL);

	MUST(rpma_conn_req_delete(&req));
	expect_event(client, RPMA_CONN_REJECTED);
	MUST(rpma_conn_delete(&client));
}

/* Configurations that no device can meet, and what comes of each. */
static const struct {
	uint32_t cq_size, rcq_size, sq_size;
	bool contradiction; /* a shared channel and a shared queue with completions apart */
	int code;
} impossible[] = {
	{INT_MAX, 0, 10, false, RPMA_E_PROVIDER},
	{10, INT_MAX, 10, false, RPMA_E_PROVIDER},
	{10, 10, INT_MAX, false, RPMA_E_PROVIDER},
	{10, 10, 10, true, RPMA_E_INVAL},
};

static struct rpma_srq *srq_with_rcq;

static struct rpma_conn_cfg *impossible_cfg(size_t i)
{
	struct rpma_conn_cfg *cfg = NULL;

	MUST(rpma_conn_cfg_new(&cfg));
	MUST(rpma_conn_cfg_set_cq_size(cfg, impossible[i].cq_size));
	MUST(rpma_conn_cfg_set_rcq_size(cfg, impossible[i].rcq_size));
	MUST(rpma_conn_cfg_set_sq_size(cfg, impossible[i].sq_size));
	if (impossible[i].contradiction) {
		MUST(rpma_conn_cfg_set_compl_channel(cfg, true));
		MUST(rpma_conn_cfg_set_srq(cfg, srq_with_rcq));
	}
	return cfg;
}

static void impossible_request(void)
{
	struct rpma_conn_req *req = NULL;

	for (size_t i = 0; i < COUNT(impossible); i++) {
		struct rpma_conn_cfg *cfg = impossible_cfg(i);

		if (rpma_conn_req_new(peer, addr, port, cfg, &req) != impossible[i].code)
			FAIL("an impossible configuration was met%s", log_text());
		MUST(rpma_conn_cfg_delete(&cfg));
	}
}

static void impossible_to_accept(void)
{
	static size_t turn;
	size_t i = turn++ % COUNT(impossible);
	struct rpma_conn *client = connect_client();
	struct rpma_conn_cfg *cfg = impossible_cfg(i);
	struct rpma_conn_req *req = NULL;

	if (!ep_ready(ep, WAIT_MS))
		FAIL("no request came");
	if (rpma_ep_next_conn_req(ep, cfg, &req) != impossible[i].code)
		FAIL("an impossible configuration was met%s", log_text());
	MUST(rpma_conn_delete(&client));
	MUST(rpma_conn_cfg_delete(&cfg));
}

/* The accept itself fails: there is no room for so much private data. */
static void too_much_to_say(void)
{
	struct rpma_conn *client = connect_client(), *server = NULL;
	struct rpma_conn_req *req = next_req(ep, NULL);
	struct rpma_conn_private_data data = {dummy_bytes, 255};

	if (rpma_conn_req_connect(&req, &data, &server) != RPMA_E_PROVIDER)
		FAIL("255 bytes of private data were accepted%s", log_text());
	MUST(rpma_conn_delete(&client));
}

/* The accept works, but there is no descriptor left for the connection. */
static void no_descriptor_left(void)
{
	struct rpma_conn *client = connect_client(), *server = NULL;
	struct rpma_conn_req *req = next_req(ep, NULL);
	struct rlimit old, none;
	int ret;

	getrlimit(RLIMIT_NOFILE, &old);
	none = old;
	none.rlim_cur = 3;
	setrlimit(RLIMIT_NOFILE, &none);
	ret = rpma_conn_req_connect(&req, NULL, &server);
	setrlimit(RLIMIT_NOFILE, &old);
	if (ret != RPMA_E_PROVIDER)
		FAIL("a connection without descriptors: %s%s", code_name(ret), log_text());
	MUST(rpma_conn_delete(&client));
}

static void failing_rest(void)
{
	struct rpma_ep *second = NULL;
	struct rpma_mr_local *mr = NULL;
	struct rpma_srq_cfg *cfg = NULL;
	struct rpma_srq *srq = NULL;

	if (rpma_ep_listen(peer, addr, port, &second) != RPMA_E_PROVIDER)
		FAIL("two listen on one port");
	if (rpma_mr_reg(peer, (void *)4096, 4096, USAGE, &mr) != RPMA_E_PROVIDER)
		FAIL("memory that is not there was registered");
	MUST(rpma_srq_cfg_new(&cfg));
	MUST(rpma_srq_new(peer, cfg, &srq));
	MUST(rpma_srq_delete(&srq));
	MUST(rpma_srq_cfg_set_rcq_size(cfg, INT_MAX));
	if (rpma_srq_new(peer, cfg, &srq) != RPMA_E_PROVIDER)
		FAIL("a queue of INT_MAX completions was made");
	MUST(rpma_srq_cfg_delete(&cfg));
}

static const struct way {
	const char *difference, *key;
	void (*go)(void);
} ways[] = {
	{NULL, "after connections closed by both sides", round_trip},
	{NULL, "after connections just deleted", dropped},
	{NULL, "after requests given up", given_up},
	{NULL, "after requests that cannot be met", impossible_request},
	{NULL, "after failures of all kinds", failing_rest},
	{"D3", "after clients rejected", rejected},
	{"D4", "after clients that cannot be served", impossible_to_accept},
	{"D5", "after accepts that failed", too_much_to_say},
	{"D5", "after connections that could not be made", no_descriptor_left},
};

static void ways_to_end(void)
{
	open_peer();
	ep = listen_somewhere();
	MUST(rpma_srq_new(peer, NULL, &srq_with_rcq));
	for (size_t i = 0; i < COUNT(ways); i++) {
		struct counts then;

		/* what is made once and kept is made now */
		for (int round = 0; round < ROUNDS; round++)
			ways[i].go();
		then = count();
		for (int round = 0; round < ROUNDS; round++)
			ways[i].go();
		if (ways[i].difference == NULL)
			show_left(ways[i].key, &then);
		else
			DIFF(ways[i].difference)
				show_left(ways[i].key, &then);
	}
	MUST(rpma_srq_delete(&srq_with_rcq));
	TRY(rpma_ep_shutdown(&ep));
	close_peer();
}

static const struct test_case cases[] = {
	{.name = "ways-to-end", .run = ways_to_end},
};

MAIN(cases)
