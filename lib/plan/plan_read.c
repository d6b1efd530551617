/* SPDX-License-Identifier: BSD-3-Clause */
/* A plan from JSON: from the wire, so nothing is trusted. What the members mean is in plan_write.c.
 */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "hostlist/hostlist.h"
#include "plan/plan_internal.h"

#define MAX_PARTS 4096 /* GPUs or NICs of a rank, warnings of a node */

static int wrong(struct error *err, const char *what, const char *key, const char *expected)
{
	return error_set(err, ERR_DATA, "%s: \"%s\" is missing or is not %s", what, key, expected);
}

/* A string or null into a malloced copy (NULL for null). */
static int read_text(const json_t *json, const char *what, const char *key, char **out,
		     struct error *err)
{
	const json_t *value = json_object_get(json, key);

	*out = NULL;
	if (json_is_null(value))
		return 0;
	if (!json_is_string(value))
		return wrong(err, what, key, "a string or null");
	*out = strdup(json_string_value(value));
	return *out ? 0 : error_memory(err, "a plan");
}

/* A string or null into a field of size bytes ("" for null). */
static int read_field(const json_t *json, const char *what, const char *key, char *out, size_t size,
		      struct error *err)
{
	const json_t *value = json_object_get(json, key);

	*out = '\0';
	if (json_is_null(value))
		return 0;
	if (!json_is_string(value) || json_string_length(value) >= size)
		return wrong(err, what, key, "a short string or null");
	memcpy(out, json_string_value(value), json_string_length(value) + 1);
	return 0;
}

static int read_int(const json_t *json, const char *what, const char *key, int min, int max,
		    int *out, struct error *err)
{
	int64_t value;
	int rc = json_get_int(what, json, key, min, max, &value, err);

	if (!rc)
		*out = (int)value;
	return rc;
}

static int read_set(const json_t *json, const char *what, const char *key, struct idset **out,
		    struct error *err)
{
	const char *text;
	int rc = json_get_string(what, json, key, &text, err);

	if (!rc)
		rc = idset_parse(text, out, err);
	return rc ? error_prefix(err, "%s", what) : 0;
}

/* The array under key with at most max entries, and room for them in *out (NULL when empty). */
static int read_array(const json_t *json, const char *what, const char *key, size_t max,
		      size_t entry_size, json_t **array, void **out, struct error *err)
{
	int rc = json_get_array(what, json, key, array, err);

	if (rc)
		return rc;
	if (json_array_size(*array) > max)
		return error_set(err, ERR_DATA, "%s: \"%s\" has %zu entries, at most %zu are read",
				 what, key, json_array_size(*array), max);
	if (!json_array_size(*array))
		return 0;
	*out = calloc(json_array_size(*array), entry_size);
	return *out ? 0 : error_memory(err, "a plan");
}

static int read_texts(const json_t *json, const char *what, char ***out, size_t *count,
		      struct error *err)
{
	json_t *array;
	int rc = read_array(json, what, "warnings", MAX_PARTS, sizeof **out, &array, (void **)out,
			    err);

	if (rc)
		return rc;
	for (size_t i = 0; i < json_array_size(array); i++) {
		const char *text = json_string_value(json_array_get(array, i));

		if (!text)
			return wrong(err, what, "warnings", "an array of strings");
		(*out)[i] = strdup(text);
		if (!(*out)[i])
			return error_memory(err, "a plan");
		*count = i + 1;
	}
	return 0;
}

/* The value whose name stands under key; names beyond last are not asked for. */
static int read_name(const json_t *json, const char *what, const char *key,
		     const char *(*name_of)(int), int last, int *out, struct error *err)
{
	const char *text;
	int rc = json_get_string(what, json, key, &text, err);

	if (rc)
		return rc;
	for (int value = 0; value <= last; value++)
		if (!strcmp(text, name_of(value))) {
			*out = value;
			return 0;
		}
	return error_set(err, ERR_DATA, "%s: \"%s\" is \"%.40s\", which is no %s", what, key, text,
			 key);
}

static const char *kind_name(int kind)
{
	return nic_kind_name((enum nic_kind)kind);
}

static const char *path_name(int path)
{
	return path_class_name((enum path_class)path);
}

static int read_gpu(const json_t *json, struct plan_gpu *gpu, struct error *err)
{
	const char *what = "a GPU of a plan";
	int rc = read_field(json, what, "pci", gpu->pci, sizeof gpu->pci, err);

	if (!rc)
		rc = read_int(json, what, "index", 0, IDSET_MAX, &gpu->index, err);
	gpu->ordinal = -1;
	if (!rc && !json_is_null(json_object_get(json, "ordinal")))
		rc = read_int(json, what, "ordinal", 0, IDSET_MAX, &gpu->ordinal, err);
	return rc ? rc : read_text(json, what, "uuid", &gpu->uuid, err);
}

