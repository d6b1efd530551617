/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run --dry-run: the launcher's line, the ranks, their cores, GPUs and environment, each with
 * where it comes from. Nothing is started and no port is taken. The first node's inventory decides
 * much of it: elsewhere (salloc's shell on a login node) what is not known is reported, never made
 * up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "inventory/inventory.h"
#include "launch/launcher.h"
#include "plan/plan.h"
#include "run/run_program.h"
#include "show.h"
#include "stages.h"
#include "table.h"

/* What is shown: the plan as it would be, with this machine, the first node, standing for nodes not
 * asked. */
struct show {
	const struct run_options *options;
	const struct run_setup *setup;
	const char *const *argv;
	const struct container *container; /* image NULL: none */
	struct plan_request request;
	bool has_plan; /* this machine is the first node: there is a plan */
	int *counts;   /* without a plan: ranks of each node, from the allocation; NULL: unknown */
	struct inventory own;	       /* this machine */
	struct inventory *inventories; /* of each node, all like own */
	struct plan plan;
	char *command_line;
	bool assumed; /* other nodes are taken to be like this one */
	/* Several roles: this one's name, and what those that plan before it use, to which it adds
	 * its own; NULL: there is one program, or it claims nothing. */
	const char *role;
	json_t *claims;
};

static bool is_first_node(const struct run_setup *setup)
{
	const struct alloc *alloc = &setup->alloc;

	if (launcher_is_here(setup->launch.launcher) || alloc->this_node >= 0 ||
	    alloc->source == ALLOC_FROM_SLURM)
		return launcher_is_here(setup->launch.launcher) || !alloc->this_node;
	return launcher_is_this_host(alloc->nodes[0].name);
}

static int load_inventories(struct show *show, struct error *err)
{
	const struct alloc *alloc = &show->setup->alloc;
	const struct inventory_source source = {0};
	bool single_host = launcher_is_here(show->setup->launch.launcher);
	int rc = inventory_discover_from_env(&source, show->setup->env, &show->own, err);

	if (rc)
		return rc;
	show->assumed = alloc->node_count > 1 && !single_host;
	show->inventories = stages_assume_alike(&show->own, alloc, single_host);
	return show->inventories ? 0 : error_memory(err, "the inventories");
}

/* Count each node's ranks if that does not depend on the nodes' inventories, or if the scheduler
 * granted GPUs, which serve as well.
 */
static int count_ranks(struct show *show, struct error *err)
{
	const struct alloc *alloc = &show->setup->alloc;
	const struct plan_request *request = &show->request;
	struct inventory *inventories = calloc(alloc->node_count, sizeof *inventories);
	bool known = true;
	int rc;

	show->counts = calloc(alloc->node_count, sizeof *show->counts);
	rc = inventories && show->counts ? 0 : error_memory(err, "the rank counts of the nodes");
	for (size_t i = 0; !rc && i < alloc->node_count; i++) {
		int gpus = alloc->nodes[i].gpus;

		known &= request->ranks_per_node || request->per_node || gpus > 0 ||
			 (request->ranks && alloc->node_count == 1);
		inventories[i].gpus =
			gpus > 0 ? calloc((size_t)gpus, sizeof *inventories[i].gpus) : NULL;
		for (; inventories[i].gpus && inventories[i].gpu_count < (size_t)gpus;
		     inventories[i].gpu_count++)
			inventories[i].gpus[inventories[i].gpu_count].allowed = true;
	}
	if (!rc)
		rc = plan_rank_counts(alloc, inventories, alloc->node_count, request, show->counts,
				      err);
	for (size_t i = 0; inventories && i < alloc->node_count; i++)
		free(inventories[i].gpus);
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

	if (show->has_plan)
		return show->plan.world_size;
	for (size_t i = 0; show->counts && i < show->setup->alloc.node_count; i++)
		sum += show->counts[i];
	return show->counts ? sum : show->request.ranks;
}

/* Leave out what the roles before this one use, if all are on one node: on several, roles have
 * disjoint nodes. */
static int make_room(const struct show *show, struct error *err)
{
	struct plan_fit fit;
	int rc;

	if (show->setup->alloc.node_count > 1)
		return 0;
	rc = plan_apply_claims(&show->inventories[0], show->claims, err);
	if (rc)
		return rc;
	fit = plan_fit(&show->setup->alloc, show->inventories, 1, &show->request);
	return plan_refuse_sharing(&fit, err);
}

static int make(struct show *show, struct error *err)
{
	const struct run_setup *setup = show->setup;
	int rc;

	show->request = setup->plan;
	show->request.ports = setup->launch.ports ? "" : NULL;
	show->request.spares = (size_t)setup->request->restarts.spares;
	show->request.single_host = launcher_is_here(setup->launch.launcher);
	show->has_plan = is_first_node(setup);
	rc = plan_network_check(&show->request, err);
	if (!rc)
		rc = show->has_plan ? load_inventories(show, err) : count_ranks(show, err);
	if (!rc && show->claims && show->has_plan)
		rc = make_room(show, err);
	if (!rc && show->has_plan)
		rc = plan_make(&setup->alloc, show->inventories, setup->alloc.node_count,
			       &show->request, NULL, setup->env, &show->plan, err);
	if (!rc && !(show->command_line = launcher_sample_line(&setup->launch)))
		rc = error_memory(err, "the launcher's command line");
	if (!rc && show->claims && show->has_plan) {
		json_t *claim = plan_claim(&show->plan.nodes[0]);

		json_object_set_new(claim, "by", json_sprintf("role %s", show->role));
		json_array_append_new(show->claims, claim);
	}
	return rc;
}

static int environment_of(const struct show *show, size_t node, size_t local_rank, struct env **out,
			  struct error *err)
{
	return plan_environment(&show->plan, &show->inventories[node], node, local_rank,
				&show->request, show->setup->env, out, err);
}

#define UNKNOWN_MAX 400

/* Explain why there is no plan to show, and how to see it. */
static const char *why_no_plan(const struct show *show, char out[UNKNOWN_MAX])
{
	snprintf(out, UNKNOWN_MAX,
		 "planned on %.80s, the first node, not on this machine: the ranks' cores, GPUs, "
		 "NICs, rendezvous address and environment; --dry-run starts nothing. To see them, "
		 "run berth info as the program: berth run [the same options] -- berth info",
		 show->setup->alloc.nodes[0].name);
	return out;
}

static int print_json(const struct show *show, json_t *roles, struct error *err)
{
	JSON_AUTO out = NULL;
	json_t *nodes = json_array();
	const struct alloc *alloc = &show->setup->alloc;
	int rc = 0, ranks = world_size(show);
	char why[UNKNOWN_MAX];

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
	for (size_t n = 0; !show->has_plan && n < alloc->node_count; n++)
		json_array_append_new(
			nodes,
			json_pack("{s:o, s:n, s:[], s:o}", "node", json_text(alloc->nodes[n].name),
				  "plan", "environments", "ranks",
				  show->counts ? json_integer(show->counts[n]) : json_null()));
	out = json_pack(
		"{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:b, s:o, s:o}", "schema", "berth.dryrun/1",
		"launcher", show->setup->launch.launcher->name, "line", show->command_line, "alloc",
		alloc_to_json(alloc), "program", json_texts(show->argv), "world_size",
		ranks ? json_integer(ranks) : json_null(), "address",
		json_text(show->has_plan ? show->plan.network.address : show->request.master_addr),
		"guessed", show->assumed, "nodes", nodes, "not_known",
		json_text(show->has_plan ? NULL : why_no_plan(show, why)));
	if (out && show->container->image)
		json_object_set_new(out, "container",
				    container_to_json(show->container, show->setup->env));
	if (rc)
		return rc;
	if (out && show->role) {
		json_object_set_new(out, "role", json_string(show->role));
		return json_array_append(roles, out) ? error_memory(err, "the plan") : 0;
	}
	return out ? json_print(out, stdout, err) : error_memory(err, "the plan");
}

static int print_environment(const struct show *show, const struct paint *paint, struct error *err)
{
	struct env *changes = NULL;
	int rc = environment_of(show, 0, 0, &changes, err);

	if (!rc)
		show_environment(changes, NULL, paint);
	env_free(changes);
	return rc;
}

static void print_program(const struct show *show, const struct paint *paint)
{
	char *line = launcher_command_line((char *const *)(uintptr_t)show->argv);

	printf("%sprogram%s  %s\n", paint->bold, paint->off, line ? line : show->argv[0]);
	free(line);
	if (show->container->image)
		printf("%sin%s       %s%s%s, by %s\n", paint->bold, paint->off,
		       show->container->image, show->container->pulled_from ? ", pulled from " : "",
		       show->container->pulled_from ? show->container->pulled_from : "",
		       show->container->runtime);
}

/* Not on the first node: print only what follows from the allocation and the options. */
static void print_without_plan(const struct show *show, const struct paint *paint)
{
	const struct alloc *alloc = &show->setup->alloc;
	const struct plan_request *request = &show->request;
	const char *requested[] = {request->master_addr, request->iface, request->subnet};
	static const char *const by[] = {"--master-addr", "--iface", "--subnet"};
	char why[UNKNOWN_MAX];

	printf("%saddress%s  ", paint->bold, paint->off);
	for (size_t i = 0; i < 3; i++)
		if (requested[i])
			printf("%s %s, ", by[i], requested[i]);
	printf("an address of %s%s\n", alloc->nodes[0].name,
	       alloc->node_count > 1 ? " that all nodes reach" : ", loopback by default");
	print_program(show, paint);
	printf("\n%sranks%s    ", paint->bold, paint->off);
	if (world_size(show))
		printf("%d\n", world_size(show));
	else
		printf("one per GPU, or one per slot on nodes without GPUs, but not more than "
		       "cores\n");
	show_nodes(alloc, show->counts, paint);
	printf("\n%snot known%s ", paint->warn, paint->off);
	text_wrap(why_no_plan(show, why), 10, paint->width);
}

/* srun's line has a script of many words. */
static void print_job(const struct show *show, const struct alloc *alloc, const struct paint *paint)
{
	const char *script = strstr(show->command_line, " sh -c '");
	bool cut = script && !show->options->verbose;

	printf("%sagents%s   %s: %.*s%s\n", paint->bold, paint->off,
	       show->setup->launch.launcher->name,
	       cut ? (int)(script - show->command_line) : (int)strlen(show->command_line),
	       show->command_line, cut ? " sh -c ... berth agent (-v: all of it)" : "");
	printf("%snodes%s    %zu (%s)%s\n", paint->bold, paint->off, alloc->node_count, alloc->why,
	       show->assumed ? "; assumes that the other nodes are like this one" : "");
}

static int print_text(const struct show *show, struct error *err)
{
	struct paint paint;

	paint_init(show->setup->env, &paint);
	if (show->role)
		printf("%srole%s     %s\n", paint.bold, paint.off, show->role);
	print_job(show, &show->setup->alloc, &paint);
	if (!show->has_plan) {
		print_without_plan(show, &paint);
		return 0;
	}
	printf("%saddress%s  %s%s%s\n", paint.bold, paint.off, show->plan.network.address,
	       show->plan.network.why ? ": " : "",
	       show->plan.network.why ? show->plan.network.why : "");
	print_program(show, &paint);
	printf("\n%sranks%s    %d\n", paint.bold, paint.off, show->plan.world_size);
	show_ranks(show->plan.nodes, show->plan.node_count, -1, &paint);
	for (size_t i = 0; i < show->plan.warning_count; i++)
		printf("%swarning%s  %s\n", paint.warn, paint.off, show->plan.warnings[i]);
	printf("\n%senvironment of rank 0%s (the other ranks have other numbers)\n", paint.bold,
	       paint.off);
	return print_environment(show, &paint, err);
}

static void free_show(struct show *show)
{
	plan_free(&show->plan);
	free(show->inventories);
	inventory_free(&show->own);
	free(show->counts);
	free(show->command_line);
}

static int show_program(const struct run_options *options, const struct run_setup *setup,
			struct error *err)
{
	struct show show = {.options = options,
			    .setup = setup,
			    .argv = run_argv(setup),
			    .container = &setup->request->job.container};
	int rc = make(&show, err);

	if (!rc)
		rc = options->json ? print_json(&show, NULL, err) : print_text(&show, err);
	free_show(&show);
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
	struct run_setup setups[ROLES_MAX];
	struct show shows[ROLES_MAX];
};

/* A role that takes what is left is the last to plan. */
static int make_all(struct shows *all, json_t *claims, struct error *err)
{
	int rc = 0;

	for (size_t k = 0; !rc && k < 2 * all->count; k++) {
		size_t i = k % all->count;
		const struct jobs_entry *entry = &all->entries[i];
		const struct job_request *request = entry->request;
		struct run_setup *own = &all->setups[i];

		if (request->plan.rest != (k >= all->count))
			continue;
		*own = *all->setup;
		own->alloc = *request->launch->alloc;
		own->env = (struct env *)(uintptr_t)request->launch->env;
		own->launch = *request->launch;
		own->plan = request->plan;
		all->shows[i] = (struct show){.options = all->options,
					      .setup = own,
					      .argv = request->argv,
					      .container = &request->container,
					      .role = entry->role->name,
					      .claims = entry->role->overlap ? NULL : claims};
		rc = make(&all->shows[i], err);
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
	const struct show *show = &all->shows[i];
	bool single_host = launcher_is_here(show->setup->launch.launcher);
	struct plan_network network = {0};
	struct inventory *alike;

	cell(out, "of %s", show->setup->alloc.nodes[0].name);
	alike = show->has_plan ? stages_assume_alike(&show->own, job, single_host) : NULL;
	if (alike && !plan_network(alike, job->node_count, &show->request, NULL, &network, NULL))
		cell(out, "%s", network.address);
	plan_network_free(&network);
	free(alike);
	return out->text;
}

static void add_row(const struct shows *all, size_t i, struct table *table)
{
	const struct show *show = &all->shows[i];
	const struct job_role *role = all->entries[i].role;
	const struct plan_rank *rank = show->has_plan ? show->plan.nodes[0].ranks : NULL;
	int per_rank = rank ? (int)rank->gpu_count : show->request.gpus_per_rank;
	char *nodes = alloc_node_list(&show->setup->alloc, NULL);
	struct cell start, ranks, gpus, ports, address;

	TABLE_ROW(table, show->role, starts(all, i, &start), nodes ? nodes : "?",
		  world_size(show) ? cell(&ranks, "%d", world_size(show)) : "?",
		  rank || per_rank ? cell(&gpus, "%d", per_rank) : "?",
		  show->setup->launch.ports ? cell(&ports, "1+%d", show->setup->launch.ports) : "1",
		  address_of(all, i, &address),
		  role->ready	  ? role->ready->text
		  : role->service ? "once its ranks run"
				  : "");
	free(nodes);
}

static void print_roles(const struct shows *all)
{
	bool printed[ROLES_MAX] = {false};
	struct table table = {0};
	struct paint paint;

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
	paint_init(all->setup->env, &paint);
	print_job(&all->shows[0], &all->setup->alloc, &paint);
	printf("\n");
	table_print(&table, &paint, 2);
	for (size_t i = 0; i < all->count; i++)
		for (size_t w = 0; w < all->shows[i].plan.warning_count; w++)
			printf("%swarning%s  role %s: %s\n", paint.warn, paint.off,
			       all->shows[i].role, all->shows[i].plan.warnings[w]);
	printf("\nAll ranks find role NAME by BERTH_ROLE_NAME_ADDR, _PORT, _NODES, _WORLD_SIZE;\n"
	       "arguments have {NAME.addr} and {NAME.port}. Ports are chosen at the start.\n"
	       "-v adds the ranks of each role.\n");
}

static int show_roles(const struct run_options *options, const struct run_setup *setup,
		      struct error *err)
{
	struct job_request base = options->request.job;
	struct job_sink sinks[ROLES_MAX] = {{0}};
	struct shows *all = calloc(1, sizeof *all);
	struct roles_set *set = NULL;
	JSON_AUTO claims = json_array();
	JSON_AUTO out = NULL;
	json_t *roles = json_array();
	int rc = all ? 0 : error_memory(err, "the roles");

	base.launch = &setup->launch;
	base.plan = setup->plan;
	if (!rc)
		rc = roles_open(options->roles.roles, options->roles.count, &base, sinks,
				(int[ROLES_MAX]){0}, &set, err);
	if (!rc) {
		*all = (struct shows){.options = options,
				      .setup = setup,
				      .entries = roles_jobs(set)->entries,
				      .rules = roles_jobs(set)->rules,
				      .count = options->roles.count};
		rc = make_all(all, claims, err);
	}
	if (!rc && !options->json)
		print_roles(all);
	for (size_t i = 0; all && i < all->count; i++) {
		if (!rc && options->json)
			rc = print_json(&all->shows[i], roles, err);
		else if (!rc && options->verbose && putchar('\n'))
			rc = print_text(&all->shows[i], err);
		free_show(&all->shows[i]);
	}
	free(all);
	roles_close(set);
	out = json_pack("{s:s, s:o}", "schema", "berth.dryrun/1", "roles", roles);
	if (rc || !options->json)
		return rc;
	return out ? json_print(out, stdout, err) : error_memory(err, "the plan");
}

int run_dry_run(const struct run_options *options, const struct run_setup *setup, struct error *err)
{
	return options->roles.count ? show_roles(options, setup, err)
				    : show_program(options, setup, err);
}
