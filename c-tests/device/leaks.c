/*
 * leaks.c -- what is left in the process and in the kernel after connections
 * that came to an end in each possible way. Server and client are one process
 * here, so that one count sees both.
 */
#include "device.h"
#include <dirent.h>
#include <dlfcn.h>
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

/* The device's objects, and the word their lines in `rdma resource` begin with after the device. */
static const struct {
	const char *kind, *word;
} kinds[] = {
	{"cm_id", "cm-idn"}, {"qp", "lqpn"}, {"cq", "cqn"}, {"mr", "mrn"}, {"pd", "pdn"},
	{"srq", "srqn"},
};

struct counts {
	int fds;
	int objects[COUNT(kinds)];
	size_t heap;
};

/* How the kernel knows them. */
static void count_kernel(struct counts *c)
{
	char command[256] = "rdma -b /dev/stdin <<END\n", line[1024], pid[32], word[32];
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
			c->objects[i] += strstr(line, pid) != NULL &&
					sscanf(line, "%*s %*s %31s", word) == 1 &&
					strcmp(word, kinds[i].word) == 0;
	if (pclose(list) != 0)
		FAIL("rdma (of iproute2) failed");
}

/* How a device in software counts, if that is what there is. */
static int (*of_software)(const char *kind);

/* What there is of this process. */
static struct counts count(void)
{
	struct counts c = {.fds = count_fds()};

	if (of_software == NULL)
		count_kernel(&c);
	for (size_t i = 0; i < COUNT(kinds) && of_software != NULL; i++)
		c.objects[i] = of_software(kinds[i].kind);
	c.heap = mallinfo2().uordblks;
	return c;
}

/* Whether there is less of anything than there was. */
static bool less(const struct counts *now, const struct counts *then)
{
	bool objects = false;

	for (size_t i = 0; i < COUNT(kinds); i++)
		objects |= now->objects[i] < then->objects[i];
	return objects || now->fds < then->fds || now->heap < then->heap;
}

/*
 * Counts once nothing goes any more: a device in software may end a connection a little after it has
 * been deleted, and so may the kernel, which takes longer to count.
 */
static struct counts settled(void)
{
	struct counts then = count(), now;

	for (int quiet = 0; quiet < (of_software != NULL ? 10 : 1); quiet++, then = now) {
		poll(NULL, 0, 10);
		now = count();
		if (less(&now, &then))
			quiet = 0;
	}
	return then;
}

/* What came on top since `then`, all kinds of objects in one line. */
static void show_left(const char *key, const struct counts *then, const struct counts *now)
{
	char text[256];
	int n = snprintf(text, sizeof(text), "fds %+d", now->fds - then->fds);

	for (size_t i = 0; i < COUNT(kinds); i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " %s %+d", kinds[i].kind,
				now->objects[i] - then->objects[i]);
	show(key, "%s heap %s", text, now->heap > then->heap ? "more" : "+0");
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
	of_software = dlsym(RTLD_DEFAULT, "softverbs_count");
	open_peer();
	ep = listen_somewhere();
	MUST(rpma_srq_new(peer, NULL, &srq_with_rcq));
	for (size_t i = 0; i < COUNT(ways); i++) {
		struct counts then, now;

		/* what is made once and kept is made now */
		for (int round = 0; round < ROUNDS; round++)
			ways[i].go();
		/* a device in software keeps this and that for a while: only what grows each time is lost */
		for (int tries = of_software != NULL ? 10 : 1; tries > 0; tries--) {
			then = settled();
			for (int round = 0; round < ROUNDS; round++)
				ways[i].go();
			now = settled();
			if (now.heap <= then.heap)
				break;
		}
		mark = ways[i].difference;
		show_left(ways[i].key, &then, &now);
		mark = NULL;
	}
	MUST(rpma_srq_delete(&srq_with_rcq));
	TRY(rpma_ep_shutdown(&ep));
	close_peer();
}

static const struct test_case cases[] = {
	{.name = "ways-to-end", .run = ways_to_end},
};

MAIN(cases)
