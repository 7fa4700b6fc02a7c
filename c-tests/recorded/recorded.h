/*
 * recorded.h -- scenarios over the recording stack.
 *
 * A scenario is a function that goes through a part of the interface, for one device and one
 * configuration of connections. What it prints is compared between libraries (tests/recorded.rs):
 * as it is, and with every call below that can fail failing.
 */
#ifndef RECORDED_H
#define RECORDED_H

#include "../common.h"
#include "../recorder/recorder.h"

/* No library below is to find these names in the program. */
#pragma GCC visibility push(hidden)

struct scenario {
	const char *name;
	void (*run)(void);
	const char *device; /* words for recorder_begin() */
	const char *cfg;    /* words for have_cfg() */
	bool clean;         /* without faults */
};

/* The table of them, with an empty one at the end; and what is in it, file by file. */
extern const struct scenario scenarios[];

typedef void run_function(void);
run_function utils, objects, peer, mr, usages, srq;
run_function ep, other_events, incoming, accepted, accepted_plain, outgoing, requested, accept_much,
		request_much, bad_connects, events, waiting;
run_function ops, bad_ops, values, flushes;
run_function announcements, levels;
run_function no_device_to_request, no_device_to_accept, long_ops, end_flushes, unknown_flushes,
		advice_on_nothing;

/* The one that runs. */
extern const struct scenario *scenario;

/* What there is of everything while a scenario runs. */
extern struct in {
	struct ibv_context *context;
	struct rpma_peer *peer;
	struct rpma_mr_local *mr;
	struct rpma_mr_remote *remote;
	struct rpma_srq_cfg *srq_cfg;
	struct rpma_srq *srq;
	struct rpma_conn_cfg *cfg;
	struct rpma_peer_cfg *peer_cfg;
	struct rpma_ep *ep;
	struct rpma_conn_req *req;
	struct rpma_conn *conn;
	struct rpma_cq *cq, *rcq;
} in;

/* Memory that the scenarios register. */
extern unsigned char memory[8192];

/* ---- calls ---- */

/* A call that is written down and may fail; its code. */
#define CALL(call) (enter(true), leave(#call, (call)))

/* One that a scenario needs and that is another's to look at; whether it worked. */
#define NEED(call) (enter(false), needed(#call, (call)))

void enter(bool written);
int leave(const char *call, int ret);
bool needed(const char *call, int ret);

/* What a call gave. */
#define GAVE(type) (*(type *)OUT)

/* Takes what a call gave as this handle; true. */
bool take(void *handle);

/* A call that gives one value, which is shown. */
#define GET(function, object, format, type) \
	do { \
		if (CALL(function(object, OUT)) == 0) \
			recorder_line("    " format, GAVE(type)); \
	} while (0)

/* The same call without an object and without a place for what it gives. */
#define WITHOUT(function, object) \
	do { \
		CALL(function(NULL, OUT)); \
		CALL(function(object, NULL)); \
	} while (0)

/* A call that ends an object: what it makes of the handle is written too. */
#define END(function, handle) \
	do { \
		CALL(function(&(handle))); \
		recorder_line("    handle %s", (handle) == NULL ? "NULL" : "kept"); \
	} while (0)

/* So, then with nothing in the handle, and without one. */
#define END_ALWAYS(function, handle) \
	do { \
		END(function, handle); \
		END(function, handle); \
		CALL(function(NULL)); \
	} while (0)

/* ---- what many scenarios begin and end with ---- */

#define USAGE_ALL 0xff

bool have_peer(void);
bool have_mr(void);
bool have_remote(unsigned usage); /* memory of the other side, for these usages; and elsewhere */
bool have_remote_at(uint64_t addr, uint64_t size, unsigned usage);
bool have_srq(bool with_rcq);
bool have_cfg(void);
bool have_ep(void);
bool have_conn(void);             /* established, asked for by this side */

/* Ends what there is still, so that what stays alive is what was lost. */
void end_all(void);

/* ---- what several look at ---- */

/* Tells the connection whether the other side has direct write to persistent memory. */
bool told(bool direct_write);

void cq_of(struct rpma_cq *cq, const char *name);

#pragma GCC visibility pop

#endif
