/* SPDX-License-Identifier: BSD-3-Clause */
/* PBS's environment, a variable a line (a node file is a file that is not there): an allocation or
 * an error that names something. */
#include "fuzz.h"

#include "alloc/alloc.h"
#include "alloc/pbs.h"

static struct env *environment(char *text)
{
	struct env *env = env_new();

	CHECK(env);
	for (char *next = text; next;) {
		char *line = strsep(&next, "\n"), *value = strchr(line, '=');
		int64_t seconds = -1;

		if (!value)
			continue;
		*value++ = '\0';
		CHECK(pbs_duration(line, value, &seconds, NULL) == 0 ? seconds >= 0
								     : seconds == -1);
		/* No file of this machine is opened for the input's sake but these two. */
		if (!strcmp(line, "PBS_NODEFILE") || !strcmp(line, "PBS_GPUFILE"))
			value = *value == '/' ? (char *)"/dev/null"
					      : (char *)"/proc/sys/kernel/ostype";
		env_set(env, line, value, ENV_FROM_USER, NULL, NULL);
	}
	return env;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct env *env = environment(text);
	struct alloc alloc = {0};
	struct error err = {0};

	if (alloc_source_pbs.present(env, NULL)) {
		if (alloc_source_pbs.read(env, NULL, &alloc, &err)) {
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
