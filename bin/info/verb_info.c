/* SPDX-License-Identifier: BSD-3-Clause */
/* berth info: the values of the stages for this process or job, each choice with its reason. */
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/slurm.h"
#include "arguments.h"
#include "base/file.h"
#include "base/json.h"
#include "base/number.h"
#include "controller/controller.h"
#include "hostlist/affinity.h"
#include "info/info.h"
#include "process/claims.h"
#include "show.h"
#include "verb.h"

#define PLAN_FILE_MAX (256 << 20)

static const struct arguments_option options[] = {
	{.type = ARGUMENTS_GROUP, .group = 1},
	{"json", NULL, "Print one JSON object (berth.info/1) instead of text", ARGUMENTS_FLAG,
	 offsetof(struct info, json), .letter = 'j'},
	{"rank", "R",
	 "Show the environment of rank R (default: this process's, or that of this node's first "
	 "rank)",
	 ARGUMENTS_INT, offsetof(struct info, wanted_rank), 0, INT32_MAX, .letter = 'r'},
	{"verbose", NULL, "Also print the launcher's command line and the environment of a rank",
	 ARGUMENTS_FLAG, offsetof(struct info, verbose), .letter = 'v'},
	{0},
};

static const struct arguments_command command = {
	.tables = {{options}, {options_table, offsetof(struct info, options)}},
	.positional = ARGUMENTS_NONE,
	.doc = "Show what berth found and decided for this process or job, and why.\vIn a rank "
	       "that berth started (BERTH_PLAN_FILE is set), it shows that rank's place.",
};

/* A variable of the ranks' environment as a number; -ERR_DATA when absent or out of range. */
static int rank_variable(const struct env *env, const char *name, size_t limit, size_t *out,
			 struct error *err)
{
	const char *text = env_get(env, name);
	int value;

	if (!text)
		return error_set(err, ERR_DATA,
				 "BERTH_PLAN_FILE is set but %s is not, although berth sets both; "
				 "unset BERTH_PLAN_FILE to see what berth finds on this machine",
				 name);
	if (number_int(name, text, 0, limit ? (int)limit - 1 : 0, &value, err))
		return error_prefix(err, "BERTH_PLAN_FILE's plan");
	*out = (size_t)value;
	return 0;
}

/* This node's part of the allocation, as recorded in the plan of the running job. */
static int alloc_of_plan(const struct plan *plan, size_t node_index, struct alloc *out,
			 struct error *err)
{
	const struct plan_node *node = &plan->nodes[node_index];

	alloc_free(out);
	out->source = ALLOC_FROM_PLAN;
	out->job_id = strdup(plan->job_id ? plan->job_id : "");
	out->end_time = plan->end_time;
	out->nodes = calloc(1, sizeof *out->nodes);
	if (asprintf(&out->why, "BERTH_PLAN_FILE is set: a rank on node %zu of %zu of a berth job",
		     node_index, plan->node_count) < 0)
		out->why = NULL;
	if (!out->job_id || !out->why || !out->nodes)
		return error_memory(err, "the allocation");
	out->node_count = 1;
	out->nodes[0].name = strdup(node->node ? node->node : "");
	out->nodes[0].slots = (int)node->rank_count;
	out->nodes[0].gpus = -1;
	return out->nodes[0].name ? 0 : error_memory(err, "the allocation");
}

/* The CPUs that this process may use at this moment. */
static char *affinity_text(void)
{
	struct idset *ids = affinity_get(0);
	char *text = ids ? idset_format(ids) : NULL;

	idset_free(ids);
	return text;
}

/* Inside a rank: read the plan as it was made, and our place in it. */
static int read_rank_plan(struct info *info, struct error *err)
{
	struct stages *stages = &info->stages;
	JSON_AUTO json = NULL;
	int rc = json_read_file(info->plan_file, PLAN_FILE_MAX, &json, err);

	if (!rc)
		rc = plan_file_from_json(json, &stages->plan, &info->node_index, err);
	if (rc)
		return error_prefix(err, "BERTH_PLAN_FILE");
	rc = rank_variable(stages->env, "LOCAL_RANK",
			   stages->plan.nodes[info->node_index].rank_count, &info->own_local_rank,
			   err);
	if (!rc)
		rc = alloc_of_plan(&stages->plan, info->node_index, &stages->alloc, err);
	if (rc)
		return rc;
	info->local_rank = info->own_local_rank;
	info->bound_to = affinity_text();
	return 0;
}

