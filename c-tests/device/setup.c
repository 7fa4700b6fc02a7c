/*
 * setup.c -- what needs the device but no second side: contexts, peers, memory
 * regions, shared receive queues and the limits of configurations.
 */
#include "device.h"
#include <sys/mman.h>

/* ---- contexts and peers ---- */

static void contexts(void)
{
	struct ibv_context *again = NULL;

	before();
	after("local context", rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL,
			&context));
	before();
	after("remote context", rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_REMOTE,
			&again));
	show("both are the same device", "%d", context != NULL && context == again);
	TRY(rpma_utils_get_ibv_context(addr, (enum rpma_util_ibv_context_type)2, OUT));
	TRY(rpma_utils_get_ibv_context(addr, (enum rpma_util_ibv_context_type)-1, OUT));
	/* neither an address of this machine, nor one at all */
	TRY(rpma_utils_get_ibv_context("192.0.2.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT));
	TRY(rpma_utils_get_ibv_context("not an address", RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT));
	TRY(rpma_utils_get_ibv_context("not an address", RPMA_UTIL_IBV_CONTEXT_REMOTE, OUT));
	TRY(rpma_utils_get_ibv_context("", RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT));
	TRY(rpma_utils_ibv_context_is_odp_capable(context, OUT));
	show("ODP", "%d", *(int *)OUT);
	TRY(rpma_utils_ibv_context_is_odp_capable(NULL, OUT));
	TRY(rpma_utils_ibv_context_is_odp_capable(context, NULL));
}

/* An address of this machine with no device behind it. */
static void no_device(void)
{
	DIFF("D1") {
		TRY(rpma_utils_get_ibv_context("127.0.0.1", RPMA_UTIL_IBV_CONTEXT_LOCAL, OUT));
		show("its context", "%s", *(void **)OUT == NULL ? "NULL" : out_is_kept() ?
				"untouched" : "a device's");
		show("the address in the log", "%s",
				strstr(logged.text[0], "127.0.0.1") != NULL ? "yes" : "no");
	}
}

/* Tells the runner what to expect of the device. */
static void capabilities(void)
{
	struct ibv_device_attr_ex attr = {0};
	uint64_t flags;

	MUST(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	MUST(ibv_query_device_ex(context, NULL, &attr));
	flags = attr.device_cap_flags_ex;
	show("native flush", "%s", (flags >> 38 & 3) == 3 ? "yes" : "no");
	show("native atomic write", "%s", flags >> 40 & 1 ? "yes" : "no");
}

static void peers(void)
{
	struct rpma_peer *many[20] = {NULL};

	MUST(rpma_utils_get_ibv_context(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &context));
	TRY(rpma_peer_new(context, &peer));
	TRY(rpma_peer_new(context, NULL));
	TRY(rpma_peer_new(NULL, OUT));
	for (size_t i = 0; i < COUNT(many); i++)
		MUST(rpma_peer_new(context, &many[i]));
	for (size_t i = 0; i < COUNT(many); i++)
		MUST(rpma_peer_delete(&many[i]));
	TRY(rpma_peer_delete(&peer));
	show("peer", "%s", peer == NULL ? "NULL" : "not NULL");
	TRY(rpma_peer_delete(&peer));

	/* a protection domain that is in use stays, and the handle is cleared all the same */
	struct rpma_mr_local *mr;

	MUST(rpma_peer_new(context, &peer));
	MUST(rpma_mr_reg(peer, dummy_bytes, 8, RPMA_MR_USAGE_SEND, &mr));
	TRY(rpma_peer_delete(&peer));
	show("peer", "%s", peer == NULL ? "NULL" : "not NULL");
}

/* ---- memory regions ---- */

/* Whether the region and its descriptor tell what was registered. */
static void show_region(const char *key, struct rpma_mr_local *mr, const void *mem, size_t size,
		int usage)
{
	unsigned char desc[DESC_SIZE + 3];
	uint64_t desc_addr, desc_len;
	uint32_t rkey;
	size_t desc_size = 0, mr_size = 0;
	void *ptr = NULL;

	MUST(rpma_mr_get_descriptor_size(mr, &desc_size));
	memset(desc, 0xa5, sizeof(desc));
	MUST(rpma_mr_get_descriptor(mr, desc));
	memcpy(&desc_addr, desc, 8);
	memcpy(&desc_len, desc + 8, 8);
	memcpy(&rkey, desc + 16, 4);
	MUST(rpma_mr_get_ptr(mr, &ptr));
	MUST(rpma_mr_get_size(mr, &mr_size));
	if (desc_size == DESC_SIZE && le64toh(desc_addr) == (uintptr_t)mem &&
			le64toh(desc_len) == size && desc[20] == usage &&
			memcmp(desc + DESC_SIZE, "\xa5\xa5\xa5", 3) == 0 && ptr == mem &&
			mr_size == size)
		/* some devices give no key to what is for no other side */
		show(key, "region as asked for, %s key", rkey != 0 ? "with a" : "without");
	else
		show(key, "descriptor %s size %zu; pointer %p, size %zu; asked for %p, size %zu, "
				"usage 0x%x", hex(desc, sizeof(desc)), desc_size, ptr, mr_size,
				mem, size, (unsigned)usage);
}

/* Each combination of usages, of ordinary memory. */
static void mr_usages(void)
{
	struct rpma_mr_local *mr;
	char key[64];

	open_peer();
	for (int usage = 1; usage <= 0xff; usage++) {
		bool persistent = usage & RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT;

		mr = NULL;
		mark = persistent ? "D12" : NULL;
		snprintf(key, sizeof(key), "code of usage 0x%02x", (unsigned)usage);
		TRY_AS(key, rpma_mr_reg(peer, dummy_bytes, 4000, usage, &mr));
		snprintf(key, sizeof(key), "ordinary memory, usage 0x%02x", (unsigned)usage);
		if (mr != NULL) {
			show_region(key, mr, dummy_bytes, 4000, usage);
			MUST(rpma_mr_dereg(&mr));
		} else {
			show(key, "no region");
		}
		mark = NULL;
	}
	close_peer();
}

static void mr_regions(void)
{
	struct rpma_mr_local *mr = NULL;
	unsigned char *mem = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static const struct {
		const char *what;
		size_t offset, size;
		int usage;
	} tries[] = {
		{"1 byte", 0, 1, USAGE},
		{"odd", 13, 4097, USAGE},
		{"read-only memory to send", 4096, 4096, RPMA_MR_USAGE_SEND},
		{"read-only memory to be read", 4096, 4096, RPMA_MR_USAGE_READ_SRC},
		{"read-only memory to write", 4096, 4096, RPMA_MR_USAGE_WRITE_DST},
		{"read-only memory to receive", 4096, 4096, RPMA_MR_USAGE_RECV},
		{"memory that ends too early", 4096, 3 * 4096, RPMA_MR_USAGE_SEND},
		{"no memory", 2 * 4096, 4096, RPMA_MR_USAGE_SEND},
		{"huge size", 0, (size_t)1 << 46, RPMA_MR_USAGE_SEND},
		{"size that wraps around", 0, SIZE_MAX, RPMA_MR_USAGE_SEND},
	};

	if (mem == MAP_FAILED || mprotect(mem + 4096, 4096, PROT_READ) != 0 ||
			munmap(mem + 2 * 4096, 4096) != 0)
		FAIL("no memory");
	open_peer();
	for (size_t i = 0; i < COUNT(tries); i++) {
		mr = NULL;
		before();
		if (after(tries[i].what, rpma_mr_reg(peer, mem + tries[i].offset, tries[i].size,
				tries[i].usage, &mr)) == 0) {
			show_region(tries[i].what, mr, mem + tries[i].offset, tries[i].size,
					tries[i].usage);
			TRY(rpma_mr_dereg(&mr));
		}
		show(tries[i].what, "handle %s", mr == NULL ? "NULL" : "not NULL");
	}
	TRY(rpma_mr_reg(peer, (void *)UINTPTR_MAX, 4096, USAGE, OUT));
	TRY(rpma_mr_reg(peer, mem, 0, USAGE, OUT));
	TRY(rpma_mr_reg(peer, NULL, 8, USAGE, OUT));
	TRY(rpma_mr_reg(peer, mem, 8, 0, OUT));
	TRY(rpma_mr_reg(peer, mem, 8, 1 << 8, OUT));
	TRY(rpma_mr_reg(peer, mem, 8, USAGE, NULL));
	TRY(rpma_mr_dereg(&mr));

	/* twice the same memory: two regions */
	struct rpma_mr_local *second = NULL;

	MUST(rpma_mr_reg(peer, mem, 4096, USAGE, &mr));
	TRY(rpma_mr_reg(peer, mem, 4096, USAGE, &second));
	TRY(rpma_mr_dereg(&mr));
	TRY(rpma_mr_dereg(&second));
	close_peer();
}

static void mr_advise(void)
{
	static const size_t four_gib = (size_t)1 << 32;
	struct rpma_mr_local *mr = NULL;
	char key[64];

	open_peer();
	MUST(rpma_mr_reg(peer, dummy_bytes, sizeof(dummy_bytes), USAGE, &mr));
	for (int advice = -1; advice <= 4; advice++) {
		for (uint32_t flags = 0; flags <= 2; flags++) {
			snprintf(key, sizeof(key), "advice %d, flags %u", advice, flags);
			TRY_AS(key, rpma_mr_advise(mr, 0, 4096, advice, flags));
		}
	}
	TRY(rpma_mr_advise(mr, 0, 0, IBV_ADVISE_MR_ADVICE_PREFETCH, 0));
	TRY(rpma_mr_advise(mr, 4096, 4096, IBV_ADVISE_MR_ADVICE_PREFETCH, 0));
	TRY(rpma_mr_advise(mr, 0, 8192, IBV_ADVISE_MR_ADVICE_PREFETCH, 0));
	DIFF("D6") {
		TRY(rpma_mr_advise(mr, 0, four_gib, IBV_ADVISE_MR_ADVICE_PREFETCH, 0));
		TRY(rpma_mr_advise(mr, 0, four_gib + 8, IBV_ADVISE_MR_ADVICE_PREFETCH, 0));
	}
	MUST(rpma_mr_dereg(&mr));
	close_peer();
}

/* ---- limits of configurations ---- */

static void try_request(const char *key, const struct rpma_conn_cfg *cfg)
{
	struct rpma_conn_req *req = NULL;

	before();
	if (after(key, rpma_conn_req_new(peer, addr, "7204", cfg, &req)) == 0)
		MUST(rpma_conn_req_delete(&req));
	if (req != NULL)
		show(key, "handle not NULL");
}

static void conn_limits(void)
{
	static const uint32_t sizes[] = {0, 1, 100, 100000000, INT_MAX, UINT32_MAX};
	static const struct {
		const char *name;
		int (*set)(struct rpma_conn_cfg *cfg, uint32_t size);
	} settings[] = {
		{"cq_size", rpma_conn_cfg_set_cq_size},
		{"rcq_size", rpma_conn_cfg_set_rcq_size},
		{"sq_size", rpma_conn_cfg_set_sq_size},
		{"rq_size", rpma_conn_cfg_set_rq_size},
	};
	struct rpma_conn_cfg *cfg = NULL;
	char key[64];

	open_peer();
	try_request("no configuration", NULL);
	show_last_log("said");
	for (size_t i = 0; i < COUNT(settings); i++) {
		for (size_t k = 0; k < COUNT(sizes); k++) {
			MUST(rpma_conn_cfg_new(&cfg));
			MUST(settings[i].set(cfg, sizes[k]));
			snprintf(key, sizeof(key), "%s %u", settings[i].name, sizes[k]);
			try_request(key, cfg);
			MUST(rpma_conn_cfg_delete(&cfg));
		}
	}
	for (int timeout = 0; timeout <= 1; timeout++) {
		MUST(rpma_conn_cfg_new(&cfg));
		MUST(rpma_conn_cfg_set_timeout(cfg, timeout ? INT_MAX : 0));
		snprintf(key, sizeof(key), "timeout %s", timeout ? "INT_MAX" : "0");
		try_request(key, cfg);
		MUST(rpma_conn_cfg_delete(&cfg));
	}
	close_peer();
}

/* Addresses and ports that lead nowhere. */
static void addresses(void)
{
	struct rpma_conn_req *req = NULL;
	struct rpma_ep *ep = NULL;
	int fd = -1;

	open_peer();
	TRY(rpma_conn_req_new(peer, addr, "no port", NULL, OUT));
	TRY(rpma_conn_req_new(peer, addr, "65536", NULL, &req));
	TRY(rpma_conn_req_delete(&req));
	TRY(rpma_conn_req_new(peer, addr, "-1", NULL, OUT));
	TRY(rpma_conn_req_new(peer, addr, "", NULL, &req));
	TRY(rpma_conn_req_delete(&req));
	TRY(rpma_conn_req_new(peer, "not an address", "7204", NULL, OUT));
	TRY(rpma_conn_req_new(peer, "", "7204", NULL, OUT));
	TRY(rpma_conn_req_new(peer, "192.0.2.1", "7204", NULL, OUT));
	TRY(rpma_ep_listen(peer, addr, "no port", OUT));
	TRY(rpma_ep_listen(peer, addr, "65536", &ep));
	TRY(rpma_ep_shutdown(&ep));
	TRY(rpma_ep_listen(peer, "not an address", "7204", OUT));
	TRY(rpma_ep_listen(peer, "192.0.2.1", "7204", OUT));
	ep = listen_somewhere();
	show_last_log("said");
	TRY(rpma_ep_listen(peer, addr, port, OUT));
	TRY(rpma_ep_get_fd(ep, &fd));
	show("descriptor", "%s", fcntl(fd, F_GETFD) >= 0 ? "open" : "not open");
	TRY(rpma_ep_next_conn_req(ep, NULL, NULL));
	/* nothing waits: with O_NONBLOCK that is not an error */
	MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
	DIFF("D2")
		TRY(rpma_ep_next_conn_req(ep, NULL, OUT));
	TRY(rpma_ep_shutdown(&ep));
	show("endpoint", "%s", ep == NULL ? "NULL" : "not NULL");
	TRY(rpma_ep_shutdown(&ep));
	/* the port is free again */
	TRY(rpma_ep_listen(peer, addr, port, &ep));
	TRY(rpma_ep_shutdown(&ep));
	close_peer();
}

static void srqs(void)
{
	static const uint32_t sizes[] = {0, 1, 100, 100000000, INT_MAX, UINT32_MAX};
	struct rpma_srq_cfg *cfg = NULL;
	struct rpma_conn_cfg *conn_cfg = NULL;
	struct rpma_srq *srq = NULL;
	struct rpma_cq *rcq = NULL;
	struct rpma_mr_local *mr = NULL;
	char key[64];
	int n;

	open_peer();
	MUST(rpma_mr_reg(peer, dummy_bytes, sizeof(dummy_bytes), USAGE, &mr));
	TRY(rpma_srq_new(peer, NULL, &srq));
	MUST(rpma_srq_get_rcq(srq, &rcq));
	show("its rcq", "%s", rcq != NULL ? "there" : "NULL");
	TRY(rpma_srq_recv(srq, mr, 0, 8, OP_CONTEXT));
	TRY(rpma_srq_recv(srq, mr, 0, 0, OP_CONTEXT));
	TRY(rpma_srq_recv(srq, NULL, 0, 0, OP_CONTEXT));
	TRY(rpma_srq_recv(srq, NULL, 1, 0, OP_CONTEXT));
	TRY(rpma_srq_recv(srq, NULL, 0, 1, OP_CONTEXT));
	DIFF("D6")
		TRY(rpma_srq_recv(srq, mr, 0, (size_t)1 << 32, OP_CONTEXT));
	TRY(rpma_cq_get_wc(rcq, 1, OUT, NULL));
	/* a shared channel and a queue with completions of its own do not go together */
	MUST(rpma_conn_cfg_new(&conn_cfg));
	MUST(rpma_conn_cfg_set_srq(conn_cfg, srq));
	try_request("SRQ with an rcq", conn_cfg);
	MUST(rpma_conn_cfg_set_rcq_size(conn_cfg, 10));
	try_request("SRQ with an rcq, and an rcq", conn_cfg);
	MUST(rpma_conn_cfg_set_compl_channel(conn_cfg, true));
	try_request("SRQ with an rcq, and a shared channel", conn_cfg);
	MUST(rpma_conn_cfg_delete(&conn_cfg));
	TRY(rpma_srq_delete(&srq));
	show("srq", "%s", srq == NULL ? "NULL" : "not NULL");
	TRY(rpma_srq_delete(&srq));

	for (int what = 0; what < 2; what++) {
		for (size_t i = 0; i < COUNT(sizes); i++) {
			MUST(rpma_srq_cfg_new(&cfg));
			MUST((what == 0 ? rpma_srq_cfg_set_rq_size : rpma_srq_cfg_set_rcq_size)(cfg,
					sizes[i]));
			snprintf(key, sizeof(key), "srq with %s %u", what == 0 ? "rq" : "rcq", sizes[i]);
			before();
			if (after(key, rpma_srq_new(peer, cfg, &srq)) == 0) {
				MUST(rpma_srq_get_rcq(srq, &rcq));
				show(key, "rcq %s", rcq != NULL ? "there" : "NULL");
				MUST(rpma_srq_delete(&srq));
			}
			show(key, "handle %s", srq == NULL ? "NULL" : "not NULL");
			MUST(rpma_srq_cfg_delete(&cfg));
		}
	}

	/* one receive more than there is room for */
	MUST(rpma_srq_cfg_new(&cfg));
	MUST(rpma_srq_cfg_set_rq_size(cfg, 3));
	MUST(rpma_srq_new(peer, cfg, &srq));
	for (n = 0, before(); n < 100 && rpma_srq_recv(srq, mr, 0, 8, OP_CONTEXT) == 0; n++)
		;
	show("room for receives", "%d", n);
	TRY(rpma_srq_recv(srq, mr, 0, 8, OP_CONTEXT));
	MUST(rpma_srq_delete(&srq));
	MUST(rpma_srq_cfg_delete(&cfg));
	MUST(rpma_mr_dereg(&mr));
	close_peer();
}

static const struct test_case cases[] = {
	{.name = "capabilities", .run = capabilities},
	{.name = "contexts", .run = contexts},
	{.name = "no-device", .run = no_device},
	{.name = "peers", .run = peers},
	{.name = "mr-usages", .run = mr_usages},
	{.name = "mr-regions", .run = mr_regions},
	{.name = "mr-advise", .run = mr_advise},
	{.name = "conn-limits", .run = conn_limits},
	{.name = "addresses", .run = addresses},
	{.name = "srqs", .run = srqs},
};

MAIN(cases)
