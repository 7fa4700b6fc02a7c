/*
 * Cancels threads that wait for events, one getter after the other, and goes on with what they
 * waited at.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s: expected %s\n", waits[now].name, #what); \
			exit(1); \
		} \
	} while (0)

static struct rdma_event_channel *channel;
static struct rdma_cm_id *id, *listener;
static struct ibv_comp_channel *completions;

static void for_connections(void)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(channel, &event);
}

static void for_completions(void)
{
	struct ibv_cq *cq;
	void *context;

	ibv_get_cq_event(completions, &cq, &context);
}

static void for_the_device(void)
{
	struct ibv_async_event event;

	ibv_get_async_event(id->verbs, &event);
}

static void for_requests(void)
{
	struct rdma_cm_id *request;

	rdma_get_request(listener, &request);
}

static const struct {
	const char *name;
	void (*wait)(void);
} waits[] = {
	{"rdma_get_cm_event", for_connections},
	{"ibv_get_cq_event", for_completions},
	{"ibv_get_async_event", for_the_device},
	{"rdma_get_request", for_requests},
};
static unsigned now;
static int cleaned;

static void clean(void *unused)
{
	(void)unused;
	cleaned = 1;
}

static void *wait_for_nothing(void *unused)
{
	pthread_cleanup_push(clean, NULL);
	waits[now].wait();
	pthread_cleanup_pop(0);
	return unused;
}

int main(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct rdma_cm_event *event;
	struct ibv_cq *cq, *found;
	void *context;

	/* One that hangs. */
	alarm(300);
	CHECK((channel = rdma_create_event_channel()) != NULL);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&address) == 0);
	CHECK((completions = ibv_create_comp_channel(id->verbs)) != NULL);
	CHECK((cq = ibv_create_cq(id->verbs, 1, NULL, completions, 0)) != NULL);
	CHECK(rdma_create_id(NULL, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	CHECK(rdma_listen(listener, 1) == 0);

	for (; now < sizeof(waits) / sizeof(waits[0]); now++) {
		/* Before it waits, or while it does: whichever comes first. */
		for (int round = 0; round < 20; round++) {
			struct timespec pause = {.tv_nsec = round * 100000};
			pthread_t thread;
			void *result;

			cleaned = 0;
			CHECK(pthread_create(&thread, NULL, wait_for_nothing, NULL) == 0);
			nanosleep(&pause, NULL);
			CHECK(pthread_cancel(thread) == 0);
			CHECK(pthread_join(thread, &result) == 0);
			CHECK(result == PTHREAD_CANCELED);
			CHECK(cleaned);
		}
	}
	now = 0;
	address.sin_port = rdma_get_src_port(listener);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_ack_cm_event(event) == 0);
	now = 1;
	CHECK(fcntl(completions->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(completions, &found, &context) == -1 && errno == EAGAIN);
	CHECK(ibv_destroy_cq(cq) == 0);
	return 0;
}
