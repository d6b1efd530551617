/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run --dry-run: the engine's line, the ranks, their cores, GPUs and environment, each with
 * where it comes from. Nothing is started and no port is taken. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "machine/machine.h"
#include "plan/plan.h"
#include "run.h"
#include "show.h"
#include "table.h"

/* What is shown: the plan as it would be, with this machine standing for nodes not asked. */
struct show {
	const struct run_setup *setup;
	const char *const *argv;
	struct plan_request request;
	size_t count;
	struct machine *cards;
	struct plan plan;
	char *line;
	bool guessed; /* other nodes are taken to be like this one */
};

static int load_cards(struct show *show, struct error *err)
{
	const struct alloc *alloc = &show->setup->alloc;
	const struct machine_source source = {0};
	JSON_AUTO card = NULL;
	int rc;

	show->cards = calloc(alloc->node_count, sizeof *show->cards);
	if (!show->cards)
		return error_memory(err, "the cards");
	rc = machine_load_here(&source, show->setup->env, &show->cards[0], err);
	if (rc)
		return rc;
	show->count = 1;
	card = machine_to_json(&show->cards[0]);
	if (!card)
		rc = error_memory(err, "the cards");
	for (; !rc && show->count < alloc->node_count; show->count += !rc) {
		rc = machine_from_json(card, &show->cards[show->count], err);
		show->guessed = !show->setup->engine->one_machine;
	}
	for (size_t i = 0; !rc && i < show->count; i++) {
		free(show->cards[i].node);
		show->cards[i].node = strdup(alloc->nodes[i].name);
		if (!show->cards[i].node)
			rc = error_memory(err, "the cards");
	}
	return rc;
}

static int make(struct show *show, struct error *err)
{
	const struct run_setup *setup = show->setup;
	struct engine_job job = {
		.alloc = &setup->alloc,
		.env = setup->env,
		.program = setup->program,
		.job = setup->alloc.job_id,
		.secret = setup->engine->by_cookie ? NULL : "",
		.recipe = setup->engine->by_cookie ? "cookie:NONCE" : NULL,
		.head = "ADDRESS:PORT",
	};
	int rc = load_cards(show, err);

	show->request = setup->options->shared.plan;
	show->request.port = setup->options->port;
	show->request.report = setup->options->report;
	show->request.spares = (size_t)setup->options->spares;
	if (show->count > 1 && !show->request.head && !show->request.iface && !show->request.subnet)
		show->request.head = "127.0.0.1"; /* as job_plan does; else the exchange decides */
	if (!rc)
		rc = plan_make(&setup->alloc, show->cards, show->count, &show->request, NULL,
			       setup->env, &show->plan, err);
	if (!rc && !(show->line = setup->engine->line(&job)))
		rc = error_memory(err, "the engine's line");
	return rc;
}

static int environment_of(const struct show *show, size_t node, size_t local_rank, struct env **out,
			  struct error *err)
{
	return plan_environment(&show->plan, &show->cards[node], node, local_rank, &show->request,
				show->setup->env, out, err);
}

static int print_json(const struct show *show, struct error *err)
{
	JSON_AUTO out = NULL;
	json_t *nodes = json_array(), *program = json_array();
	int rc = 0;

	for (size_t i = 0; show->argv[i]; i++)
		json_array_append_new(program, json_text(show->argv[i]));
	for (size_t n = 0; !rc && n < show->plan.node_count; n++) {
		json_t *environments = json_array();

		for (size_t r = 0; !rc && r < show->plan.nodes[n].rank_count; r++) {
			struct env *changes = NULL;

			rc = environment_of(show, n, r, &changes, err);
			if (!rc)
				json_array_append_new(environments, environment_json(changes));
			env_free(changes);
		}
		json_array_append_new(nodes, json_pack("{s:o, s:o, s:o}", "node",
						       json_text(show->plan.nodes[n].node), "plan",
						       plan_node_to_json(&show->plan.nodes[n]),
						       "environments", environments));
	}
	out = json_pack("{s:s, s:s, s:s, s:o, s:o, s:i, s:s, s:b, s:o}", "schema", "berth.dryrun/1",
			"engine", show->setup->engine->name, "line", show->line, "alloc",
			alloc_to_json(&show->setup->alloc), "program", program, "world_size",
			show->plan.world_size, "address", show->plan.network.address, "guessed",
			show->guessed, "nodes", nodes);
	if (rc)
		return rc;
	return out ? json_print(out, stdout, err) : error_memory(err, "the plan");
}

