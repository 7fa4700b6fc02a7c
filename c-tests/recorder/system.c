/*
 * system.c -- what is asked of the C library, see internal.h.
 */
#include "internal.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The page of a flush; other memory is mapped as it would be without us. */
static void *map(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	bool ours = recorder_watching && (flags & MAP_SHARED) && (flags & MAP_ANONYMOUS);
	void *got = MAP_FAILED;

	if (!ours || !fails("mmap"))
		got = (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
	if (ours && got != MAP_FAILED)
		add(PAGE, got);
	if (ours)
		call("mmap(%zu, protection %#x, flags %#x) = %s", size, (unsigned)protection,
				(unsigned)flags, got == MAP_FAILED ? "failed" : name(PAGE, got));
	return got;
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	return map(at, size, protection, flags, fd, offset);
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
	return map(at, size, protection, flags, fd, offset);
}

int munmap(void *at, size_t size)
{
	struct object *page = recorder_watching ? find(PAGE, at) : NULL;
	bool ours = page != NULL && page->alive;
	bool failed = ours && fails("munmap");

	if (ours)
		call("munmap(%s, %zu) = %s", name(PAGE, at), size, minus_one(failed));
	if (failed)
		return -1;
	if (ours)
		unmake(PAGE, at);
	return (int)syscall(SYS_munmap, at, size);
}

static long (*real_sysconf)(int);

long sysconf(int which)
{
	bool ours = recorder_watching && which == _SC_PAGESIZE;
	bool failed = ours && (fails("sysconf") || device_is("no-pages"));

	if (ours)
		call("sysconf(_SC_PAGESIZE) = %s", failed ? "-1" : "the size");
	return failed ? -1 : real_sysconf(which);
}

__attribute__((constructor))
static void find_sysconf(void)
{
	void *symbol = dlsym(RTLD_NEXT, "sysconf");

	memcpy(&real_sysconf, &symbol, sizeof(symbol));
}
