/*
 * memory.c -- memory that runs out at a chosen moment, and what was not given back.
 *
 * Linked into a program of scenarios, it comes before the C library's functions of these names.
 * What a library asks for within a call of the interface can fail as `malloc`.
 */
#define _GNU_SOURCE
#include "recorder.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>

/*
 * The C library's function of the same name as this one, or what valgrind puts in its place. To look
 * it up takes no memory.
 */
#define REAL(function) \
	static __typeof__(function) *real; \
	if (real == NULL) { \
		void *symbol_ = dlsym(RTLD_NEXT, #function); \
		memcpy(&real, &symbol_, sizeof(real)); \
	}

static void *taken[256];

unsigned memory_in_use(void);
unsigned memory_in_use(void)
{
	unsigned n = 0;

	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
		n += taken[i] != NULL;
	return n;
}

static void replace(void *old, void *new)
{
	for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
		if (taken[i] == old) {
			taken[i] = new;
			return;
		}
	}
	if (old == NULL)
		abort();
}

static bool none_left(void)
{
	bool none = recorder_fails("malloc");

	if (none)
		errno = ENOMEM;
	return none;
}

static void *took(void *memory)
{
	if (memory != NULL && recorder_watching)
		replace(NULL, memory);
	return memory;
}

void *malloc(size_t size)
{
	REAL(malloc)

	return none_left() ? NULL : took(real(size));
}

void *calloc(size_t n, size_t size)
{
	REAL(calloc)

	return none_left() ? NULL : took(real(n, size));
}

void *realloc(void *old, size_t size)
{
	REAL(realloc)
	void *new = none_left() ? NULL : real(old, size);

	if (new != NULL && old != NULL)
		replace(old, new);
	return old == NULL ? took(new) : new;
}

void *aligned_alloc(size_t alignment, size_t size)
{
	REAL(aligned_alloc)

	return none_left() ? NULL : took(real(alignment, size));
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	void *got = aligned_alloc(alignment, size);

	if (got == NULL)
		return ENOMEM;
	*memory = got;
	return 0;
}

void free(void *memory)
{
	REAL(free)

	if (memory != NULL)
		replace(memory, NULL);
	real(memory);
}
