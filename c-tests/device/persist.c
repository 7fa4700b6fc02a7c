/*
 * persist.c -- what was flushed to persistent memory is there after a power cut.
 *
 *   persist write ADDR PMEM SEED   writes a pattern to PMEM over the device with address ADDR, flushes
 *                                  it, prints VM-HARD-OFF and waits to be switched off
 *   persist check PMEM SEED        0: the pattern of SEED is in PMEM; 1: it is not
 *
 * PMEM is a device-DAX file (/dev/dax0.0). `write` is two processes: the server maps and registers
 * PMEM and does nothing else with it; the client never sees it but through the device. Neither
 * unmaps, flushes or closes anything after the flush that is tested. A full run:
 *
 *   persist check /dev/dax0.0 42               says `pattern: missing`
 *   persist write 10.77.0.1 /dev/dax0.0 42     the machine is killed at VM-HARD-OFF
 *   persist check /dev/dax0.0 42               after a reboot, says `pattern: found`
 *
 * In a virtual machine this shows that the bytes went to the persistent memory itself, past every
 * process and the kernel; processor caches, which a flush empties too, are not there to be lost.
 */
#include "device.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define MAP_SIZE ((size_t)4 << 20)      /* what is mapped; a multiple of the DAX device's alignment */
#define START 4096                      /* the pattern's place in it */
#define LENGTH (((size_t)1 << 20) + 13) /* no multiple of anything */
#define LAST_BREATH_S 600

/* What the server tells the client about its memory, as private data of the connection. */
struct offer {
	unsigned char memory[DESC_SIZE];
	unsigned char peer_cfg[1];
};

static void *map_pmem(const char *path, int prot)
{
	int fd = open(path, prot & PROT_WRITE ? O_RDWR : O_RDONLY);
	void *mem;

	if (fd < 0)
		FAIL("open %s: %s", path, strerror(errno));
	mem = mmap(NULL, MAP_SIZE, prot, MAP_SHARED, fd, 0);
	if (mem == MAP_FAILED)
		FAIL("mmap %s: %s", path, strerror(errno));
	close(fd);
	return mem;
}

static void fill(unsigned char *mem, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;

	for (size_t i = 0; i < LENGTH; i++) {
		x = x * 6364136223846793005 + 1442695040888963407;
		mem[i] = (unsigned char)(x >> 56);
	}
}

static unsigned char *pattern(const char *seed)
{
	unsigned char *mem = aligned_alloc(4096, (LENGTH + 4095) & ~(size_t)4095);

	if (mem == NULL)
		FAIL("no memory");
	fill(mem, strtoull(seed, NULL, 0));
	return mem;
}

static void serve(const char *pmem, int tell)
{
	struct rpma_peer_cfg *cfg = NULL;
	struct rpma_mr_local *mr = NULL;
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;
	struct offer offer;
	struct rpma_conn_private_data data = {&offer, sizeof(offer)};
	size_t size = 0;
	struct rpma_ep *ep;

	open_peer();
	MUST(rpma_mr_reg(peer, map_pmem(pmem, PROT_READ | PROT_WRITE), MAP_SIZE,
			RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &mr));
	MUST(rpma_mr_get_descriptor_size(mr, &size));
	if (size != sizeof(offer.memory))
		FAIL("a memory descriptor of %zu bytes", size);
	MUST(rpma_mr_get_descriptor(mr, offer.memory));
	MUST(rpma_peer_cfg_new(&cfg));
	MUST(rpma_peer_cfg_set_direct_write_to_pmem(cfg, true));
	MUST(rpma_peer_cfg_get_descriptor_size(cfg, &size));
	if (size != sizeof(offer.peer_cfg))
		FAIL("a peer configuration descriptor of %zu bytes", size);
	MUST(rpma_peer_cfg_get_descriptor(cfg, offer.peer_cfg));

	ep = listen_somewhere();
	if (write(tell, port, strlen(port)) != (ssize_t)strlen(port))
		FAIL("write: %s", strerror(errno));
	close(tell);
	req = next_req(ep, NULL);
	MUST(rpma_conn_req_connect(&req, &data, &conn));
	expect_event(conn, RPMA_CONN_ESTABLISHED);
	for (;;)
		pause();
}

