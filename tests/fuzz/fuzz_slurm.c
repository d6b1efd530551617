/* SPDX-License-Identifier: BSD-3-Clause */
/* Slurm's environment, one variable per line: an allocation that can be written as JSON, or an
 * error with a message, with nothing left behind. */
#include "fuzz_env.h"

#include "alloc/alloc.h"
#include "alloc/slurm.h"
#include "hostlist/hostlist.h"
#include "base/json.h"

static void read_time(const char *text)
{
	int64_t seconds = -1;
	int rc = slurm_time_left(text, &seconds, NULL);

	CHECK(rc == 0 ? seconds >= 0 : seconds == -1);
}

static void read_counts(const char *text)
{
	int counts[8] = {0};
	size_t described = 0;

	if (!slurm_counts("COUNTS", text, 8, counts, &described, NULL))
		CHECK(described >= 1);
	for (size_t i = 0; i < 8; i++)
		CHECK(counts[i] >= 0);
}

static char *visit(const char *name, char *value)
{
	read_counts(value);
	read_time(value);
	return value;
}

static void write_json(const struct alloc *alloc)
{
	JSON_AUTO json = alloc_to_json(alloc);

	CHECK(json_array_size(json_object_get(json, "nodes")) == alloc->node_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), *whole = fuzz_text(data, size);
	struct env *env = fuzz_env(text, visit);
	struct alloc alloc = {0};
	struct error err = {0};

	if (alloc_source_slurm.present(env, NULL)) {
		int rc = alloc_read_from(&alloc_source_slurm, env, NULL, &alloc, &err);

		if (rc) {
			CHECK((rc == -ERR_DATA || rc == -ERR_USAGE) && *err.text && !alloc.nodes);
		} else {
			CHECK(alloc.node_count >= 1 && alloc.node_count <= HOSTLIST_MAX_HOSTS);
			CHECK(alloc.this_node >= -1 && alloc.this_node < (int)alloc.node_count);
			if (alloc.node_count <= 1000) {
				slurm_job_gpus(whole, &alloc);
				for (size_t i = 0; i < alloc.node_count; i++)
					CHECK(alloc.nodes[i].gpus >= -1);
				write_json(&alloc);
			}
		}
	}
	alloc_free(&alloc);
	env_free(env);
	free(text);
	free(whole);
	return 0;
}
