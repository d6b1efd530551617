/* SPDX-License-Identifier: BSD-3-Clause */
#include "alloc/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/pbs.h"
#include "alloc/slurm.h"
#include "base/json.h"
#include "hostlist/hostlist.h"

/* In order of precedence: the user's own settings, then a scheduler, then this machine alone. To
 * add a scheduler, add a row here and a file. */
static const struct alloc_source *const sources[] = {
	&alloc_source_hand,  &alloc_source_hosts,
	&alloc_source_slurm, /* before PBS: Slurm's wrappers set PBS_*, too */
	&alloc_source_pbs,   &alloc_source_openpai,
	&alloc_source_local,
};

int alloc_read(const struct env *env, const struct alloc_request *request, struct alloc *out,
	       struct error *err)
{
	static const struct alloc_request nothing;

	if (!request)
		request = &nothing;
	for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
		if (!sources[i]->present(env, request))
			continue;
		int rc = sources[i]->read(env, request, out, err);

		return rc ? error_prefix(err, "allocation (%s)", sources[i]->name) : 0;
	}
	return error_set(err, ERR_INTERNAL, "no source of allocations is present");
}

void alloc_query(const struct env *env, struct alloc *alloc)
{
	slurm_query(env, SLURM_QUERY_MS, alloc);
	pbs_query(env, PBS_QUERY_MS, alloc);
}

void alloc_free(struct alloc *alloc)
{
	if (!alloc)
		return;
	for (size_t i = 0; i < alloc->node_count; i++)
		free(alloc->nodes[i].name);
	free(alloc->nodes);
	free(alloc->source);
	free(alloc->job_id);
	free(alloc->why);
	free(alloc->end_reason);
	free(alloc->array_task);
	free(alloc->rendezvous);
	memset(alloc, 0, sizeof *alloc);
}

static json_t *known_or_null(int64_t value, bool known)
{
	return known ? json_integer(value) : json_null();
}

json_t *alloc_to_json(const struct alloc *alloc)
{
	JSON_AUTO nodes = json_array();

	for (size_t i = 0; nodes && i < alloc->node_count; i++) {
		const struct alloc_node *node = &alloc->nodes[i];

		if (json_array_append_new(
			    nodes, json_pack("{s:o, s:o, s:o}", "name", json_text(node->name),
					     "slots", known_or_null(node->slots, node->slots > 0),
					     "gpus", known_or_null(node->gpus, node->gpus >= 0))))
			return NULL;
	}
	return json_pack("{s:o, s:o, s:O, s:o, s:o, s:o, s:i, s:o, s:o, s:o}", "source",
			 json_text(alloc->source), "job_id", json_text(alloc->job_id), "nodes",
			 nodes, "this_node", known_or_null(alloc->this_node, alloc->this_node >= 0),
			 "end_time", known_or_null(alloc->end_time, alloc->end_time > 0), "end_why",
			 json_text(alloc->end_reason), "restarts", alloc->restarts, "array_task",
			 json_text(alloc->array_task), "rdzv_endpoint",
			 json_text(alloc->rendezvous), "why", json_text(alloc->why));
}

static int copy_string(const json_t *json, const char *key, char **out, struct error *err)
{
	const char *text;
	int rc = json_get_string("alloc", json, key, &text, err);

	if (rc)
		return rc;
	*out = strdup(text);
	return *out ? 0 : error_memory(err, "the allocation");
}

/* The same for a member that may be null or missing. */
static int copy_optional(const json_t *json, const char *key, char **out, struct error *err)
{
	const json_t *member = json_object_get(json, key);

	return !member || json_is_null(member) ? 0 : copy_string(json, key, out, err);
}

/* A number, or unknown where the member is null. */
static int number_or(const json_t *json, const char *key, int64_t max, int64_t unknown,
		     int64_t *out, struct error *err)
{
	if (json_is_null(json_object_get(json, key))) {
		*out = unknown;
		return 0;
	}
	return json_get_int("alloc", json, key, 0, max, out, err);
}

static int node_from_json(const json_t *json, struct alloc_node *out, struct error *err)
{
	int64_t slots, gpus;
	int rc = number_or(json, "slots", 1 << 20, 0, &slots, err);

	if (!rc)
		rc = number_or(json, "gpus", 1 << 20, -1, &gpus, err);
	if (!rc)
		rc = copy_string(json, "name", &out->name, err);
	if (rc)
		return rc;
	out->slots = (int)slots;
	out->gpus = (int)gpus;
	return 0;
}

/* Members added after the first version: if missing, they are unknown. */
static int optional_from_json(const json_t *json, struct alloc *made, struct error *err)
{
	int64_t number;
	int rc = copy_optional(json, "end_why", &made->end_reason, err);

	if (!rc)
		rc = copy_optional(json, "array_task", &made->array_task, err);
	if (!rc)
		rc = copy_optional(json, "rdzv_endpoint", &made->rendezvous, err);
	if (!rc && json_object_get(json, "restarts")) {
		rc = json_get_int("alloc", json, "restarts", 0, 1 << 20, &number, err);
		made->restarts = rc ? 0 : (int)number;
	}
	made->this_node = -1;
	if (!rc && json_object_get(json, "this_node")) {
		rc = number_or(json, "this_node", (int64_t)made->node_count - 1, -1, &number, err);
		made->this_node = rc ? -1 : (int)number;
	}
	return rc;
}

int alloc_from_json(const json_t *json, struct alloc *out, struct error *err)
{
	struct alloc made = {0};
	json_t *nodes;
	int rc = copy_string(json, "source", &made.source, err);

	if (!rc)
		rc = copy_string(json, "job_id", &made.job_id, err);
	if (!rc)
		rc = copy_string(json, "why", &made.why, err);
	if (!rc)
		rc = number_or(json, "end_time", ALLOC_END_MAX, 0, &made.end_time, err);
	if (!rc)
		rc = json_get_array("alloc", json, "nodes", &nodes, err);
	if (rc)
		goto out;

	size_t count = json_array_size(nodes);

	if (count < 1 || count > HOSTLIST_MAX_HOSTS) {
		rc = error_set(err, ERR_DATA, "alloc: nodes has %zu entries; expected 1 to %d",
			       count, HOSTLIST_MAX_HOSTS);
		goto out;
	}
	made.nodes = calloc(count, sizeof *made.nodes);
	if (!made.nodes) {
		rc = error_memory(err, "the allocation");
		goto out;
	}
	for (; !rc && made.node_count < count; made.node_count += !rc)
		rc = node_from_json(json_array_get(nodes, made.node_count),
				    &made.nodes[made.node_count], err);
	if (!rc)
		rc = optional_from_json(json, &made, err);
out:
	if (rc)
		alloc_free(&made);
	else
		*out = made;
	return rc;
}
