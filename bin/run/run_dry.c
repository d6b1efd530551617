/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run --dry-run: the launcher's line, the ranks, their cores, GPUs and environment, each with
 * where it comes from. Nothing is started and no port is taken. The first node's inventory decides
 * much of it: elsewhere (salloc's shell on a login node) what is not known is reported, never made
 * up. */
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "launch/launcher.h"
#include "plan/plan.h"
#include "run/run_program.h"
#include "show.h"
#include "stages.h"

#define GPUS_MAX 1024 /* of a node, as for --gpus-per-rank */

/* What is shown: the stages of one program, or of a role, with this machine, the first node,
 * standing for nodes not asked. */
struct show {
	const char *const *argv;
	const struct container *container; /* image NULL: none */
	struct stages stages;		   /* with a plan if this machine is the first node */
	int ports;
	int *counts; /* without a plan: ranks of each node, from the allocation; NULL: unknown */
	/* Several roles: this one's name, and what those that plan before it use, to which it adds
	 * its own; NULL: there is one program, or it claims nothing. */
	const char *role;
	json_t *claims;
};

static bool has_plan(const struct show *show)
{
	return show->stages.plan.node_count > 0;
}

/* Count each node's ranks if that does not depend on the nodes' inventories, or if the scheduler
 * granted GPUs, which serve as well.
 */
static int count_ranks(struct show *show, struct error *err)
{
	const struct alloc *alloc = show->stages.alloc;
	const struct plan_request *request = &show->stages.request;
	struct inventory *inventories = calloc(alloc->node_count, sizeof *inventories);
	/* All nodes share these. */
	struct inventory_gpu *gpus = calloc(GPUS_MAX, sizeof *gpus);
	bool known = true;
	int rc;

	show->counts = calloc(alloc->node_count, sizeof *show->counts);
	for (size_t i = 0; gpus && i < GPUS_MAX; i++)
		gpus[i].allowed = true;
	for (size_t i = 0; inventories && i < alloc->node_count; i++) {
		int granted = alloc->nodes[i].gpus;

		known &= request->ranks_per_node || request->per_node || granted > 0 ||
			 (request->ranks && alloc->node_count == 1);
		inventories[i].gpus = gpus;
		inventories[i].gpu_count = granted < 0		? 0
					   : granted < GPUS_MAX ? (size_t)granted
								: GPUS_MAX;
	}
	rc = inventories && gpus && show->counts
		     ? plan_rank_counts(alloc, inventories, alloc->node_count, request,
					show->counts, err)
		     : error_memory(err, "the rank counts of the nodes");
	free(gpus);
	free(inventories);
	if (!known) {
		free(show->counts);
		show->counts = NULL;
	}
	return rc;
}

/* The number of ranks on all nodes; 0: unknown. */
static int world_size(const struct show *show)
{
	int sum = 0;

	if (has_plan(show))
		return show->stages.plan.world_size;
	for (size_t i = 0; show->counts && i < show->stages.alloc->node_count; i++)
		sum += show->counts[i];
	return show->counts ? sum : show->stages.request.ranks;
}

/* Leave out what the roles before this one use, if all are on one node: on several, roles have
 * disjoint nodes. */
static int make_room(struct show *show, struct error *err)
{
	struct stages *stages = &show->stages;
	struct plan_fit fit;
	int rc;

	if (!show->claims || stages->alloc->node_count > 1)
		return 0;
	rc = plan_apply_claims(&stages->inventory, show->claims, err);
	if (rc)
		return rc;
	fit = plan_fit(stages->alloc, &stages->inventory, 1, &stages->request);
	return plan_refuse_sharing(&fit, err);
}

static int make_plan(struct show *show, struct error *err)
{
	struct stages *stages = &show->stages;
	json_t *claim;
	int rc = stages_discover(stages, err);

	if (!rc)
		rc = make_room(show, err);
	if (!rc)
		rc = stages_plan(stages, err);
	if (!rc)
		rc = stages_collect_warnings(stages, stages->env, err);
	if (!rc && show->claims) {
		claim = plan_claim(&stages->plan.nodes[0]);
		json_object_set_new(claim, "by", json_sprintf("role %s", show->role));
		json_array_append_new(show->claims, claim);
	}
	return rc;
}

static int make(struct show *show, const struct run_options *options,
		const struct launch_options *launch, const struct plan_request *plan,
		struct error *err)
{
	struct plan_request request = *plan;
	int rc = plan_network_check(plan, err);

	request.ports = launch->ports ? "" : NULL;
	request.spares = (size_t)options->request.restarts.spares;
	request.single_host = launcher_is_here(launch->launcher);
	show->ports = launch->ports;
	show->stages.verbose = options->verbose;
	if (!rc)
		rc = stages_open(&show->stages, launch, &request, err);
	if (!rc)
		rc = show->stages.this_node ? count_ranks(show, err) : make_plan(show, err);
	return rc;
}

static int environments_json(const struct stages *stages, size_t node, json_t *out,
			     struct error *err)
{
	int rc = 0;

	for (size_t r = 0; !rc && r < stages->plan.nodes[node].rank_count; r++) {
		struct env *changes = NULL;

		rc = stages_environment(stages, node, r, stages->env, &changes, err);
		if (!rc)
			json_array_append_new(out, environment_json(changes));
		env_free(changes);
	}
	return rc;
}

/* berth.dryrun/1 of one program, in *out. */
static int show_json(const struct show *show, json_t **out, struct error *err)
{
	const struct stages *stages = &show->stages;
	const struct plan *plan = &stages->plan;
	json_t *nodes = json_array();
	int rc = 0, ranks = world_size(show);

	for (size_t n = 0; !rc && n < stages->alloc->node_count; n++) {
		json_t *environments = json_array();
		json_t *node = json_pack(
			"{s:o, s:o, s:o}", "node", json_text(stages->alloc->nodes[n].name), "plan",
			has_plan(show) ? plan_node_to_json(&plan->nodes[n]) : json_null(),
			"environments", environments);

		if (has_plan(show))
			rc = environments_json(stages, n, environments, err);
		else
			json_object_set_new(node, "ranks",
					    show->counts ? json_integer(show->counts[n])
							 : json_null());
		json_array_append_new(nodes, node);
	}
	*out = stages_to_json(stages, "berth.dryrun/1",
			      json_pack("{s:o, s:o, s:o, s:b, s:o}", "program",
					json_texts(show->argv), "world_size",
					ranks ? json_integer(ranks) : json_null(), "address",
					json_text(has_plan(show) ? plan->network.address
								 : stages->request.master_addr),
					"guessed", stages->assumed, "nodes", nodes));
	if (*out && show->container->image)
		json_object_set_new(*out, "container",
				    container_to_json(show->container, stages->env));
	if (*out && show->role)
		json_object_set_new(*out, "role", json_string(show->role));
	return rc || *out ? rc : error_memory(err, "the plan");
}

static void print_program(const struct show *show)
{
	char *line = launcher_command_line((char *const *)(uintptr_t)show->argv);

	printf("\n%sProgram%s\n  %s\n", show->stages.paint.bold, show->stages.paint.off,
	       line ? line : show->argv[0]);
	free(line);
	if (show->container->image)
		printf("  in %s%s%s, by %s\n", show->container->image,
		       show->container->pulled_from ? ", pulled from " : "",
		       show->container->pulled_from ? show->container->pulled_from : "",
		       show->container->runtime);
}

static int print_text(const struct show *show, struct error *err)
{
	const struct stages *stages = &show->stages;
	struct cell heading;
	int rc = 0;

	if (show->role)
		printf("\n%sRole %s%s\n", stages->paint.bold, show->role, stages->paint.off);
	show_alloc(stages);
	show_launch(stages, true);
	print_program(show);
	show_network(stages);
	if (has_plan(show)) {
		show_plan(stages, 0, stages->plan.node_count, -1);
		if (stages->plan.nodes[0].rank_count)
			rc = show_environment(stages, 0, 0, NULL, err);
	} else {
		cell(&heading, "%d rank%s", world_size(show), plural((size_t)world_size(show)));
		show_section(&stages->paint, "Plan",
			     world_size(show) ? heading.text
					      : "one rank per GPU, or one per slot on nodes "
						"without GPUs, but not more than cores");
		show_nodes(stages, show->counts);
		show_section(&stages->paint, "Not known here", stages->not_known);
	}
	show_warnings(&stages->paint, stages->warnings);
	return rc;
}

/* ---- several roles ---- */

/* The dry run of each role, and what its job would be. */
struct shows {
	const struct run_options *options;
	const struct run_setup *setup;
	const struct jobs_entry *entries;
	const struct role_rule *rules;
	size_t count;
	struct show shows[ROLES_MAX];
	/* Borrowed by the roles. */
	struct job_request base;
	struct job_sink sinks[ROLES_MAX];
	int restarted[ROLES_MAX];
};

/* A role that takes what is left is the last to plan. */
static int make_all(struct shows *all, json_t *claims, struct error *err)
{
	int rc = 0;

	for (size_t k = 0; !rc && k < 2 * all->count; k++) {
		size_t i = k % all->count;
		const struct jobs_entry *entry = &all->entries[i];
		const struct job_request *request = entry->request;

		if (request->plan.rest != (k >= all->count))
			continue;
		all->shows[i] = (struct show){.argv = request->argv,
					      .container = &request->container,
					      .role = entry->role->name,
					      .claims = entry->role->overlap ? NULL : claims};
		rc = make(&all->shows[i], all->options, request->launch, &request->plan, err);
		if (rc)
			error_prefix(err, "role %s", entry->role->name);
	}
	return rc;
}

/* "at once", "serve (2 of 3), prep's end". */
static const char *starts(const struct shows *all, size_t i, struct cell *out)
{
	*out->text = '\0';
	for (size_t k = 0; k < all->count; k++) {
		const struct role *role = &all->options->roles.roles[k];
		bool ready = role->service || role->ready.text;

		/* Of replicas, the first one stands for all. */
		if (!(all->rules[i].waits >> k & 1))
			continue;
		text_append(out->text, sizeof out->text, "%s%s%s", *out->text ? ", " : "",
			    role->base, ready ? "" : "'s end");
		if (role->need)
			text_append(out->text, sizeof out->text, " (%d of %d)", role->need,
				    role->replicas);
	}
	return *out->text ? out->text : "at once";
}

/* What others have in BERTH_ROLE_NAME_ADDR, as far as the first node alone tells. */
static const char *address_of(const struct shows *all, size_t i, struct cell *out)
{
	const struct alloc *job = &all->setup->alloc;
	const struct stages *stages = &all->shows[i].stages;
	struct plan_network network = {0};
	struct inventory *alike = NULL;

	cell(out, "of %s", stages->alloc->nodes[0].name);
	if (has_plan(&all->shows[i]))
		alike = stages_assume_alike(&stages->inventory, job,
					    launcher_is_here(stages->launcher));
	if (alike && !plan_network(alike, job->node_count, &stages->request, NULL, &network, NULL))
		cell(out, "%s", network.address);
	plan_network_free(&network);
	free(alike);
	return out->text;
}

static void add_row(const struct shows *all, size_t i, struct table *table)
{
	const struct show *show = &all->shows[i];
	const struct job_role *role = all->entries[i].role;
	const struct plan_rank *rank = has_plan(show) ? show->stages.plan.nodes[0].ranks : NULL;
	int per_rank = rank ? (int)rank->gpu_count : show->stages.request.gpus_per_rank;
	char *nodes = alloc_node_list(show->stages.alloc, NULL);
	struct cell start, ranks, gpus, ports, address;

	TABLE_ROW(table, show->role, starts(all, i, &start), nodes ? nodes : "?",
		  world_size(show) ? cell(&ranks, "%d", world_size(show)) : "?",
		  rank || per_rank ? cell(&gpus, "%d", per_rank) : "?",
		  show->ports ? cell(&ports, "1+%d", show->ports) : "1",
		  address_of(all, i, &address),
		  role->ready	  ? role->ready->text
		  : role->service ? "once its ranks run"
				  : "");
	free(nodes);
}

/* What is assumed is the same for all roles. */
static void add_warnings(const struct show *show, json_t *out)
{
	const char *text;
	json_t *warning;
	size_t i;

	json_array_foreach(show->stages.warnings, i, warning)
	{
		struct cell named;

		text = json_string_value(warning);
		stages_warn(out, i || !show->stages.assumed
					 ? cell(&named, "role %s: %s", show->role, text)
					 : text);
	}
}

static void print_roles(const struct shows *all)
{
	bool printed[ROLES_MAX] = {false};
	struct table table = {0};
	const struct paint *paint = &all->shows[0].stages.paint;
	JSON_AUTO warnings = json_array();
	struct stages job = all->shows[0].stages;
	struct cell heading;

	TABLE_ROW(&table, "role", "starts after", "nodes", "ranks", "GPUs", "ports", "address",
		  "ready");
	/* Each after those it waits for, and so in the order of their start. */
	for (size_t turn = 0; turn < all->count; turn++)
		for (size_t i = 0; i < all->count; i++) {
			bool waits = printed[i];

			for (size_t k = 0; k < all->count; k++)
				waits |= !printed[k] &&
					 all->rules[i].waits >> all->rules[k].group & 1;
			if (!waits)
				add_row(all, i, &table);
			printed[i] |= !waits;
		}
	job.alloc = &all->setup->alloc;
	if (all->options->verbose) {
		show_alloc(&job);
		show_launch(&job, true);
	}
	cell(&heading, "%zu node%s, one agent per node with %s", job.alloc->node_count,
	     plural(job.alloc->node_count), job.launcher->name);
	show_section(paint, "Roles", heading.text);
	table_print(&table, paint, 2);
	for (size_t i = 0; i < all->count; i++)
		add_warnings(&all->shows[i], warnings);
	show_warnings(paint, warnings);
	printf("\nAll ranks find role NAME by BERTH_ROLE_NAME_ADDR, _PORT, _NODES, _WORLD_SIZE;\n"
	       "arguments have {NAME.addr} and {NAME.port}. Ports are chosen at the start.\n"
	       "-v adds the ranks of each role.\n");
}

/* Of several roles, text shows a table, and with -v each of them. */
static int show_all(const struct shows *all, struct error *err)
{
	bool json = all->options->json, roles = all->rules;
	JSON_AUTO list = json_array();
	JSON_AUTO out = NULL;
	json_t *one = NULL;
	int rc = 0;

	if (!json)
		printf("berth " BERTH_VERSION ": a dry run, which starts nothing\n");
	if (!json && roles)
		print_roles(all);
	for (size_t i = 0; !rc && i < all->count; i++) {
		if (json)
			rc = show_json(&all->shows[i], &one, err);
		else if (!roles || all->options->verbose)
			rc = print_text(&all->shows[i], err);
		if (json)
			json_array_append_new(list, one);
	}
	if (rc || !json)
		return rc;
	out = roles ? json_pack("{s:s, s:O}", "schema", "berth.dryrun/1", "roles", list)
		    : json_incref(json_array_get(list, 0));
	return out ? json_print(out, stdout, err) : error_memory(err, "the plan");
}

static int open_roles(struct shows *all, struct roles_set **set, struct error *err)
{
	JSON_AUTO claims = json_array();
	int rc;

	all->base = all->options->request.job;
	all->base.launch = &all->setup->launch;
	all->base.plan = all->setup->plan;
	rc = roles_open(all->options->roles.roles, all->options->roles.count, &all->base,
			all->sinks, all->restarted, set, err);
	if (rc)
		return rc;
	all->entries = roles_jobs(*set)->entries;
	all->rules = roles_jobs(*set)->rules;
	all->count = all->options->roles.count;
	return make_all(all, claims, err);
}

int run_dry_run(const struct run_options *options, const struct run_setup *setup, struct error *err)
{
	struct shows *all = calloc(1, sizeof *all);
	struct roles_set *set = NULL;
	int rc;

	if (!all)
		return error_memory(err, "the roles");
	all->options = options;
	all->setup = setup;
	if (options->roles.count) {
		rc = open_roles(all, &set, err);
	} else {
		all->count = 1;
		all->shows[0].argv = run_argv(setup);
		all->shows[0].container = &setup->request->job.container;
		rc = make(&all->shows[0], options, &setup->launch, &setup->plan, err);
	}
	if (!rc)
		rc = show_all(all, err);
	for (size_t i = 0; i < ROLES_MAX; i++) {
		stages_free(&all->shows[i].stages);
		free(all->shows[i].counts);
	}
	free(all);
	roles_close(set);
	return rc;
}
