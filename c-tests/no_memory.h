/*
 * no_memory.h -- memory that runs out at a chosen moment, for the program and every library in it:
 * a program's own malloc comes before that of the C library (it is linked with -rdynamic).
 */
#ifndef TEST_NO_MEMORY_H
#define TEST_NO_MEMORY_H

#include "common.h"

/* As the C library itself calls them. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static struct {
	bool on;
	bool only_once; /* after the one that fails there is memory again */
	int left;       /* allocations that still work */
	int failed;
} shortage;

static bool none_left(void)
{
	if (!shortage.on || shortage.left-- > 0 || (shortage.only_once && shortage.failed > 0))
		return false;
	shortage.failed++;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t size)
{
	return none_left() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return none_left() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *old, size_t size)
{
	return none_left() ? NULL : __libc_realloc(old, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
	return none_left() ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **memory, size_t alignment, size_t size)
{
	void *got = none_left() ? NULL : __libc_memalign(alignment, size);

	if (got == NULL)
		return ENOMEM;
	*memory = got;
	return 0;
}

/* What the call may say, and what it must have left alone if it says so. */
static inline bool told_well(int ret)
{
	if (ret == 0)
		return true;
	/* Which of the two depends on whose memory it is; and some of the original's functions hand on
	 * the NULL that they got. */
	return (ret == RPMA_E_NOMEM || ret == RPMA_E_PROVIDER) &&
			(out_is_kept() || *(void **)OUT == NULL);
}

/*
 * Makes the call with the first allocation failing, then the second, and so on until none of them
 * fails any more; `call` gives the library's code, and undoes what it did if that is 0.
 */
static inline void with_too_little_memory(const char *key, int (*call)(void))
{
	for (int only_once = 0; only_once <= 1; only_once++) {
		int n = 0, ret, failed;

		do {
			before();
			shortage.only_once = only_once;
			shortage.left = n++;
			shortage.failed = 0;
			ret = call();
			failed = shortage.failed;
			if (!told_well(ret))
				FAIL("%s without its allocation %d: %s, OUT %s", key, n, code_name(ret),
						hex(OUT, 16));
		} while (failed > 0 && n < 1000);
		if (ret != 0)
			FAIL("%s with all the memory: %s%s", key, code_name(ret), log_text());
		show(key, "good when %s", only_once ? "one allocation fails" :
				"there is no memory from some moment on");
	}
}

/* The call alone is short of memory, not what the test does around it. */
#define SHORT(call) (shortage.on = true, no_longer_short(call))

static inline int no_longer_short(int ret)
{
	shortage.on = false;
	return ret;
}

#endif