static int read_nic(const json_t *json, struct plan_nic *nic, struct error *err)
{
	const char *what = "a NIC of a plan";
	const json_t *up = json_object_get(json, "up");
	int kind = 0, path = 0;
	int rc = read_field(json, what, "net", nic->net, sizeof nic->net, err);

	if (!rc)
		rc = read_field(json, what, "rdma", nic->rdma, sizeof nic->rdma, err);
	if (!rc)
		rc = read_int(json, what, "port", 0, 65535, &nic->port, err);
	if (!rc)
		rc = read_field(json, what, "pci", nic->pci, sizeof nic->pci, err);
	if (!rc)
		rc = read_name(json, what, "kind", kind_name, NIC_INFINIBAND, &kind, err);
	if (!rc)
		rc = read_name(json, what, "path", path_name, PATH_UNKNOWN, &path, err);
	if (!rc && !json_is_null(up) && !json_is_boolean(up))
		rc = wrong(err, what, "up", "true, false or null");
	nic->kind = (enum nic_kind)kind;
	nic->path = (enum path_class)path;
	nic->state = json_is_true(up)	 ? NIC_STATE_UP
		     : json_is_false(up) ? NIC_STATE_DOWN
					 : NIC_STATE_UNKNOWN;
	return rc;
}

static int read_rank(const json_t *json, struct plan_rank *rank, struct error *err)
{
	const char *what = "a rank of a plan";
	json_t *gpus, *nics;
	int rc = read_int(json, what, "rank", 0, INT32_MAX, &rank->rank, err);

	if (!rc)
		rc = read_int(json, what, "local_rank", 0, PLAN_MAX_RANKS_PER_NODE,
			      &rank->local_rank, err);
	if (!rc)
		rc = read_int(json, what, "threads", 0, IDSET_MAX + 1, &rank->threads, err);
	if (!rc)
		rc = read_text(json, what, "why", &rank->why, err);
	if (!rc)
		rc = read_set(json, what, "cpus", &rank->cpus_os, err);
	if (!rc)
		rc = read_set(json, what, "numa", &rank->numa_os, err);
	if (!rc)
		rc = read_array(json, what, "gpus", MAX_PARTS, sizeof *rank->gpus, &gpus,
				(void **)&rank->gpus, err);
	for (size_t i = 0; !rc && i < json_array_size(gpus); i++) {
		rank->gpu_count = i + 1;
		rc = read_gpu(json_array_get(gpus, i), &rank->gpus[i], err);
	}
	if (!rc)
		rc = read_array(json, what, "nics", MAX_PARTS, sizeof *rank->nics, &nics,
				(void **)&rank->nics, err);
	for (size_t i = 0; !rc && i < json_array_size(nics); i++) {
		rank->nic_count = i + 1;
		rc = read_nic(json_array_get(nics, i), &rank->nics[i], err);
	}
	return rc;
}

static int read_node(const json_t *json, struct plan_node *node, struct error *err)
{
	const char *what = "a node of a plan";
	json_t *ranks;
	int rc = read_text(json, what, "node", &node->node, err);

	if (!rc)
		rc = read_text(json, what, "visible_devices", &node->visible_devices, err);
	if (!rc)
		rc = read_field(json, what, "iface", node->iface, sizeof node->iface, err);
	if (!rc)
		rc = read_set(json, what, "free_cpus", &node->free_cpus_os, err);
	if (!rc)
		rc = read_texts(json, what, &node->warnings, &node->warning_count, err);
	if (!rc)
		rc = read_array(json, what, "ranks", PLAN_MAX_RANKS_PER_NODE, sizeof *node->ranks,
				&ranks, (void **)&node->ranks, err);
	for (size_t i = 0; !rc && i < json_array_size(ranks); i++) {
		node->rank_count = i + 1;
		rc = read_rank(json_array_get(ranks, i), &node->ranks[i], err);
		if (!rc && node->ranks[i].local_rank != (int)i)
			rc = error_set(err, ERR_DATA, "%s: local rank %d stands at place %zu", what,
				       node->ranks[i].local_rank, i);
	}
	return rc;
}

static int read_network(const json_t *json, struct plan_network *network, struct error *err)
{
	const char *what = "the network of a plan";
	int single = 0, kind = 0;
	int rc = json_get_bool(what, json, "single_node", &single, err);

	if (!rc)
		rc = read_field(json, what, "address", network->address, sizeof network->address,
				err);
	if (!rc)
		rc = read_field(json, what, "subnet", network->subnet, sizeof network->subnet, err);
	if (!rc)
		rc = read_field(json, what, "iface", network->iface, sizeof network->iface, err);
	if (!rc)
		rc = read_name(json, what, "kind", kind_name, NIC_INFINIBAND, &kind, err);
	if (!rc)
		rc = read_text(json, what, "why", &network->why, err);
	network->single_node = single;
	network->kind = (enum nic_kind)kind;
	return rc;
}

