/*
 * trace.c -- what is written down, and what fails; see internal.h.
 */
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const kind_names[] = {
	"pd", "mr", "channel", "cq", "srq", "qp", "id", "events", "event", "info", "page",
};

struct memory {
	const char *name;
	const char *start;
	size_t size;
};

struct now now;

/* What no other file looks at. */
static struct {
	bool written; /* the call of the interface that is being made is, and may fail */
	bool broken;  /* all that can fail does */
	int api;
	struct object object[512];
	size_t objects;
	int made[KINDS];
	struct memory memory[8];
	size_t memories;
} state;

static struct recorder_trace own_trace;
struct recorder_trace *recorder_trace = &own_trace;
volatile bool recorder_watching;

/* ---- the trace ---- */

static void write_line(const char *format, va_list args)
{
	struct recorder_trace *trace = recorder_trace;
	size_t room = sizeof(trace->text) - trace->length - 1;
	int n = vsnprintf(trace->text + trace->length, room, format, args);

	if (n < 0 || (size_t)n >= room)
		abort();
	trace->length += (size_t)n;
	trace->text[trace->length++] = '\n';
}

void recorder_line(const char *format, ...)
{
	va_list args;

	if (now.quiet)
		return;
	va_start(args, format);
	write_line(format, args);
	va_end(args);
}

void call(const char *format, ...)
{
	int error = errno;
	va_list args;

	if (!state.written)
		return;
	va_start(args, format);
	write_line(format, args);
	va_end(args);
	errno = error;
}

char *room(void)
{
	static char text[32][ROOM];
	static int turn;

	return text[turn = (turn + 1) % COUNT(text)];
}

const char *error_name(int error)
{
	char *to = room();
	const char *name = strerrorname_np(error);

	if (error < 0)
		snprintf(to, ROOM, "EAI %d", error);
	else
		snprintf(to, ROOM, "%s", name != NULL && error != 0 ? name : "no errno");
	return to;
}

/* ---- the objects ---- */

struct object *find(enum kind kind, const void *at)
{
	struct object *dead = NULL;

	for (size_t i = state.objects; i-- > 0;) {
		struct object *o = &state.object[i];

		if (o->kind != kind || o->at != at)
			continue;
		if (o->alive)
			return o;
		if (dead == NULL)
			dead = o;
	}
	return dead;
}

struct object *next_alive(struct object *after)
{
	struct object *o = after == NULL ? state.object : after + 1;

	while (o < state.object + state.objects && !o->alive)
		o++;
	return o < state.object + state.objects ? o : NULL;
}

const char *name(enum kind kind, const void *at)
{
	struct object *o;
	char *to;

	if (now.quiet)
		return "";
	if (at == NULL)
		return "NULL";
	o = find(kind, at);
	to = room();
	if (o == NULL)
		snprintf(to, ROOM, "(no %s)", kind_names[kind]);
	else
		snprintf(to, ROOM, "%s%d%s", kind_names[kind], o->number, o->alive ? "" : "(gone)");
	return to;
}

int number(enum kind kind, const void *at)
{
	struct object *o = now.quiet ? NULL : find(kind, at);

	return o != NULL ? o->number : 0;
}

void add(enum kind kind, const void *at)
{
	if (now.quiet)
		return;
	if (state.objects == COUNT(state.object))
		abort();
	state.object[state.objects++] = (struct object){
		.kind = kind, .number = state.made[kind]++, .alive = true, .at = at,
	};
}

void *make(enum kind kind, size_t size)
{
	bool watching = recorder_watching;
	void *made;

	if (now.quiet)
		return calloc(1, size);
	recorder_watching = false;
	made = calloc(1, size);
	recorder_watching = watching;
	if (made == NULL)
		abort();
	add(kind, made);
	return made;
}

/* Its memory goes with it, so that whoever reads it afterwards can be told. */
void unmake(enum kind kind, void *at)
{
	struct object *o;

	if (now.quiet) {
		free(at);
		return;
	}
	o = find(kind, at);
	if (o == NULL || !o->alive)
		return;
	o->alive = false;
	if (kind != PAGE)
		free(at);
}