/* How berth run would start the agents. A job that no launcher fits is not an error here. */
static int find_launcher(struct info *info, struct error *err)
{
	struct stages *stages = &info->stages;
	char path[4096];
	struct launch_options launch = {.alloc = &stages->alloc,
					.env = stages->env,
					.berth_path = path,
					.node_timeout_ms = NODE_TIMEOUT_MS};
	struct error none = {0};
	int rc = file_find_self(path, sizeof path, err);

	if (rc || launcher_find(NULL, &stages->alloc, stages->env, &launch.launcher, &none))
		return rc;
	info->launcher = launch.launcher;
	info->launcher_line = launcher_sample_line(&launch);
	return info->launcher_line ? 0 : error_memory(err, "the launcher's command line");
}

const char *info_not_known(const struct info *info, char out[INFO_NOT_KNOWN_MAX])
{
	snprintf(
		out, INFO_NOT_KNOWN_MAX,
		"this machine is not one of the job's nodes, and the nodes are examined when a job "
		"starts: their cores, GPUs and NICs, the rendezvous address, the ranks. To see "
		"them: berth run --per-node -- berth info; how many ranks would start: berth run "
		"--dry-run -- PROGRAM");
	return out;
}

static int choose_rank(struct info *info, struct error *err)
{
	const struct plan_node *node = &info->stages.plan.nodes[info->node_index];

	if (!node->rank_count)
		return error_set(err, ERR_DATA, "the plan has no rank on %s", node->node);
	if (info->wanted_rank < 0)
		return 0;
	for (size_t i = 0; i < node->rank_count; i++)
		if (node->ranks[i].rank == info->wanted_rank) {
			info->local_rank = i;
			return 0;
		}
	return error_set(err, ERR_USAGE, "--rank %d: %s has ranks %d to %d", info->wanted_rank,
			 node->node, node->ranks[0].rank, node->ranks[node->rank_count - 1].rank);
}

static int environment_of(const struct info *info, size_t local_rank, const struct env *env,
			  struct env **out, struct error *err)
{
	struct plan_request request = info->options.plan;
	char dir[PATH_MAX];

	if (info->plan_file) {
		snprintf(dir, sizeof dir, "%s", info->plan_file);
		request.dir = dirname(dir);
		request.run = env_get(info->stages.env, "BERTH_RUN");
		request.ports = env_get(info->stages.env, "BERTH_PORTS");
	}
	return plan_environment(&info->stages.plan, &info->stages.inventory, info->node_index,
				local_rank, &request, env, out, err);
}

/* In own (what berth itself would choose), replace values that differ in the environment: they are
 * not berth's. Remove berth's values from rest. */
static int compare_with_berth(const struct env *env, struct env *own, struct env *rest,
			      struct error *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < env_count(own); i++) {
		const struct env_var *var = env_at(own, i);
		const char *now = env_get(env, var->name);
		char name[256], why[512];

		snprintf(name, sizeof name, "%s", var->name);
		if (!now == !var->value && (!now || !strcmp(now, var->value))) {
			env_drop(rest, name);
			continue;
		}
		snprintf(why, sizeof why, "set by the user or the program; berth would set %s",
			 var->value ? var->value : "to remove it");
		rc = env_set(own, name, now, ENV_FROM_USER, why, err);
	}
	return rc;
}

/* A rank's environment contains both berth's values and the user's. What berth would choose without
 * any of them shows which is which. */
static int environment_inside(struct info *info, struct error *err)
{
	const struct env *env = info->stages.env;
	struct env *bare = env_copy(env), *rest = env_copy(env);
	struct env *names = NULL, *own = NULL;
	int rc = bare && rest ? environment_of(info, info->local_rank, env, &names, err)
			      : error_memory(err, "the environment");

	for (size_t i = 0; !rc && i < env_count(names); i++)
		env_drop(bare, env_at(names, i)->name);
	if (!rc)
		rc = environment_of(info, info->local_rank, bare, &own, err);
	if (!rc)
		rc = compare_with_berth(env, own, rest, err);
	if (!rc && !(info->stages.lint = plan_lint(rest, &info->stages.inventory, 1)))
		rc = error_memory(err, "the warnings");
	env_free(names);
	env_free(bare);
	env_free(rest);
	info->changes = own; /* info frees it in any case */
	return rc;
}

