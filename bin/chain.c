/* SPDX-License-Identifier: BSD-3-Clause */
#include "chain.h"

#include <string.h>

#include "alloc/slurm.h"

int chain_load(const struct options *options, struct chain *out, struct error *err)
{
	const struct machine_source source = {0};
	int rc;

	out->env = env_capture();
	if (!out->env)
		return error_memory(err, "the environment");
	rc = alloc_read(out->env, &options->alloc, &out->alloc, err);
	if (rc)
		return rc;
	slurm_ask_end_time(out->env, SLURM_ASK_MS, &out->alloc);
	return machine_load_here(&source, out->env, &out->card, err);
}

int chain_plan(const struct plan_request *request, struct chain *chain, struct error *err)
{
	/* A view of the allocation: plan_make borrows it. */
	struct alloc head = chain->alloc;

	head.node_count = 1;

	int rc = plan_make(&head, &chain->card, 1, request, NULL, chain->env, &chain->plan, err);

	if (rc)
		return rc;
	chain->lint = plan_lint(chain->env, &chain->card, 1);
	return chain->lint ? 0 : error_memory(err, "the warnings");
}

void chain_free(struct chain *chain)
{
	if (!chain)
		return;
	json_decref(chain->lint);
	plan_free(&chain->plan);
	machine_free(&chain->card);
	alloc_free(&chain->alloc);
	env_free(chain->env);
	memset(chain, 0, sizeof *chain);
}
