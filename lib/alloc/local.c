/* SPDX-License-Identifier: BSD-3-Clause */
/* Source "local": no scheduler, this machine alone. Always present, so last in the table. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/alloc.h"
#include "base/bytes.h"
#include "hostlist/affinity.h"

static int local_present(const struct env *env, const struct alloc_request *request)
{
	(void)env;
	(void)request;
	return 1;
}

static int usable_cpus(void)
{
	struct idset *cpus = affinity_get(0);
	int count = cpus ? (int)idset_count(cpus) : 1;

	idset_free(cpus);
	return count;
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
	out->why = strdup("no hosts were given and no scheduler's variables are set: using only "
			  "this machine");
	out->job_id = text_format("local-%s-%ld-%lld", host, (long)getpid(), (long long)time(NULL));
	if (!out->nodes || !out->why || !out->job_id)
		return error_memory(err, "the allocation");
	out->node_count = 1;
	out->nodes[0] =
		(struct alloc_node){.name = strdup(host), .slots = usable_cpus(), .gpus = -1};
	return out->nodes[0].name ? 0 : error_memory(err, "the allocation");
}

const struct alloc_source alloc_source_local = {ALLOC_FROM_LOCAL, local_present, read_local};
