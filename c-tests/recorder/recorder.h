/*
 * recorder.h -- a stand-in for libibverbs and librdmacm that writes down every call.
 *
 * A library over it gets no device, but an answer to each of its calls. What it called, with every
 * argument that means something, is a line of the trace. Objects are named in the order in which
 * they were made: pd0, cq1, ...; memory by the region that it is in.
 */
#ifndef RECORDER_H
#define RECORDER_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/*
 * One fault: the call that fails is named by the call of the library's interface that makes it
 * (1 for the first), its own name and which of that name it is there; so a fault means the same in
 * runs that make one call more or less elsewhere.
 */
struct fault {
	int api;
	char call[32];
	int nth;
	bool on;   /* and so do all that can fail from there on */
	int error; /* errno, or one of getaddrinfo's codes, which are negative */
};

/* A call that could have failed. */
struct fault_point {
	int api, nth;
	const char *call;
};

/*
 * Begins anew: no object is alive and the trace is empty. `device` is a list of words:
 *
 *   odp              pages on demand
 *   odp-write, odp-read, odp-rc
 *                    does so for writes or reads alone, or does not say so in general
 *   flush, atomic    has the native operation
 *   flush-global, flush-persistent
 *                    knows one kind of flush alone
 *   paged            registers no memory but to page it on demand
 *   volatile         registers no memory for a flush to persistence
 *   full             registers no memory at all
 *   refuse-flush, refuse-ops
 *                    the provider makes no QP with FLUSH, with any of the operations
 *   no-extension     QPs have no extended interface
 *   iwarp            is one
 *   old              is of a provider without extended functions
 *   no-advice, no-query
 *                    the table of extended functions ends before the one that advises, or queries
 *   none             there is no device behind any address
 *   no-pages         the system does not tell how long a page is
 *   quiet            nothing is written down, so that threads have nothing in common here; every
 *                    call works, and there is always another event of each kind
 */
void recorder_begin(const char *device, const struct fault *fault);

/* From here on the device is such a one. */
void recorder_change(const char *device);

/* Around each call of the interface; what is not written cannot fail either. */
void recorder_enter(bool written);
void recorder_leave(void);

/* Writes a line of the program's own. */
void recorder_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What is left of all that was made: its names, or "-". */
const char *recorder_alive(void);

/* Gives memory a name. */
void recorder_memory(const char *name, const void *start, size_t size);

/* What comes next: an event of connections, in order; */
void recorder_cm_event(enum rdma_cm_event_type event, const void *data, size_t len);
/* the event of a completion queue: the number of one, -1 for one that nobody knows; */
void recorder_cq_event(int cq);
/* the result of ibv_poll_cq. */
void recorder_poll(int result);

/* The open device, as a program finds it. */
struct ibv_context *recorder_device(void);

/* Room for the trace and the points at which a call could have failed. */
#define TRACE_MAX (1 << 18)
#define POINTS_MAX 1024

struct recorder_trace {
	size_t length;
	int points;
	struct fault_point point[POINTS_MAX];
	char text[TRACE_MAX];
};

/* Where they are written to; may be shared between processes. */
extern struct recorder_trace *recorder_trace;

static inline bool is_word_of(const char *words, const char *word)
{
	size_t n = strlen(word);

	for (const char *at = words; (at = strstr(at, word)) != NULL; at += n)
		if ((at == words || at[-1] == ' ') && (at[n] == '\0' || at[n] == ' '))
			return true;
	return false;
}

/* Whether a call that is none of the recorder's fails, and which is one that can. */
bool recorder_fails(const char *which);

/*
 * True while a call of the interface is at work and not the recorder itself. Volatile, since compilers
 * take it that malloc looks at nothing.
 */
extern volatile bool recorder_watching;

#endif
