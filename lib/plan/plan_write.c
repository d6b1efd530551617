/* SPDX-License-Identifier: BSD-3-Clause */
/* The plan as JSON. */
#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "plan/plan_internal.h"

static json_t *set_json(const struct idset *set)
{
	char *text = idset_format(set);
	json_t *json = text ? json_string(text) : NULL;

	free(text);
	return json;
}

static json_t *named_or_null(const char *text)
{
	return *text ? json_text(text) : json_null();
}

static json_t *gpu_json(const struct plan_gpu *gpu)
{
	return json_pack("{s:s, s:i, s:o, s:o}", "pci", gpu->pci, "index", gpu->index, "ordinal",
			 gpu->ordinal < 0 ? json_null() : json_integer(gpu->ordinal), "uuid",
			 json_text(gpu->uuid));
}

static json_t *nic_json(const struct plan_nic *nic)
{
	return json_pack(
		"{s:o, s:o, s:i, s:o, s:s, s:s, s:o}", "net", named_or_null(nic->net), "rdma",
		named_or_null(nic->rdma), "port", nic->port, "pci", named_or_null(nic->pci), "kind",
		nic_kind_name(nic->kind), "path", path_class_name(nic->path), "up",
		nic->state == NIC_STATE_UNKNOWN ? json_null()
						: json_boolean(nic->state == NIC_STATE_UP));
}

static json_t *texts_json(char *const *texts, size_t count)
{
	JSON_AUTO array = json_array();

	for (size_t i = 0; i < count; i++)
		if (json_array_append_new(array, json_text(texts[i])) < 0)
			return NULL;
	return json_incref(array);
}

static json_t *rank_json(const struct plan_rank *rank)
{
	JSON_AUTO gpus = json_array();
	JSON_AUTO nics = json_array();

	for (size_t i = 0; i < rank->gpu_count; i++)
		if (json_array_append_new(gpus, gpu_json(&rank->gpus[i])) < 0)
			return NULL;
	for (size_t i = 0; i < rank->nic_count; i++)
		if (json_array_append_new(nics, nic_json(&rank->nics[i])) < 0)
			return NULL;
	return json_pack("{s:i, s:i, s:O, s:o, s:o, s:i, s:O, s:o}", "rank", rank->rank,
			 "local_rank", rank->local_rank, "gpus", gpus, "cpus",
			 set_json(rank->cpus_os), "numa", set_json(rank->numa_os), "threads",
			 rank->threads, "nics", nics, "why", json_text(rank->why));
}

static json_t *node_json(const struct plan_node *node)
{
	JSON_AUTO ranks = json_array();

	for (size_t i = 0; i < node->rank_count; i++)
		if (json_array_append_new(ranks, rank_json(&node->ranks[i])) < 0)
			return NULL;
	return json_pack("{s:o, s:O, s:o, s:o, s:o, s:o}", "node", json_text(node->node), "ranks",
			 ranks, "visible_devices", json_text(node->visible_devices), "iface",
			 named_or_null(node->iface), "free_cpus", set_json(node->free_cpus_os),
			 "warnings", texts_json(node->warnings, node->warning_count));
}

json_t *plan_node_to_json(const struct plan_node *node)
{
	JSON_AUTO inner = node_json(node);
	JSON_AUTO out = json_pack("{s:s}", "schema", "berth.plan/1");

	if (!inner || json_object_update(out, inner) < 0)
		return NULL;
	return json_incref(out);
}

static json_t *network_json(const struct plan_network *network)
{
	return json_pack("{s:b, s:s, s:s, s:s, s:s, s:o}", "single_node", network->single_node,
			 "address", network->address, "subnet", network->subnet, "iface",
			 network->iface, "kind", nic_kind_name(network->kind), "why",
			 json_text(network->why));
}

/* What is the same for all nodes. */
static json_t *job_json(const struct plan *plan)
{
	return json_pack("{s:o, s:i, s:i, s:i, s:I, s:o}", "job_id", json_text(plan->job_id),
			 "world_size", plan->world_size, "attempt", plan->attempt, "port",
			 plan->port, "end_time", (json_int_t)plan->end_time, "network",
			 network_json(&plan->network));
}

json_t *plan_to_json(const struct plan *plan)
{
	JSON_AUTO nodes = json_array();
	JSON_AUTO job = job_json(plan);
	JSON_AUTO out = json_pack("{s:s}", "schema", "berth.jobplan/1");

	for (size_t i = 0; i < plan->node_count; i++)
		if (json_array_append_new(nodes, node_json(&plan->nodes[i])) < 0)
			return NULL;
	if (!out || !job || json_object_update(out, job) || json_object_set(out, "nodes", nodes) ||
	    json_object_set_new(out, "warnings", texts_json(plan->warnings, plan->warning_count)))
		return NULL;
	return json_incref(out);
}

json_t *plan_file_to_json(const struct plan *plan, size_t node_index)
{
	JSON_AUTO out = plan_node_to_json(&plan->nodes[node_index]);
	json_t *job = job_json(plan);

	if (!out || json_object_set_new(out, "job", job) ||
	    json_object_set_new(job, "node_count", json_integer((json_int_t)plan->node_count)) ||
	    json_object_set_new(job, "node_index", json_integer((json_int_t)node_index)))
		return NULL;
	return json_incref(out);
}
