/* SPDX-License-Identifier: BSD-3-Clause */
#include "stages.h"

#include <stdlib.h>
#include <string.h>

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
	alloc_ask(out->env, &out->alloc);
	return machine_load_here(&source, out->env, &out->card, err);
}

int chain_plan(const struct plan_request *request, struct chain *chain, struct error *err)
{
	/* A view of the allocation: plan_make borrows it. */
	struct alloc nodes = chain->alloc;

	chain->guessed = nodes.node_count > 1 && nodes.this_node == 0;
	if (!chain->guessed)
		nodes.node_count = 1;

	struct machine *cards = calloc(nodes.node_count, sizeof *cards);

	if (!cards)
		return error_memory(err, "the nodes' cards");
	for (size_t i = 0; i < nodes.node_count; i++) {
		cards[i] = chain->card; /* borrowed, as far as it is not this node's own */
		if (i) {
			cards[i].node = nodes.nodes[i].name;
			cards[i].address_count = 0;
		} else if (chain->guessed) {
			cards[i].node = nodes.nodes[i].name;
		}
	}

	int rc = plan_make(&nodes, cards, nodes.node_count, request, NULL, chain->env,
			   &chain->plan, err);

	free(cards);
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