static void print_ranks(const struct show *show, const struct paint *paint)
{
	struct table *table = table_new();

	TABLE_ROW(table, "rank", "node", "CPUs", "GPU", "NICs", "why");
	for (size_t n = 0; n < show->plan.node_count; n++) {
		const struct plan_node *node = &show->plan.nodes[n];

		for (size_t r = 0; r < node->rank_count; r++) {
			const struct plan_rank *rank = &node->ranks[r];
			struct cell number, cpus, gpus, nics;

			TABLE_ROW(table, cell(&number, "%d", rank->rank), node->node,
				  cell_set(&cpus, rank->cpus_os), cell_gpus(&gpus, rank),
				  cell_nics(&nics, rank), rank->why ? rank->why : "");
		}
	}
	table_print(table, stdout, paint, 2);
	table_free(table);
}

static int print_environment(const struct show *show, const struct paint *paint, struct error *err)
{
	struct env *changes = NULL;
	struct table *table;
	int rc = environment_of(show, 0, 0, &changes, err);

	if (rc)
		return rc;
	table = table_new();
	TABLE_ROW(table, "variable", "value", "from", "why");
	for (size_t i = 0; i < env_count(changes); i++) {
		const struct env_var *var = env_at(changes, i);

		TABLE_ROW(table, var->name, var->value ? var->value : "(removed)",
			  env_from_name(var->from), var->why ? var->why : "");
	}
	table_print(table, stdout, paint, 2);
	table_free(table);
	env_free(changes);
	return 0;
}

/* So that a shell would read it as it is. */
static void print_argument(const char *text)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "@%+=:,./_-";

	if (*text && !text[strspn(text, plain)]) {
		printf(" %s", text);
		return;
	}
	printf(" '");
	for (; *text; text++)
		printf(*text == '\'' ? "'\\''" : "%c", *text);
	printf("'");
}

static int print_text(const struct show *show, struct error *err)
{
	const struct alloc *alloc = &show->setup->alloc;
	struct paint paint;
	int rc;

	paint_choose(stdout, show->setup->env, &paint);
	printf("%sagents%s   %s: %s\n", paint.bold, paint.off, show->setup->engine->name,
	       show->line);
	printf("%snodes%s    %zu (%s)%s\n", paint.bold, paint.off, alloc->node_count,
	       alloc->why ? alloc->why : alloc->source,
	       show->guessed ? "; the others are taken to be like this one" : "");
	printf("%smeet at%s  %s%s%s\n", paint.bold, paint.off, show->plan.network.address,
	       show->plan.network.why ? ": " : "",
	       show->plan.network.why ? show->plan.network.why : "");
	printf("%sprogram%s ", paint.bold, paint.off);
	for (size_t i = 0; show->argv[i]; i++)
		print_argument(show->argv[i]);
	printf("\n\n%sranks%s    %d\n", paint.bold, paint.off, show->plan.world_size);
	print_ranks(show, &paint);
	for (size_t i = 0; i < show->plan.warning_count; i++)
		printf("%swarning%s  %s\n", paint.warn, paint.off, show->plan.warnings[i]);
	printf("\n%senvironment of rank 0%s (others differ in their numbers)\n", paint.bold,
	       paint.off);
	rc = print_environment(show, &paint, err);
	if (!rc && fflush(stdout))
		rc = error_set(err, ERR_IO, "writing to stdout failed");
	return rc;
}

int run_show(const struct run_setup *setup, const char *const *argv, struct error *err)
{
	struct show show = {.setup = setup, .argv = argv};
	int rc = make(&show, err);

	if (!rc)
		rc = setup->options->json ? print_json(&show, err) : print_text(&show, err);
	plan_free(&show.plan);
	for (size_t i = 0; i < show.count; i++)
		machine_free(&show.cards[i]);
	free(show.cards);
	free(show.line);
	return rc;
}
