/* SPDX-License-Identifier: BSD-3-Clause */
#include "stages.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/query.h"
#include "base/json.h"
#include "submit/submit.h"

/* Schedulers whose variables do not name this machine, and host lists, leave it to its name. */
static int find_this_node(const struct alloc *alloc, const struct launcher *launcher)
{
	if (launcher && launcher_is_here(launcher))
		return 0;
	if (alloc->this_node >= 0 || alloc->source == ALLOC_FROM_SLURM)
		return alloc->this_node;
	for (size_t i = 0; i < alloc->node_count; i++)
		if (launcher_is_this_host(alloc->nodes[i].name))
			return (int)i;
	return -1;
}

int stages_read(const struct alloc_request *request, struct env **env, struct alloc *alloc,
		struct error *err)
{
	int rc = submit_environment(NULL, 0, env, err);

	if (!rc)
		rc = alloc_read(*env, request, alloc, err);
	if (!rc)
		alloc_query_now(*env, alloc);
	return rc;
}

int stages_open(struct stages *out, const struct launch_options *launch,
		const struct plan_request *request, struct error *err)
{
	out->env = launch->env;
	out->alloc = launch->alloc;
	out->launcher = launch->launcher;
	out->request = *request;
	paint_init(out->env, &out->paint);
	out->this_node = find_this_node(out->alloc, out->launcher);
	snprintf(out->not_known, sizeof out->not_known,
		 "this machine is not %.80s, the first node, where berth plans the ranks' cores, "
		 "GPUs, NICs, environment and rendezvous address when the job starts. To see them: "
		 "berth run --per-node -- berth info, with the job's other options",
		 out->alloc->nodes[0].name);
	out->warnings = json_array();
	out->launcher_line = out->launcher ? launcher_sample_line(launch) : NULL;
	if (!out->warnings || (out->launcher && !out->launcher_line))
		return error_memory(err, "the launcher's command line");
	return 0;
}

int stages_discover(struct stages *stages, struct error *err)
{
	const struct inventory_source source = {0};

	return inventory_discover_from_env(&source, stages->env, &stages->inventory, err);
}

struct inventory *stages_assume_alike(const struct inventory *own, const struct alloc *alloc,
				      bool addresses)
{
	struct inventory *out = calloc(alloc->node_count, sizeof *out);

	for (size_t i = 0; out && i < alloc->node_count; i++) {
		out[i] = *own;
		out[i].node = alloc->nodes[i].name;
		if (i && !addresses)
			out[i].address_count = 0;
	}
	return out;
}

int stages_plan(struct stages *stages, struct error *err)
{
	struct alloc nodes = *stages->alloc; /* a view: plan_make borrows it */
	bool here = stages->launcher && launcher_is_here(stages->launcher);
	char text[160];

	if (stages->this_node > 0) {
		nodes.nodes += stages->this_node;
		nodes.node_count = 1;
		snprintf(text, sizeof text,
			 "more nodes in the allocation, not in this plan: %zu; berth info examines "
			 "only the node where it runs",
			 stages->alloc->node_count - 1);
		stages_warn(stages->warnings, text);
	}
	stages->assumed = nodes.node_count > 1 && !here;
	if (stages->assumed)
		stages_warn(stages->warnings,
			    "berth examined only this node and assumes that the others are like "
			    "it; it tests which address all nodes reach when the ranks start; run "
			    "'berth run --per-node -- berth info' in the job to see each node");
	stages->inventories = stages_assume_alike(&stages->inventory, &nodes, here);
	if (!stages->inventories)
		return error_memory(err, "the nodes' inventories");
	return plan_make(&nodes, stages->inventories, nodes.node_count, &stages->request, NULL,
			 stages->env, &stages->plan, err);
}

int stages_environment(const struct stages *stages, size_t node, size_t local_rank,
		       const struct env *env, struct env **out, struct error *err)
{
	const struct inventory *inventory =
		stages->inventories ? &stages->inventories[node] : &stages->inventory;

	return plan_environment(&stages->plan, inventory, node, local_rank, &stages->request, env,
				out, err);
}

void stages_warn(json_t *warnings, const char *text)
{
	json_t *seen;
	size_t i;

	json_array_foreach(warnings, i, seen)
	{
		if (text && !strcmp(json_string_value(seen), text))
			return;
	}
	if (text)
		json_array_append_new(warnings, json_text(text));
}

int stages_collect_warnings(struct stages *stages, const struct env *env, struct error *err)
{
	const struct plan *plan = &stages->plan;
	JSON_AUTO lint = env ? plan_lint(env, &stages->inventory, 1) : json_array();

	for (size_t i = 0; i < plan->warning_count; i++)
		stages_warn(stages->warnings, plan->warnings[i]);
	for (size_t n = 0; n < plan->node_count; n++)
		for (size_t i = 0; i < plan->nodes[n].warning_count; i++)
			stages_warn(stages->warnings, plan->nodes[n].warnings[i]);
	for (size_t i = 0; i < json_array_size(lint); i++)
		stages_warn(stages->warnings, json_string_value(json_array_get(lint, i)));
	return lint ? 0 : error_memory(err, "the warnings");
}

json_t *stages_to_json(const struct stages *stages, const char *schema, json_t *more)
{
	json_t *out = json_pack(
		"{s:s, s:o, s:o, s:o, s:o, s:o, s:O}", "schema", schema, "launcher",
		json_text(stages->launcher ? stages->launcher->name : NULL), "line",
		json_text(stages->launcher_line), "alloc", alloc_to_json(stages->alloc), "network",
		stages->plan.node_count ? plan_network_to_json(&stages->plan.network) : json_null(),
		"not_known", json_text(stages->plan.node_count ? NULL : stages->not_known),
		"warnings", stages->warnings);

	if (!json_object_update_new(out, more))
		return out;
	json_decref(out);
	return NULL;
}

void stages_free(struct stages *stages)
{
	json_decref(stages->warnings);
	plan_free(&stages->plan);
	free(stages->inventories);
	inventory_free(&stages->inventory);
	free(stages->launcher_line);
	memset(stages, 0, sizeof *stages);
}