/* Ranks count up from 0 over the nodes, and there are world_size of them. */
static int check_ranks(const struct plan *plan, struct error *err)
{
	int next = 0;

	for (size_t n = 0; n < plan->node_count; n++)
		for (size_t i = 0; i < plan->nodes[n].rank_count; i++, next++)
			if (plan->nodes[n].ranks[i].rank != next)
				return error_set(err, ERR_DATA,
						 "a plan: node %zu has rank %d where %d is next", n,
						 plan->nodes[n].ranks[i].rank, next);
	if (next != plan->world_size)
		return error_set(err, ERR_DATA, "a plan: %d ranks, but world_size is %d", next,
				 plan->world_size);
	return 0;
}

static int read_schema(const json_t *json, const char *expected, struct error *err)
{
	const char *what = "a plan", *schema;
	int rc = json_get_string(what, json, "schema", &schema, err);

	if (rc || !strcmp(schema, expected))
		return rc;
	return error_set(err, ERR_DATA, "%s: schema is \"%.40s\", expected %s", what, schema,
			 expected);
}

static int read_job(const json_t *json, struct plan *plan, struct error *err)
{
	const char *what = "a plan";
	json_t *network;
	int64_t end_time = 0;
	int rc = read_text(json, what, "job_id", &plan->job_id, err);

	if (!rc)
		rc = read_int(json, what, "world_size", 0, INT32_MAX, &plan->world_size, err);
	if (!rc)
		rc = read_int(json, what, "attempt", 0, INT32_MAX, &plan->attempt, err);
	if (!rc)
		rc = read_int(json, what, "port", 0, 65535, &plan->port, err);
	if (!rc)
		rc = json_get_int(what, json, "end_time", 0, INT64_MAX, &end_time, err);
	plan->end_time = end_time;
	if (!rc)
		rc = json_get_object(what, json, "network", &network, err);
	return rc ? rc : read_network(network, &plan->network, err);
}

/* The ranks of one node follow each other and are of this world. */
static int check_part(const struct plan *plan, size_t node_index, struct error *err)
{
	const struct plan_node *node = &plan->nodes[node_index];

	for (size_t i = 0; i < node->rank_count; i++)
		if (node->ranks[i].rank != node->ranks[0].rank + (int)i ||
		    node->ranks[i].rank >= plan->world_size)
			return error_set(err, ERR_DATA, "a plan: place %zu has rank %d of %d", i,
					 node->ranks[i].rank, plan->world_size);
	return 0;
}

int plan_file_from_json(const json_t *json, struct plan *out, size_t *node_index, struct error *err)
{
	struct plan plan = {0};
	json_t *job;
	int count = 0, index = 0;
	int rc = read_schema(json, "berth.plan/1", err);

	if (!rc)
		rc = json_get_object("a plan", json, "job", &job, err);
	if (!rc)
		rc = read_job(job, &plan, err);
	if (!rc)
		rc = read_int(job, "a plan", "node_count", 1, HOSTLIST_MAX_HOSTS, &count, err);
	if (!rc)
		rc = read_int(job, "a plan", "node_index", 0, count - 1, &index, err);
	if (!rc && !(plan.nodes = calloc((size_t)count, sizeof *plan.nodes)))
		rc = error_memory(err, "a plan");
	if (!rc) {
		plan.node_count = (size_t)count;
		rc = read_node(json, &plan.nodes[index], err);
	}
	if (!rc)
		rc = check_part(&plan, (size_t)index, err);
	if (rc) {
		plan_free(&plan);
		return rc;
	}
	*out = plan;
	*node_index = (size_t)index;
	return 0;
}

int plan_from_json(const json_t *json, struct plan *out, struct error *err)
{
	const char *what = "a plan";
	struct plan plan = {0};
	json_t *nodes;
	int rc = read_schema(json, "berth.jobplan/1", err);

	if (!rc)
		rc = read_job(json, &plan, err);
	if (!rc)
		rc = read_texts(json, what, &plan.warnings, &plan.warning_count, err);
	if (!rc)
		rc = read_array(json, what, "nodes", HOSTLIST_MAX_HOSTS, sizeof *plan.nodes, &nodes,
				(void **)&plan.nodes, err);
	for (size_t i = 0; !rc && i < json_array_size(nodes); i++) {
		plan.node_count = i + 1;
		rc = read_node(json_array_get(nodes, i), &plan.nodes[i], err);
	}
	if (!rc)
		rc = check_ranks(&plan, err);
	if (rc) {
		plan_free(&plan);
		return rc;
	}
	*out = plan;
	return 0;
}
