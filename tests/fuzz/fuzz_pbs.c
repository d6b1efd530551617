/* SPDX-License-Identifier: BSD-3-Clause */
/* PBS's environment, one variable per line (its node file is missing): the result is an allocation
 * or an error with a message. */
#include "fuzz_env.h"

#include "alloc/alloc.h"
#include "alloc/pbs.h"

static char *visit(const char *name, char *value)
{
	int64_t seconds = -1;

	CHECK(pbs_duration(name, value, &seconds, NULL) == 0 ? seconds >= 0 : seconds == -1);
	/* The input must not make it open any file of this machine except these two. */
	if (!strcmp(name, "PBS_NODEFILE") || !strcmp(name, "PBS_GPUFILE"))
		return *value == '/' ? (char *)"/dev/null" : (char *)"/proc/sys/kernel/ostype";
	return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct env *env = fuzz_env(text, visit);
	struct alloc alloc = {0};
	struct error err = {0};

	if (alloc_source_pbs.present(env, NULL)) {
		if (alloc_read_from(&alloc_source_pbs, env, NULL, &alloc, &err)) {
			CHECK((err.code == ERR_DATA || err.code == ERR_INPUT) && *err.text &&
			      !alloc.nodes);
		} else {
			CHECK(alloc.node_count == 1); /* "Linux" */
			CHECK(alloc.this_node >= -1 && alloc.this_node < 1);
			CHECK(alloc.nodes[0].gpus >= -1);
		}
	}
	alloc_free(&alloc);
	env_free(env);
	free(text);
	return 0;
}
