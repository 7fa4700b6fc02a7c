/* Refers to every function of the library, and tells which file has them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <librpma.h>
#include <stdio.h>

#include "functions.h"

typedef void (*function)(void);

#define POINTER(name) (function)(name),
static function const functions[] = {FUNCTIONS(POINTER)};

int main(void)
{
	size_t count = sizeof functions / sizeof functions[0];
	const char *file = NULL;
	for (size_t i = 0; i < count; i++) {
		Dl_info info;
		void *address;
		*(function *)&address = functions[i];
		if (!dladdr(address, &info))
			return 1;
		if (file != NULL && file != info.dli_fname) {
			fprintf(stderr, "%s has %s\n", info.dli_fname, info.dli_sname);
			return 1;
		}
		file = info.dli_fname;
	}
	printf("%s\n%zu functions\n", file, count);

	struct rpma_conn_cfg *cfg;
	int timeout;
	if (rpma_conn_cfg_new(&cfg) || rpma_conn_cfg_get_timeout(cfg, &timeout) ||
	    rpma_conn_cfg_delete(&cfg))
		return 1;
	printf("timeout %d\n%s\n", timeout, rpma_err_2str(RPMA_E_NOMEM));
	return 0;
}
