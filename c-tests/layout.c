/* Asserts each of facts.h, a list of FACT(C expression, what Rust takes it to be). */
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdio.h>

static const struct {
	const char *expression;
	unsigned long long c, rust;
} facts[] = {
#define FACT(expression, rust) {#expression, (unsigned long long)(expression), rust},
#include "facts.h"
};

int main(void)
{
	size_t count = sizeof facts / sizeof facts[0], wrong = 0;
	for (size_t i = 0; i < count; i++) {
		if (facts[i].c == facts[i].rust)
			continue;
		printf("%s is %llu, but in Rust %llu\n", facts[i].expression, facts[i].c, facts[i].rust);
		wrong++;
	}
	if (wrong)
		return 1;
	printf("%zu facts hold\n", count);
	return 0;
}
