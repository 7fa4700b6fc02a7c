/*
 * Loads and unloads the library named by the argument a thousand times. Mappings, descriptors and
 * heap must be after the last as they were after 300 times, by when the loader itself has settled.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <librpma.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct state {
	size_t heap;
	int descriptors;
	int mappings;
};

static struct state look(void)
{
	struct state state = {.heap = mallinfo2().uordblks};
	static char text[65536];
	int fd = open("/proc/self/maps", O_RDONLY);
	for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
		for (char *at = text; (at = memchr(at, '\n', text + n - at)) != NULL; at++)
			state.mappings++;
	close(fd);
	for (fd = 0; fd < 1024; fd++)
		state.descriptors += fcntl(fd, F_GETFD) != -1;
	return state;
}

static int fail(const char *what)
{
	const char *why = dlerror();
	fprintf(stderr, "%s: %s\n", what, why ? why : "?");
	return 1;
}

/* Loads the library, makes it allocate, fail and log, and unloads it. */
static int use(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return fail("dlopen");
#define FUNCTION(name) __typeof__(name) *name##_; *(void **)&name##_ = dlsym(library, #name)
	FUNCTION(rpma_conn_cfg_new);
	FUNCTION(rpma_conn_cfg_delete);
	FUNCTION(rpma_peer_cfg_from_descriptor);
	FUNCTION(rpma_utils_get_ibv_context);
	if (!rpma_conn_cfg_new_ || !rpma_conn_cfg_delete_ || !rpma_peer_cfg_from_descriptor_ ||
	    !rpma_utils_get_ibv_context_)
		return fail("dlsym");

	struct rpma_conn_cfg *cfg;
	struct rpma_peer_cfg *pcfg;
	struct ibv_context *context;
	if (rpma_conn_cfg_new_(&cfg) || rpma_conn_cfg_delete_(&cfg) ||
	    rpma_peer_cfg_from_descriptor_("", 0, &pcfg) != RPMA_E_INVAL ||
	    !rpma_utils_get_ibv_context_("nowhere", RPMA_UTIL_IBV_CONTEXT_LOCAL, &context))
		return fail("unexpected result");

	if (dlclose(library))
		return fail("dlclose");
	if (dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL)
		return fail("still loaded after dlclose");
	dlerror();
	return 0;
}

int main(int argc, char **argv)
{
	struct state early = {0}, late;
	int times;
	if (argc != 2)
		return 2;
	for (times = 0; times < 1000; times++) {
		if (times == 300)
			early = look();
		if (use(argv[1]))
			return 1;
	}
	late = look();
	if (late.heap != early.heap || late.descriptors != early.descriptors ||
	    late.mappings != early.mappings) {
		fprintf(stderr, "heap %zu -> %zu, descriptors %d -> %d, mappings %d -> %d\n", early.heap,
			late.heap, early.descriptors, late.descriptors, early.mappings, late.mappings);
		return 1;
	}
	printf("%d times\n", times);
	return 0;
}
