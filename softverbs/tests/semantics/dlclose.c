/* Loads the library, listens and connects with it, and closes it with all of that open; twice. */

#include <dlfcn.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "round %d: expected %s\n", round, #what); \
			exit(1); \
		} \
	} while (0)

/* A function of the library, by its declaration. */
#define LOAD(name) \
	__typeof__(name) *do_##name; \
	*(void **)&do_##name = dlsym(library, #name); \
	CHECK(do_##name != NULL)

int main(int argc, char *argv[])
{
	if (argc != 2)
		return 2;
	/* One that hangs. */
	alarm(300);
	for (int round = 0; round < 3; round++) {
		void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		CHECK(library != NULL);
		LOAD(rdma_create_event_channel);
		LOAD(rdma_create_id);
		LOAD(rdma_bind_addr);
		LOAD(rdma_listen);
		LOAD(rdma_resolve_addr);
		LOAD(rdma_resolve_route);
		LOAD(rdma_connect);
		LOAD(rdma_create_qp);
		LOAD(rdma_get_cm_event);
		LOAD(rdma_ack_cm_event);
		LOAD(rdma_get_src_port);

		struct rdma_event_channel *channel = do_rdma_create_event_channel();
		CHECK(channel != NULL);
		struct rdma_cm_id *listener, *client;
		CHECK(do_rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
		CHECK(do_rdma_create_id(channel, &client, NULL, RDMA_PS_TCP) == 0);
		struct sockaddr_in address = {
			.sin_family = AF_INET,
			.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		};
		CHECK(do_rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
		CHECK(do_rdma_listen(listener, 0) == 0);
		address.sin_port = do_rdma_get_src_port(listener);
		CHECK(do_rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 1000) == 0);
		struct rdma_cm_event *event;
		CHECK(do_rdma_get_cm_event(channel, &event) == 0);
		CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(do_rdma_ack_cm_event(event) == 0);
		CHECK(do_rdma_resolve_route(client, 1000) == 0);
		CHECK(do_rdma_get_cm_event(channel, &event) == 0);
		CHECK(do_rdma_ack_cm_event(event) == 0);
		struct ibv_qp_init_attr attr = {
			.cap = {1, 1, 1, 1, 0},
			.qp_type = IBV_QPT_RC,
		};
		CHECK(do_rdma_create_qp(client, NULL, &attr) == 0);
		CHECK(do_rdma_connect(client, NULL) == 0);
		CHECK(do_rdma_get_cm_event(channel, &event) == 0);
		CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(do_rdma_ack_cm_event(event) == 0);

		/* The thread that makes progress has something to do after this. */
		CHECK(dlclose(library) == 0);
		usleep(50000);
	}
	return 0;
}
