/* SPDX-License-Identifier: BSD-3-Clause */
/* The plan as JSON, and one node's part of it back. The part is read from a file, so nothing in it
 * is trusted: the tables check each member by itself, check_part the ranks. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/json_fields.h"
#include "hostlist/hostlist.h"
#include "plan/plan.h"
#include "plan/plan_internal.h"

#define MAX_PARTS 4096 /* GPUs or NICs of a rank, warnings of a node */

static const char *kind_name(int kind)
{
	return nic_kind_name((enum nic_kind)kind);
}

static const char *path_name(int path)
{
	return path_class_name((enum path_class)path);
}

/* A link's state: true, false, or null if unknown. */
static json_t *state_write(const struct json_field *field, const void *owner)
{
	enum nic_state state = *(const enum nic_state *)json_member(field, owner);

	return state == NIC_STATE_UNKNOWN ? json_null() : json_boolean(state == NIC_STATE_UP);
}

static int state_read(const struct json_field *field, const json_t *json, void *owner,
		      const char *what, struct error *err)
{
	if (!json_is_null(json) && !json_is_boolean(json))
		return json_unexpected(what, field->name, json, "true, false or null", err);
	*(enum nic_state *)json_member(field, owner) = json_is_true(json)    ? NIC_STATE_UP
						       : json_is_false(json) ? NIC_STATE_DOWN
									     : NIC_STATE_UNKNOWN;
	return 0;
}

static const struct json_type as_state = {state_write, state_read};

#define GPU(member) JSON_MEMBER(struct plan_gpu, member)
#define NIC(member) JSON_MEMBER(struct plan_nic, member)
#define RANK(member) JSON_MEMBER(struct plan_rank, member)
#define NODE(member) JSON_MEMBER(struct plan_node, member)
#define NETWORK(member) JSON_MEMBER(struct plan_network, member)
#define PLAN(member) JSON_MEMBER(struct plan, member)

static const struct json_field gpu_members[] = {
	{"pci", &json_as_chars, GPU(pci), JSON_READ_NULL},
	{"index", &json_as_number, GPU(index), .max = IDSET_MAX},
	{"ordinal", &json_as_number, GPU(ordinal), JSON_NULLABLE, .max = IDSET_MAX},
	{"uuid", &json_as_text, GPU(uuid), JSON_NULLABLE},
	{0}};

static const struct json_field nic_members[] = {
	{"net", &json_as_chars, NIC(net), JSON_NULLABLE},
	{"rdma", &json_as_chars, NIC(rdma), JSON_NULLABLE},
	{"port", &json_as_number, NIC(port), .max = 65535},
	{"pci", &json_as_chars, NIC(pci), JSON_NULLABLE},
	{"kind", &json_as_name, NIC(kind), .max = NIC_INFINIBAND, .name_of = kind_name},
	{"path", &json_as_name, NIC(path), .max = PATH_UNKNOWN, .name_of = path_name},
	{"up", &as_state, NIC(state)},
	{0}};

static const struct json_field rank_members[] = {
	{"rank", &json_as_number, RANK(rank), .max = INT32_MAX},
	{"local_rank", &json_as_number, RANK(local_rank), .max = PLAN_MAX_RANKS_PER_NODE},
	{"gpus", &json_as_list, JSON_LIST(struct plan_rank, gpus, gpu_count), .max = MAX_PARTS,
	 .entry = &json_as_object, .members = gpu_members, .called = "a GPU of a plan"},
	{"cpus", &idset_as_json, RANK(cpus_os)},
	{"numa", &idset_as_json, RANK(numa_os)},
	{"threads", &json_as_number, RANK(threads), .max = IDSET_MAX + 1},
	{"nics", &json_as_list, JSON_LIST(struct plan_rank, nics, nic_count), .max = MAX_PARTS,
	 .entry = &json_as_object, .members = nic_members, .called = "a NIC of a plan"},
	{"why", &json_as_text, RANK(why), JSON_NULLABLE},
	{0}};