static int make_environment(struct info *info, struct error *err)
{
	const struct plan_node *node = &info->stages.plan.nodes[info->node_index];
	bool own = info->plan_file && info->local_rank == info->own_local_rank;
	int rc =
		own ? environment_inside(info, err)
		    : environment_of(info, info->local_rank, info->stages.env, &info->changes, err);

	if (rc || own || node->rank_count < 2)
		return rc;
	return environment_of(info, info->local_rank ? 0 : 1, info->stages.env, &info->other, err);
}

/* Once each; what does not fit into memory is noticed at the end of collect_warnings. */
static void warn(struct info *info, const char *text)
{
	size_t i;
	json_t *seen;

	if (!text)
		return;
	json_array_foreach(info->warnings, i, seen)
	{
		if (!strcmp(json_string_value(seen), text))
			return;
	}
	info->warnings_missing |= json_array_append_new(info->warnings, json_text(text)) != 0;
}

/* Warn a task of srun whose GPUs are hidden from its neighbours. A rank of berth runs in its
 * agent's step. */
static void warn_isolated_gpus(struct info *info)
{
	const struct alloc *alloc = &info->stages.alloc;
	char text[SLURM_ISOLATION_MAX];

	if (!info->plan_file && alloc->this_node >= 0 &&
	    slurm_gpus_isolated(info->stages.env, alloc->nodes[alloc->this_node].slots, text,
				sizeof text))
		warn(info, text);
}

/* The scheduler's GPUs are this node's; on a simulated machine the plan uses all. */
static void warn_simulated(struct info *info)
{
	const struct alloc *alloc = &info->stages.alloc;
	const struct inventory *inventory = &info->stages.inventory;
	const char *list = env_get(info->stages.env, "CUDA_VISIBLE_DEVICES");
	int granted = alloc->this_node < 0 ? -1 : alloc->nodes[alloc->this_node].gpus;
	char text[500], by[160] = "";

	if (info->plan_file || inventory->this_system || granted < 0 ||
	    (size_t)granted == inventory->gpu_count)
		return;
	if (list)
		snprintf(by, sizeof by, " (CUDA_VISIBLE_DEVICES is '%.80s')", list);
	snprintf(text, sizeof text,
		 "GPUs granted here: %d%s, but the plan uses all %zu GPUs of the machine in "
		 "BERTH_TOPOLOGY, because the grant applies to this node; unset BERTH_TOPOLOGY to "
		 "plan for the granted GPUs",
		 granted, by, inventory->gpu_count);
	warn(info, text);
}

static int collect_warnings(struct info *info, struct error *err)
{
	const struct stages *stages = &info->stages;
	const struct plan_node *node = info->outside ? NULL : &stages->plan.nodes[info->node_index];
	char text[160];

	info->warnings = json_array();
	info->warnings_missing = !info->warnings;
	if (stages->assumed)
		warn(info, "berth examined only this node and assumes that the others are like it; "
			   "it tests which address all nodes reach when the ranks start; run "
			   "'berth run --per-node -- berth info' in the job to see each node");
	if (info->omitted_nodes) {
		snprintf(text, sizeof text,
			 "more nodes in the allocation, not in this plan: %zu; berth info examines "
			 "only the node where it runs",
			 info->omitted_nodes);
		warn(info, text);
	}
	warn_isolated_gpus(info);
	if (!info->outside)
		warn_simulated(info);
	for (size_t i = 0; i < stages->plan.warning_count; i++)
		warn(info, stages->plan.warnings[i]);
	for (size_t i = 0; node && i < node->warning_count; i++)
		warn(info, node->warnings[i]);
	for (size_t i = 0; i < json_array_size(stages->lint); i++)
		warn(info, json_string_value(json_array_get(stages->lint, i)));
	return info->warnings_missing ? error_memory(err, "the warnings") : 0;
}

/* What other runs of the job use on this node. The plan is that of a run without others. */
static void read_claims(struct info *info)
{
	const struct launch_options launch = {
		.alloc = &info->stages.alloc, .env = info->stages.env, .launcher = info->launcher};
	const char *tmpdir = env_get(info->stages.env, "TMPDIR"), *text;
	char scope[256], names[1024], dir[4096];

	text = controller_scope(&launch, scope, sizeof scope);
	controller_run_names(&launch, names, sizeof names);
	snprintf(dir, sizeof dir, "%s/-", tmpdir ? tmpdir : "/tmp");
	if (text)
		info->claims = claims_read(dir, text, names);
}