static void write_and_flush(const char *seed)
{
	struct rpma_peer_cfg *cfg = NULL;
	struct rpma_mr_local *mr = NULL;
	struct rpma_mr_remote *remote = NULL;
	struct rpma_conn_req *req = NULL;
	struct rpma_conn *conn = NULL;
	struct rpma_conn_private_data data;
	struct rpma_cq *cq = NULL;
	const struct offer *offer;
	struct ibv_wc wc;

	open_peer();
	MUST(rpma_mr_reg(peer, pattern(seed), LENGTH, RPMA_MR_USAGE_WRITE_SRC, &mr));
	MUST(rpma_conn_req_new(peer, addr, port, NULL, &req));
	MUST(rpma_conn_req_connect(&req, NULL, &conn));
	expect_event(conn, RPMA_CONN_ESTABLISHED);
	MUST(rpma_conn_get_private_data(conn, &data));
	if (data.len < sizeof(*offer))
		FAIL("%d bytes of private data", data.len);
	offer = data.ptr;
	MUST(rpma_mr_remote_from_descriptor(offer->memory, sizeof(offer->memory), &remote));
	MUST(rpma_peer_cfg_from_descriptor(offer->peer_cfg, sizeof(offer->peer_cfg), &cfg));
	MUST(rpma_conn_apply_remote_peer_cfg(conn, cfg));
	MUST(rpma_conn_get_cq(conn, &cq));

	MUST(rpma_write(conn, remote, START, mr, 0, LENGTH, ON_ERROR, NULL));
	MUST(rpma_flush(conn, remote, START, LENGTH, PERSISTENT, ALWAYS, OP_CONTEXT));
	if (!wait_wc_in(cq, &wc, WAIT_MS))
		FAIL("the flush does not complete");
	show_wc("flush", conn, &wc);
	if (wc.status != IBV_WC_SUCCESS || wc.wr_id != (uintptr_t)OP_CONTEXT)
		FAIL("the flush failed");
}

static int cmd_write(const char *pmem, const char *seed)
{
	static char number[8];
	int tell[2];
	pid_t server;
	ssize_t n;

	if (pipe(tell) != 0 || (server = fork()) < 0)
		FAIL("%s", strerror(errno));
	alarm(LAST_BREATH_S);
	if (server == 0) {
		alarm(LAST_BREATH_S);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(tell[0]);
		serve(pmem, tell[1]);
	}
	close(tell[1]);
	n = read(tell[0], number, sizeof(number) - 1);
	if (n <= 0)
		FAIL("the server did not start");
	port = number;
	write_and_flush(seed);
	puts("VM-HARD-OFF");
	for (;;)
		pause();
}

static int cmd_check(const char *pmem, const char *seed)
{
	const unsigned char *found = (unsigned char *)map_pmem(pmem, PROT_READ) + START;
	const unsigned char *expected = pattern(seed);
	size_t differ = 0, first = 0;

	for (size_t i = LENGTH; i-- > 0;) {
		if (found[i] != expected[i]) {
			differ++;
			first = i;
		}
	}
	if (differ == 0)
		show("pattern", "found");
	else
		show("pattern", "missing: %zu of %zu bytes differ, the first at %zu", differ, LENGTH, first);
	return differ != 0;
}

int main(int argc, char *argv[])
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	rpma_log_set_threshold(RPMA_LOG_THRESHOLD, RPMA_LOG_LEVEL_DEBUG);
	rpma_log_set_function(log_capture);
	if (argc == 5 && strcmp(argv[1], "write") == 0) {
		addr = argv[2];
		return cmd_write(argv[3], argv[4]);
	}
	if (argc == 4 && strcmp(argv[1], "check") == 0)
		return cmd_check(argv[2], argv[3]);
	fprintf(stderr, "usage: %s write ADDR PMEM SEED | check PMEM SEED\n", argv[0]);
	return 2;
}
