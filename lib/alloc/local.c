/* SPDX-License-Identifier: BSD-3-Clause */
/* Source "local": no scheduler, this machine alone. Always present, so last in the table. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/alloc.h"

static int present(const struct env *env, const struct alloc_request *request)
{
	(void)env;
	(void)request;
	return 1;
}

/* The CPUs this process may run on; machines of more than CPU_SETSIZE need a larger set. */
static int usable_cpus(void)
{
	for (int room = 1024; room <= 1 << 16; room *= 2) {
		cpu_set_t *set = CPU_ALLOC(room);
		size_t size = CPU_ALLOC_SIZE(room);

		if (!set)
			return 1;
		int rc = sched_getaffinity(0, size, set);
		int count = rc ? 0 : CPU_COUNT_S(size, set);

		CPU_FREE(set);
		if (!rc)
			return count;
	}
	return 1;
}

static int read_local(const struct env *env, const struct alloc_request *request, struct alloc *out,
		      struct error *err)
{
	char host[256] = "localhost";

	(void)env;
	(void)request;
	if (gethostname(host, sizeof host - 1) || !*host)
		strcpy(host, "localhost");
	out->this_node = 0;
	out->nodes = calloc(1, sizeof *out->nodes);
	out->source = strdup("local");
	out->why = strdup("no hosts were given and no scheduler's variables are set: using only "
			  "this machine");
	if (asprintf(&out->job_id, "local-%s-%ld-%lld", host, (long)getpid(),
		     (long long)time(NULL)) < 0)
		out->job_id = NULL;
	if (!out->nodes || !out->source || !out->why || !out->job_id)
		return error_memory(err, "the allocation");
	out->node_count = 1;
	out->nodes[0] =
		(struct alloc_node){.name = strdup(host), .slots = usable_cpus(), .gpus = -1};
	return out->nodes[0].name ? 0 : error_memory(err, "the allocation");
}

const struct alloc_source alloc_source_local = {"local", present, read_local};
