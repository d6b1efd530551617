/* SPDX-License-Identifier: BSD-3-Clause */
#include "stages.h"

#include <stdlib.h>
#include <string.h>

int stages_load(const struct options *options, struct stages *out, struct error *err)
{
	const struct inventory_source source = {0};
	int rc;

	out->env = env_capture();
	if (!out->env)
		return error_memory(err, "the environment");
	rc = alloc_read(out->env, &options->alloc, &out->alloc, err);
	if (rc)
		return rc;
	alloc_query(out->env, &out->alloc);
	return inventory_discover_from_env(&source, out->env, &out->inventory, err);
}

int stages_plan(const struct plan_request *request, struct stages *stages, struct error *err)
{
	/* A view of the allocation: plan_make borrows it. */
	struct alloc nodes = stages->alloc;

	stages->assumed = nodes.node_count > 1 && nodes.this_node == 0;
	if (!stages->assumed)
		nodes.node_count = 1;

	struct inventory *inventories = calloc(nodes.node_count, sizeof *inventories);

	if (!inventories)
		return error_memory(err, "the nodes' cards");
	for (size_t i = 0; i < nodes.node_count; i++) {
		inventories[i] =
			stages->inventory; /* borrowed, as far as it is not this node's own */
		if (i) {
			inventories[i].node = nodes.nodes[i].name;
			inventories[i].address_count = 0;
		} else if (stages->assumed) {
			inventories[i].node = nodes.nodes[i].name;
		}
	}

	int rc = plan_make(&nodes, inventories, nodes.node_count, request, NULL, stages->env,
			   &stages->plan, err);

	free(inventories);
	if (rc)
		return rc;
	stages->lint = plan_lint(stages->env, &stages->inventory, 1);
	return stages->lint ? 0 : error_memory(err, "the warnings");
}

void stages_free(struct stages *stages)
{
	if (!stages)
		return;
	json_decref(stages->lint);
	plan_free(&stages->plan);
	inventory_free(&stages->inventory);
	alloc_free(&stages->alloc);
	env_free(stages->env);
	memset(stages, 0, sizeof *stages);
}
