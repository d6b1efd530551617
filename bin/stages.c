/* SPDX-License-Identifier: BSD-3-Clause */
#include "stages.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/query.h"
#include "submit/submit.h"

int stages_load(const struct plan_options *options, struct stages *out, struct error *err)
{
	const struct inventory_source source = {0};
	int rc = submit_environment(NULL, 0, &out->env, err);

	if (!rc)
		rc = alloc_read(out->env, &options->alloc, &out->alloc, err);
	if (rc)
		return rc;
	alloc_query_now(out->env, &out->alloc);
	return inventory_discover_from_env(&source, out->env, &out->inventory, err);
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

int stages_plan(const struct plan_request *request, struct stages *stages, struct error *err)
{
	/* A view of the allocation: plan_make borrows it. */
	struct alloc nodes = stages->alloc;
	struct inventory *alike = NULL;

	stages->assumed = nodes.node_count > 1 && nodes.this_node == 0;
	if (!stages->assumed)
		nodes.node_count = 1;
	else if (!(alike = stages_assume_alike(&stages->inventory, &nodes, false)))
		return error_memory(err, "the nodes' inventories");

	int rc = plan_make(&nodes, alike ? alike : &stages->inventory, nodes.node_count, request,
			   NULL, stages->env, &stages->plan, err);

	free(alike);
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