static int collect(struct info *info, struct error *err)
{
	int rc = stages_load(&info->options, &info->stages, err);

	if (rc)
		return rc;
	info->plan_file = env_get(info->stages.env, "BERTH_PLAN_FILE");
	if (info->options.plan.ranks || info->options.plan.ranks_per_node)
		info->plan_file = NULL; /* the query is about another job, not the running one */
	info->outside = !info->plan_file && info->stages.alloc.this_node < 0 &&
			info->stages.alloc.source == ALLOC_FROM_SLURM;
	if (info->plan_file)
		rc = read_rank_plan(info, err);
	else
		rc = find_launcher(info, err);
	if (!rc && info->launcher)
		read_claims(info);
	if (!rc && info->outside)
		return collect_warnings(info, err);
	if (!rc && !info->plan_file) {
		rc = stages_plan(&info->options.plan, &info->stages, err);
		if (!info->stages.assumed)
			info->omitted_nodes = info->stages.alloc.node_count - 1;
	}
	if (!rc)
		rc = choose_rank(info, err);
	if (!rc)
		rc = make_environment(info, err);
	return rc ? rc : collect_warnings(info, err);
}

/* This process's place, or null if it is no rank. */
static json_t *place_json(const struct info *info)
{
	if (!info->plan_file)
		return json_null();

	const struct plan_node *node = &info->stages.plan.nodes[info->node_index];

	return json_pack("{s:i, s:i, s:i, s:o}", "rank", node->ranks[info->own_local_rank].rank,
			 "local_rank", (int)info->own_local_rank, "node_rank",
			 (int)info->node_index, "bound_to", json_text(info->bound_to));
}

/* The object that agents send to the controller as berth.card/1, under the name of the public
 * document. */
static json_t *inventory_json(const struct inventory *inventory)
{
	json_t *json = inventory_to_json(inventory);

	if (json)
		json_object_set_new(json, "format", json_string("berth.inventory/1"));
	return json;
}

/* What the files of the site and the user set. */
static json_t *settings_json(const struct env *env)
{
	json_t *list = json_array();

	for (size_t i = 0; i < env_count(env); i++) {
		const struct env_var *var = env_at(env, i);

		if (var->from == ENV_FROM_SITE)
			json_array_append_new(list,
					      json_pack("{s:s, s:s, s:s}", "name", var->name,
							"value", var->value, "file", var->why));
	}
	return list;
}

/* berth.info/1. A new reference; NULL if memory is out. */
static json_t *info_to_json(const struct info *info)
{
	const struct stages *stages = &info->stages;
	bool outside = info->outside;
	char why[INFO_NOT_KNOWN_MAX];

	return json_pack(
		"{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:O?, s:O}",
		"schema", "berth.info/1", "version", BERTH_VERSION, "alloc",
		alloc_to_json(&stages->alloc), "launcher",
		json_text(info->launcher ? info->launcher->name : NULL), "line",
		json_text(info->launcher_line), "settings", settings_json(stages->env), "ranks",
		outside ? json_null() : json_integer(stages->plan.world_size), "rank",
		place_json(info), "inventory", inventory_json(&stages->inventory), "network",
		outside ? json_null() : plan_network_to_json(&stages->plan.network), "plan",
		outside ? json_null() : plan_node_to_json(&stages->plan.nodes[info->node_index]),
		"environment", outside ? json_null() : environment_json(info->changes), "not_known",
		json_text(outside ? info_not_known(info, why) : NULL), "runs", info->claims,
		"warnings", info->warnings);
}

static int show(const struct info *info, struct error *err)
{
	if (info->json) {
		JSON_AUTO json = info_to_json(info);

		return json ? json_print(json, stdout, err) : error_memory(err, "berth.info/1");
	}

	struct paint paint;

	paint_init(info->stages.env, &paint);
	info_print(info, &paint);
	return 0;
}

int verb_info(int argc, char **argv)
{
	struct info info = {.wanted_rank = -1};
	struct error err = {0};

	arguments_parse(&command, argc, argv, &info);

	int rc = collect(&info, &err);

	if (!rc)
		rc = show(&info, &err);
	free(info.bound_to);
	free(info.launcher_line);
	json_decref(info.claims);
	json_decref(info.warnings);
	env_free(info.changes);
	env_free(info.other);
	stages_free(&info.stages);
	return rc ? verb_fail(&err) : 0;
}