const char *recorder_alive(void)
{
	static char text[4096];
	size_t n = 0;

	strcpy(text, "-");
	EACH_ALIVE(o)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s%d", n ? " " : "",
				kind_names[o->kind], o->number);
	return text;
}

/* ---- memory ---- */

void recorder_memory(const char *memory_name, const void *start, size_t size)
{
	if (state.memories == COUNT(state.memory))
		abort();
	state.memory[state.memories++] = (struct memory){memory_name, start, size};
}

const char *place(const void *at)
{
	const char *to = at;
	char *text;

	if (now.quiet)
		return "";
	if (at == NULL)
		return "NULL";
	text = room();
	for (size_t i = 0; i < state.memories; i++) {
		struct memory *m = &state.memory[i];

		if (to >= m->start && to < m->start + m->size) {
			snprintf(text, ROOM, "%s+%td", m->name, to - m->start);
			return text;
		}
	}
	EACH_ALIVE(o) {
		const char *page = o->at;

		if (o->kind == PAGE && to >= page && to < page + 4096) {
			snprintf(text, ROOM, "page%d+%td", o->number, to - page);
			return text;
		}
	}
	snprintf(text, ROOM, "%p", at);
	return text;
}

const char *bytes(const void *at, size_t n)
{
	char *to;

	if (now.quiet)
		return "";
	to = room();
	to[0] = '\0';
	for (size_t i = 0; i < n && i < UINT8_MAX; i++)
		sprintf(to + 2 * i, "%02x", ((const unsigned char *)at)[i]);
	return n == 0 ? "none" : to;
}

/* ---- failing ---- */

bool fails(const char *which)
{
	struct recorder_trace *trace = recorder_trace;
	int nth = 1;

	if (!state.written)
		return false;
	for (int i = trace->points; i-- > 0 && trace->point[i].api == state.api;)
		nth += strcmp(trace->point[i].call, which) == 0;
	if (trace->points == POINTS_MAX)
		abort();
	trace->point[trace->points++] = (struct fault_point){
		.api = state.api, .nth = nth, .call = which,
	};
	if (state.broken || (now.fault.api == state.api && now.fault.nth == nth &&
			strcmp(now.fault.call, which) == 0)) {
		state.broken = now.fault.on;
		if (now.fault.error != 0)
			errno = now.fault.error < 0 ? EIO : now.fault.error;
		return true;
	}
	errno = EXDEV;
	return false;
}

const char *minus_one(bool failed)
{
	char *to;

	if (now.quiet || !failed)
		return "0";
	to = room();
	snprintf(to, ROOM, "-1 %s", error_name(errno));
	return to;
}

const char *made(enum kind kind, const void *at)
{
	char *to;

	if (now.quiet || at != NULL)
		return name(kind, at);
	to = room();
	snprintf(to, ROOM, "NULL %s", error_name(errno));
	return to;
}

bool recorder_fails(const char *which)
{
	int error = errno;
	bool failed = recorder_watching && fails(which);

	if (!failed)
		errno = error;
	return failed;
}

void recorder_begin(const char *device, const struct fault *fault)
{
	EACH_ALIVE(o)
		if (o->kind != PAGE)
			free((void *)o->at);
	memset(&now, 0, sizeof(now));
	memset(&state, 0, sizeof(state));
	forget_cq_events();
	forget_cm_events();
	recorder_change(device);
	now.quiet = device_is("quiet");
	if (fault != NULL)
		now.fault = *fault;
	recorder_trace->length = 0;
	recorder_trace->points = 0;
}

void recorder_enter(bool written)
{
	if (now.quiet)
		return;
	state.written = written;
	state.api += written;
	recorder_watching = true;
}

void recorder_leave(void)
{
	if (now.quiet)
		return;
	recorder_watching = false;
	state.written = false;
}
