/*
 * One thread makes the calls of an id, another one takes the events that these bring and destroys the
 * id at once. To be run with MALLOC_PERTURB_ set, so that an id that is used after that is seen.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s: expected %s\n", calls[now].name, #what); \
			exit(1); \
		} \
	} while (0)

static struct sockaddr_in to = {.sin_family = AF_INET};
static struct rdma_event_channel *first, *events;
static struct rdma_cm_id *id;
static sem_t go_on;

static int resolve_addr(void)
{
	return rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000);
}

static int resolve_route(void)
{
	return rdma_resolve_route(id, 1000);
}

/* With an event that nobody has taken from the channel that it leaves. */
static int migrate(void)
{
	return rdma_migrate_id(id, events);
}

static int connect_id(void)
{
	return rdma_connect(id, NULL);
}

static const struct {
	const char *name;
	int (*call)(void);
	/* What brings the id there, and what the call brings. */
	int steps;
	enum rdma_cm_event_type event;
	int rounds;
} calls[] = {
	{"rdma_resolve_addr", resolve_addr, 0, RDMA_CM_EVENT_ADDR_RESOLVED, 20000},
	{"rdma_resolve_route", resolve_route, 1, RDMA_CM_EVENT_ROUTE_RESOLVED, 20000},
	{"rdma_migrate_id", migrate, 1, RDMA_CM_EVENT_ADDR_RESOLVED, 20000},
	{"rdma_connect", connect_id, 2, RDMA_CM_EVENT_REJECTED, 500},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))
static unsigned now;

static void *take_events(void *unused)
{
	for (;;) {
		struct rdma_cm_event *event;
		struct rdma_cm_id *of;

		CHECK(rdma_get_cm_event(events, &event) == 0);
		CHECK(event->event == calls[now].event);
		of = event->id;
		/* Written before the event. */
		CHECK(of->verbs != NULL);
		CHECK(of->route.addr.dst_sin.sin_port == to.sin_port);
		CHECK((of->route.num_paths == 1) == (now == 1 || now == 3));
		CHECK(rdma_ack_cm_event(event) == 0);
		CHECK(rdma_destroy_id(of) == 0);
		sem_post(&go_on);
	}
	return unused;
}

/* Says no to all. */
static void *refuse(void *listening)
{
	for (;;) {
		struct rdma_cm_event *event;

		CHECK(rdma_get_cm_event(listening, &event) == 0);
		if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct rdma_cm_id *request = event->id;

			rdma_reject(request, NULL, 0);
			rdma_ack_cm_event(event);
			rdma_destroy_id(request);
		} else {
			rdma_ack_cm_event(event);
		}
	}
	return NULL;
}

/* Takes the event of a step that is not the one to be seen. */
static void step(int (*call)(void))
{
	struct rdma_cm_event *event;

	CHECK(call() == 0);
	CHECK(rdma_get_cm_event(first, &event) == 0);
	CHECK(rdma_ack_cm_event(event) == 0);
}

int main(void)
{
	struct rdma_event_channel *listening;
	struct rdma_cm_id *listener;
	pthread_t thread;

	/* One that hangs. */
	alarm(300);
	sem_init(&go_on, 0, 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK((first = rdma_create_event_channel()) != NULL);
	CHECK((events = rdma_create_event_channel()) != NULL);
	CHECK((listening = rdma_create_event_channel()) != NULL);
	CHECK(rdma_create_id(listening, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&to) == 0);
	CHECK(rdma_listen(listener, 0) == 0);
	to.sin_port = rdma_get_src_port(listener);
	CHECK(pthread_create(&thread, NULL, refuse, listening) == 0);
	CHECK(pthread_create(&thread, NULL, take_events, NULL) == 0);

	for (; now < CALLS; now++) {
		for (int round = 0; round < calls[now].rounds; round++) {
			CHECK(rdma_create_id(calls[now].steps ? first : events, &id, NULL, RDMA_PS_TCP) == 0);
			if (calls[now].call == migrate) {
				CHECK(resolve_addr() == 0);
			} else {
				if (calls[now].steps > 0)
					step(resolve_addr);
				if (calls[now].steps > 1)
					step(resolve_route);
				if (calls[now].steps > 0)
					CHECK(rdma_migrate_id(id, events) == 0);
			}
			CHECK(calls[now].call() == 0);
			sem_wait(&go_on);
		}
	}
	_exit(0);
}
