/*
 * internal.h -- what the recorder's own files share; recorder.h is for programs.
 *
 *   trace.c    what is written down: the trace, the objects, the memory; and what fails
 *   system.c   what is asked of the C library
 *   verbs.c    the device and libibverbs
 *   cm.c       librdmacm
 */
#ifndef RECORDER_INTERNAL_H
#define RECORDER_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "recorder.h"

#include <errno.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* No library over the recorder can see this. */
#pragma GCC visibility push(hidden)

/* The case that runs, see recorder_begin(). */
extern struct now {
	char device[128];
	struct fault fault;
	bool quiet;
} now;

static inline bool device_is(const char *word)
{
	return is_word_of(now.device, word);
}

/* Writes down a call that was made; errno stays as it is. */
__attribute__((format(printf, 1, 2)))
void call(const char *format, ...);

/* Room for a text in such a line, which lasts until the line is written. */
#define ROOM (2 * UINT8_MAX + 1)
char *room(void);

const char *error_name(int error);
const char *place(const void *at); /* an address in the words of the program */
const char *bytes(const void *at, size_t n);

/* ---- the objects ---- */

enum kind { PD, MR, CHANNEL, CQ, SRQ, QP, ID, EVENTS, EVENT, INFO, PAGE, KINDS };

struct object {
	enum kind kind;
	int number;
	bool alive;
	const void *at;
};

/* The one of this kind there, alive or the last that was. */
struct object *find(enum kind kind, const void *at);

/* The first that is alive, or the next one. */
struct object *next_alive(struct object *after);
#define EACH_ALIVE(o) for (struct object *o = NULL; (o = next_alive(o)) != NULL;)

const char *name(enum kind kind, const void *at);
int number(enum kind kind, const void *at);

void add(enum kind kind, const void *at);
void *make(enum kind kind, size_t size);
void unmake(enum kind kind, void *at);

/* ---- failing ---- */

/*
 * Whether the call that is being made fails; then with the errno of the fault, which is left alone if
 * that is 0. After a call that works errno means nothing.
 */
bool fails(const char *which);

/* A call that makes an object of a kind and a type. */
#define MAKE(kind, type, which) (fails(which) ? NULL : (type *)make(kind, sizeof(type)))

/* The value of a call that gives an object, or NULL and sets errno. */
const char *made(enum kind kind, const void *at);

/* The value of a call that gives 0, or -1 and sets errno. */
const char *minus_one(bool failed);

/* ---- what one file needs of another ---- */

/* Nothing that was to come next comes any more. */
void forget_cq_events(void);
void forget_cm_events(void);

/* NULL if the device makes no such QP. */
struct ibv_qp *make_qp(struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr);

#pragma GCC visibility pop

#endif