static const struct json_field node_members[] = {
	{"schema", &json_as_constant, .constant = "berth.plan/1"},
	{"node", &json_as_text, NODE(node), JSON_NULLABLE},
	{"ranks", &json_as_list, JSON_LIST(struct plan_node, ranks, rank_count),
	 .max = PLAN_MAX_RANKS_PER_NODE, .entry = &json_as_object, .members = rank_members,
	 .called = "a rank of a plan"},
	{"visible_devices", &json_as_text, NODE(visible_devices), JSON_NULLABLE},
	{"iface", &json_as_chars, NODE(iface), JSON_NULLABLE},
	{"free_cpus", &idset_as_json, NODE(free_cpus_os)},
	{"warnings", &json_as_list, JSON_LIST(struct plan_node, warnings, warning_count),
	 .max = MAX_PARTS, .entry = &json_as_text},
	{0}};

static const struct json_field network_members[] = {
	{"single_node", &json_as_bool, NETWORK(single_node)},
	{"address", &json_as_chars, NETWORK(address), JSON_READ_NULL},
	{"subnet", &json_as_chars, NETWORK(subnet), JSON_READ_NULL},
	{"iface", &json_as_chars, NETWORK(iface), JSON_READ_NULL},
	{"kind", &json_as_name, NETWORK(kind), .max = NIC_INFINIBAND, .name_of = kind_name},
	{"why", &json_as_text, NETWORK(why), JSON_NULLABLE},
	{0}};

/* The members that are the same for all nodes. */
static const struct json_field job_members[] = {
	{"job_id", &json_as_text, PLAN(job_id), JSON_NULLABLE},
	{"world_size", &json_as_number, PLAN(world_size), .max = INT32_MAX},
	{"attempt", &json_as_number, PLAN(attempt), .max = INT32_MAX},
	{"port", &json_as_number, PLAN(port), .max = 65535},
	{"end_time", &json_as_number, PLAN(end_time), .max = INT64_MAX},
	{"network", &json_as_object, PLAN(network), .members = network_members,
	 .called = "the network of a plan"},
	{0}};

json_t *plan_node_to_json(const struct plan_node *node)
{
	return json_fields_write(node_members, node);
}

json_t *plan_network_to_json(const struct plan_network *network)
{
	return json_fields_write(network_members, network);
}

json_t *plan_file_to_json(const struct plan *plan, size_t node_index)
{
	JSON_AUTO out = plan_node_to_json(&plan->nodes[node_index]);
	json_t *job = json_fields_write(job_members, plan);

	if (!out || json_object_set_new(out, "job", job) ||
	    json_object_set_new(job, "node_count",
				json_integer((json_int_t)plan->nodes_with_ranks)) ||
	    json_object_set_new(job, "node_index",
				json_integer((json_int_t)plan->nodes[node_index].node_rank)))
		return NULL;
	return json_incref(out);
}

/* The ranks of one node must be consecutive and below the world size. */
static int check_part(const struct plan *plan, const struct plan_node *node, struct error *err)
{
	for (size_t i = 0; i < node->rank_count; i++) {
		const struct plan_rank *rank = &node->ranks[i];

		if (rank->local_rank != (int)i)
			return error_set(err, ERR_DATA,
					 "invalid plan: local rank %d is at index %zu",
					 rank->local_rank, i);
		if (rank->rank != node->ranks[0].rank + (int)i || rank->rank >= plan->world_size)
			return error_set(err, ERR_DATA, "invalid plan: index %zu has rank %d of %d",
					 i, rank->rank, plan->world_size);
	}
	return 0;
}

int plan_file_from_json(const json_t *json, struct plan *out, size_t *node_index, struct error *err)
{
	struct plan plan = {0};
	struct plan_node node = {0};
	int64_t count = 0, index = 0;
	json_t *job;
	int rc = json_fields_read(node_members, json, &node, "a plan", err);

	if (!rc)
		rc = json_get_object("a plan", json, "job", &job, err);
	if (!rc)
		rc = json_fields_read(job_members, job, &plan, "a plan", err);
	if (!rc)
		rc = json_get_int("a plan", job, "node_count", 1, HOSTLIST_MAX_HOSTS, &count, err);
	if (!rc)
		rc = json_get_int("a plan", job, "node_index", 0, count - 1, &index, err);
	if (!rc)
		rc = check_part(&plan, &node, err);
	if (!rc && !(plan.nodes = calloc((size_t)count, sizeof *plan.nodes)))
		rc = error_memory(err, "a plan");
	if (rc) {
		plan_node_free(&node);
		plan_free(&plan);
		return rc;
	}
	plan.node_count = plan.nodes_with_ranks = (size_t)count;
	node.node_rank = (size_t)index;
	plan.nodes[index] = node;
	*out = plan;
	*node_index = (size_t)index;
	return 0;
}
