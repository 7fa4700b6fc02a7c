/*
 * log_server.c -- a replica of the log: offers its persistent memory to one writer at a time.
 *
 *   log_server ADDR PORT PMEM [new]
 *
 * PMEM is a device-DAX (/dev/dax0.0), a file on a DAX file system or, over softverbs, any file. `new`
 * makes a log of whatever is in it; never say so of a replica that has been in use.
 *
 * The replica's processor never writes to the log. So there is nothing to tidy up before it ends, and
 * nothing to repair when it starts: it may be killed, or lose power, at any time.
 */
#include "log.h"

#define PMEM_SIZE ((size_t)2 << 20) /* of which the log takes a part */

struct server {
	void *memory;
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_ep *ep;
	struct rpma_conn *writer;
};

static int look_at_log(struct log *log, bool new)
{
	uint64_t last_epoch, at = 0;
	struct record record;
	int count = 0;

	/* The first writer that comes makes the rest of it, and makes it persistent. */
	if (new)
		memset(log->magic, 0, sizeof(log->magic));
	if (is_new(log)) {
		printf("a new log\n");
		return 0;
	}
	if (!check_log(log, &last_epoch))
		return fail("there is no log in this memory, or a damaged one");
	while (next_record(log, &at, &record) != NULL)
		count += record.length != 0;
	printf("%d records, epoch %" PRIu64 "\n", count, log->epoch);
	return 0;
}

/*
 * The newest writer is the writer. The one before, if it is still there, is cut off first: from then on
 * nothing of it gets here. If it lives, it learns from this that its time may be over.
 */
static int change_writer(struct server *s, struct offer *offer)
{
	struct rpma_conn_private_data data = {offer, sizeof(*offer)};
	struct rpma_conn_req *req = NULL;
	int ret = rpma_ep_next_conn_req(s->ep, NULL, &req);

	if (ret == RPMA_E_NO_EVENT)
		return 0;
	if (ret != 0) {
		fail("rpma_ep_next_conn_req: %s", rpma_err_2str(ret));
		return 0; /* that one was rejected; another may come */
	}
	ret = rpma_conn_delete(&s->writer);
	if (ret != 0) {
		/* Then it may not be cut off. */
		fail("rpma_conn_delete: %s", rpma_err_2str(ret));
		TRY(rpma_conn_req_delete(&req));
		return -1;
	}
	ret = rpma_conn_req_connect(&req, &data, &s->writer);
	if (ret != 0)
		fail("rpma_conn_req_connect: %s", rpma_err_2str(ret));
	return 0;
}

static int look_at_writer(struct server *s)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;
	int ret = rpma_conn_next_event(s->writer, &event);

	if (ret != 0)
		fail("rpma_conn_next_event: %s", rpma_err_2str(ret));
	else
		printf("writer: %s\n", rpma_utils_conn_event_2str(event));
	if (ret != 0 || event != RPMA_CONN_ESTABLISHED)
		TRY(rpma_conn_delete(&s->writer));
	return 0;
}

static int serve(struct server *s, const char *addr, const char *port, const char *pmem, bool new)
{
	struct pollfd fds[2] = {{.events = POLLIN}, {.events = POLLIN}};
	struct offer offer;

	if (open_peer(addr, RPMA_UTIL_IBV_CONTEXT_LOCAL, &s->peer) != 0 ||
			map_pmem(pmem, PMEM_SIZE, &s->memory) != 0 || look_at_log(s->memory, new) != 0)
		return -1;
	TRY(rpma_mr_reg(s->peer, s->memory, sizeof(struct log), RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
			RPMA_MR_USAGE_FLUSH_TYPE_PERSISTENT, &s->mr));
	if (make_offer(s->mr, true, &offer) != 0 || listen_at(s->peer, addr, port, &s->ep) != 0)
		return -1;
	TRY(rpma_ep_get_fd(s->ep, &fds[0].fd));
	if (set_nonblocking(fds[0].fd) != 0)
		return -1;
	for (;;) {
		fds[1].fd = -1; /* poll() passes over it */
		if (s->writer != NULL)
			TRY(rpma_conn_get_event_fd(s->writer, &fds[1].fd));
		if (wait_readable(fds, 2, FOR_EVER, "a writer") != 0)
			return -1;
		if (fds[0].revents != 0) {
			if (change_writer(s, &offer) != 0)
				return -1;
		} else if (look_at_writer(s) != 0) {
			return -1;
		}
	}
}

int main(int argc, char *argv[])
{
	struct server s = {0};
	int status;

	if (argc != 4 && (argc != 5 || strcmp(argv[4], "new") != 0))
		return usage(argv[0], "ADDR PORT PMEM [new]");
	status = serve(&s, argv[1], argv[2], argv[3], argc == 5);
	RELEASE(status, rpma_conn_delete(&s.writer));
	RELEASE(status, rpma_ep_shutdown(&s.ep));
	RELEASE(status, rpma_mr_dereg(&s.mr));
	if (s.memory != NULL && munmap(s.memory, PMEM_SIZE) != 0)
		status = fail("munmap: %s", strerror(errno));
	RELEASE(status, rpma_peer_delete(&s.peer));
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
