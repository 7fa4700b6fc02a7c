/*
 * common.h -- what the examples share: saying what failed, waiting, connecting, offering memory.
 *
 * librpma has a file descriptor for everything there is to wait for. So nothing here waits for ever
 * without being asked to, and who waits for a completion also sees the connection end.
 */
#ifndef COMMON_H
#define COMMON_H

#define _DEFAULT_SOURCE /* for MAP_SYNC */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <librpma.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define TIMEOUT_MS 10000
#define FOR_EVER (-1)

/* Says what went wrong, and gives -1 to return. */
__attribute__((format(printf, 1, 2)))
static inline int fail(const char *format, ...)
{
	va_list args;

	fputs("error: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return -1;
}

/* Makes a call of the library; where it fails, says so and leaves the calling function with -1. */
#define TRY(call) \
	do { \
		int ret_ = (call); \
		if (ret_ != 0) \
			return fail("%s: %s", #call, rpma_err_2str(ret_)); \
	} while (0)

/*
 * Makes a call that releases something. What was to be released is gone even if that fails, and
 * what was never made, a NULL, is released with success: so main() releases all, whatever happened.
 */
#define RELEASE(status, call) \
	do { \
		int ret_ = (call); \
		if (ret_ != 0) \
			(status) = fail("%s: %s", #call, rpma_err_2str(ret_)); \
	} while (0)

static inline int usage(const char *program, const char *arguments)
{
	fprintf(stderr, "usage: %s %s\n", program, arguments);
	return 2;
}

/*
 * Opens the RDMA device that has the address (LOCAL) or leads to it (REMOTE). It is the first thing
 * an example does, so that it shows what the library has to say about failures, which would go to
 * syslog alone.
 */
static inline int open_peer(const char *addr, enum rpma_util_ibv_context_type type, struct rpma_peer **peer)
{
	struct ibv_context *device = NULL;

	setvbuf(stdout, NULL, _IOLBF, 0);
	TRY(rpma_log_set_threshold(RPMA_LOG_THRESHOLD_AUX, RPMA_LOG_LEVEL_WARNING));
	TRY(rpma_utils_get_ibv_context(addr, type, &device));
	TRY(rpma_peer_new(device, peer));
	return 0;
}

/* ---- waiting ---- */

static inline int wait_readable(struct pollfd *fds, nfds_t n, int timeout_ms, const char *what)
{
	int ready;

	do
		ready = poll(fds, n, timeout_ms);
	while (ready < 0 && errno == EINTR);
	if (ready < 0)
		return fail("poll: %s", strerror(errno));
	if (ready == 0)
		return fail("%s: nothing within %d ms", what, timeout_ms);
	return 0;
}

/* With O_NONBLOCK the functions that wait give RPMA_E_NO_EVENT or RPMA_E_NO_COMPLETION instead. */
static inline int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
		return fail("fcntl: %s", strerror(errno));
	return 0;
}

static inline int next_event(struct rpma_conn *conn, int timeout_ms, enum rpma_conn_event *event)
{
	struct pollfd fd = {.events = POLLIN};

	TRY(rpma_conn_get_event_fd(conn, &fd.fd));
	if (wait_readable(&fd, 1, timeout_ms, "an event of the connection") != 0)
		return -1;
	TRY(rpma_conn_next_event(conn, event));
	return 0;
}

static inline int expect_event(struct rpma_conn *conn, int timeout_ms, enum rpma_conn_event expected)
{
	enum rpma_conn_event event = RPMA_CONN_UNDEFINED;

	if (next_event(conn, timeout_ms, &event) != 0)
		return -1;
	if (event != expected)
		return fail("%s, but expected: %s", rpma_utils_conn_event_2str(event),
				rpma_utils_conn_event_2str(expected));
	return 0;
}

/*
 * Waits for the next completion: 0 if an operation succeeded, CLOSED if the other side has closed
 * the connection and all that was completed before is taken, else -1.
 */
#define CLOSED 1

static inline int next_completion(struct rpma_conn *conn, struct rpma_cq *cq, int timeout_ms, struct ibv_wc *wc)
{
	struct pollfd fds[2] = {{.events = POLLIN}, {.events = POLLIN}};
	int ret;

	TRY(rpma_cq_get_fd(cq, &fds[0].fd));
	TRY(rpma_conn_get_event_fd(conn, &fds[1].fd));
	while ((ret = rpma_cq_get_wc(cq, 1, wc, NULL)) == RPMA_E_NO_COMPLETION && fds[1].revents == 0) {
		if (wait_readable(fds, 2, timeout_ms, "a completion") != 0)
			return -1;
		/* Takes the notice and asks for the next. It can be about a completion already taken. */
		if (fds[0].revents != 0)
			TRY(rpma_cq_wait(cq));
	}
	if (ret != 0 && ret != RPMA_E_NO_COMPLETION)
		return fail("rpma_cq_get_wc: %s", rpma_err_2str(ret));
	if (ret == 0 && wc->status == IBV_WC_SUCCESS)
		return 0;
	/* What is under way when a connection ends is flushed; an event tells how it ended. */
	if (ret == 0 && wc->status != IBV_WC_WR_FLUSH_ERR)
		return fail("an operation failed: %s", ibv_wc_status_str(wc->status));
	return expect_event(conn, TIMEOUT_MS, RPMA_CONN_CLOSED) == 0 ? CLOSED : -1;
}

/* The next completion has to be the one of `context`. */
static inline int expect_completion(struct rpma_conn *conn, struct rpma_cq *cq, const void *context, struct ibv_wc *wc)
{
	switch (next_completion(conn, cq, TIMEOUT_MS, wc)) {
	case 0:
		return wc->wr_id == (uintptr_t)context ? 0 : fail("another operation completed");
	case CLOSED:
		return fail("the other side closed the connection too early");
	default:
		return -1;
	}
}

/* ---- connecting ---- */

static inline int listen_at(struct rpma_peer *peer, const char *addr, const char *port, struct rpma_ep **ep)
{
	TRY(rpma_ep_listen(peer, addr, port, ep));
	printf("listening on %s, port %s\n", addr, port);
	return 0;
}

static inline int next_request(struct rpma_ep *ep, const struct rpma_conn_cfg *cfg, struct rpma_conn_req **req)
{
	struct pollfd fd = {.events = POLLIN};

	TRY(rpma_ep_get_fd(ep, &fd.fd));
	if (wait_readable(&fd, 1, FOR_EVER, "a client") != 0)
		return -1;
	TRY(rpma_ep_next_conn_req(ep, cfg, req));
	return 0;
}

/* Accepts the request, with `size` bytes for the client unless that is 0. */
static inline int accept_request(struct rpma_conn_req **req, void *bytes, uint8_t size, struct rpma_conn **conn)
{
	struct rpma_conn_private_data data = {bytes, size};

	TRY(rpma_conn_req_connect(req, size != 0 ? &data : NULL, conn));
	return expect_event(*conn, TIMEOUT_MS, RPMA_CONN_ESTABLISHED);
}

static inline int connect_to(struct rpma_peer *peer, const char *addr, const char *port,
		const struct rpma_conn_cfg *cfg, struct rpma_conn **conn)
{
	struct rpma_conn_req *req = NULL;

	TRY(rpma_conn_req_new(peer, addr, port, cfg, &req));
	TRY(rpma_conn_req_connect(&req, NULL, conn)); /* the request is gone, also if this fails */
	return expect_event(*conn, TIMEOUT_MS, RPMA_CONN_ESTABLISHED);
}

static inline int disconnect(struct rpma_conn *conn)
{
	TRY(rpma_conn_disconnect(conn));
	return expect_event(conn, TIMEOUT_MS, RPMA_CONN_CLOSED);
}

/* Waits until the other side closes the connection, and agrees. */
static inline int wait_closed(struct rpma_conn *conn)
{
	if (expect_event(conn, FOR_EVER, RPMA_CONN_CLOSED) != 0)
		return -1;
	TRY(rpma_conn_disconnect(conn));
	return 0;
}

/* ---- memory for the other side ---- */

/* What a server tells a client when it accepts: how to reach its memory, and whether what is flushed there persists. */
struct offer {
	uint8_t memory_size;
	uint8_t memory[32];
	uint8_t peer_cfg_size;
	uint8_t peer_cfg[8];
};

static inline int make_offer(const struct rpma_mr_local *mr, bool persistent, struct offer *offer)
{
	struct rpma_peer_cfg *cfg = NULL;
	size_t memory_size = 0, cfg_size = 0;
	int status = 0;

	memset(offer, 0, sizeof(*offer));
	TRY(rpma_mr_get_descriptor_size(mr, &memory_size));
	TRY(rpma_peer_cfg_new(&cfg));
	RELEASE(status, rpma_peer_cfg_set_direct_write_to_pmem(cfg, persistent));
	RELEASE(status, rpma_peer_cfg_get_descriptor_size(cfg, &cfg_size));
	if (memory_size > sizeof(offer->memory) || cfg_size > sizeof(offer->peer_cfg)) {
		status = fail("the descriptors do not fit");
	} else {
		offer->memory_size = (uint8_t)memory_size;
		offer->peer_cfg_size = (uint8_t)cfg_size;
		RELEASE(status, rpma_mr_get_descriptor(mr, offer->memory));
		RELEASE(status, rpma_peer_cfg_get_descriptor(cfg, offer->peer_cfg));
	}
	RELEASE(status, rpma_peer_cfg_delete(&cfg));
	return status;
}

/* Takes the offer that came when the server accepted. The server's memory has to be that large. */
static inline int take_offer(struct rpma_conn *conn, size_t size, struct rpma_mr_remote **remote)
{
	struct rpma_conn_private_data data = {NULL, 0};
	struct rpma_peer_cfg *cfg = NULL;
	size_t has = 0;
	struct offer offer;
	int status = 0;

	TRY(rpma_conn_get_private_data(conn, &data));
	/* It may be longer than what was sent: devices fill up with zeros. */
	if (data.len < sizeof(offer))
		return fail("the server offers nothing");
	memcpy(&offer, data.ptr, sizeof(offer));
	if (offer.memory_size == 0 || offer.peer_cfg_size == 0)
		return fail("the server offers nothing");
	if (offer.memory_size > sizeof(offer.memory) || offer.peer_cfg_size > sizeof(offer.peer_cfg))
		return fail("the server's offer makes no sense");

	TRY(rpma_peer_cfg_from_descriptor(offer.peer_cfg, offer.peer_cfg_size, &cfg));
	RELEASE(status, rpma_conn_apply_remote_peer_cfg(conn, cfg));
	RELEASE(status, rpma_peer_cfg_delete(&cfg));
	if (status != 0)
		return status;
	TRY(rpma_mr_remote_from_descriptor(offer.memory, offer.memory_size, remote));
	TRY(rpma_mr_remote_get_size(*remote, &has));
	if (has < size)
		return fail("the server's memory has %zu bytes, too few", has);
	return 0;
}

/*
 * Maps a device-DAX, or a file, which is made if there is none. `size` is a multiple of 2 MiB, as
 * device-DAX is mapped in such pieces.
 *
 * Only DAX is persistent memory for every RDMA device. Any other file is in the page cache, and
 * nobody but softverbs writes it to the disk when a client flushes.
 */
static inline int map_pmem(const char *path, size_t size, void **memory)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	bool dax = true;
	struct stat info;
	int error = 0;

	if (fd < 0)
		return fail("open %s: %s", path, strerror(errno));
	/* The space is there from now on, so that no write runs out of it. */
	if (fstat(fd, &info) != 0)
		error = errno;
	else if (S_ISREG(info.st_mode) && (size_t)info.st_size < size)
		error = posix_fallocate(fd, 0, (off_t)size);
	if (error == 0) {
		*memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
		if (*memory == MAP_FAILED && errno == EOPNOTSUPP) {
			dax = false;
			*memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		}
		if (*memory == MAP_FAILED) {
			error = errno;
			*memory = NULL;
		}
	}
	close(fd); /* the mapping stays */
	if (error != 0)
		return fail("%s: %s", path, strerror(error));
	printf("mapped %s%s\n", path, dax ? "" : ", which is no DAX: persistent over softverbs only");
	return 0;
}

#endif
