/* SPDX-License-Identifier: BSD-3-Clause */
/* berth info: the values of the stages for this process or job, each choice with its reason. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/slurm.h"
#include "arguments.h"
#include "base/bytes.h"
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
	 ARGUMENTS_FLAG, offsetof(struct info, stages.verbose), .letter = 'v'},
	{0},
};

static const struct arguments_command command = {
	.tables = {{options}, {options_table, offsetof(struct info, options)}},
	.positional = ARGUMENTS_NONE,
	.doc = "Show what berth found and decided for this process or job, and why.\vIn a rank "
	       "that berth started (BERTH_PLAN_FILE is set), it shows that rank's place.",
};

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

/* Inside a rank: read the plan as it was made, and our place in it. */
static int read_rank_plan(struct info *info, struct error *err)
{
	struct plan *plan = &info->stages.plan;
	const char *local = env_get(info->env, "LOCAL_RANK");
	const struct plan_node *node;
	struct idset *cpus;
	JSON_AUTO json = NULL;
	int rc = json_read_file(info->plan_file, PLAN_FILE_MAX, &json, err), count;

	if (!rc)
		rc = plan_file_from_json(json, plan, &info->node_index, err);
	if (rc)
		return error_prefix(err, "BERTH_PLAN_FILE");
	node = &plan->nodes[info->node_index];
	count = (int)node->rank_count;
	if (!local)
		return error_set(err, ERR_DATA,
				 "BERTH_PLAN_FILE is set but LOCAL_RANK is not, although berth "
				 "sets both; unset BERTH_PLAN_FILE to see what berth finds on this "
				 "machine");
	if (number_int("LOCAL_RANK", local, 0, count ? count - 1 : 0, &info->own_local_rank, err))
		return error_prefix(err, "BERTH_PLAN_FILE's plan");
	info->local_rank = (size_t)info->own_local_rank;
	info->own_rank = count ? node->ranks[info->local_rank].rank : -1;
	/* The CPUs that this process may use at this moment. */
	cpus = affinity_get(0);
	info->bound_to = cpus ? idset_format(cpus) : NULL;
	idset_free(cpus);
	return alloc_of_plan(plan, info->node_index, &info->alloc, err);
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
 * any of them shows which is which. rest: what is neither. */
static int environment_inside(struct info *info, struct env *rest, struct error *err)
{
	const struct stages *stages = &info->stages;
	struct env *bare = env_copy(info->env), *names = NULL;
	int rc = bare ? stages_environment(stages, info->node_index, info->local_rank, info->env,
					   &names, err)
		      : error_memory(err, "the environment");

	for (size_t i = 0; !rc && i < env_count(names); i++)
		env_drop(bare, env_at(names, i)->name);
	if (!rc)
		rc = stages_environment(stages, info->node_index, info->local_rank, bare,
					&info->changes, err);
	if (!rc)
		rc = compare_with_berth(info->env, info->changes, rest, err);
	env_free(names);
	env_free(bare);
	return rc;
}

/* Warn a task of srun whose GPUs are hidden from its neighbours. A rank of berth runs in its
 * agent's step. */
static void warn_isolated_gpus(const struct info *info)
{
	const struct alloc *alloc = &info->alloc;
	char text[SLURM_ISOLATION_MAX];

	if (!info->plan_file && alloc->this_node >= 0 &&
	    slurm_gpus_isolated(info->env, alloc->nodes[alloc->this_node].slots, text, sizeof text))
		stages_warn(info->stages.warnings, text);
}

/* The scheduler's GPUs are this node's; on a simulated machine the plan uses all. */
static void warn_simulated(const struct info *info)
{
	const struct alloc *alloc = &info->alloc;
	const struct inventory *inventory = &info->stages.inventory;
	const char *list = env_get(info->env, "CUDA_VISIBLE_DEVICES");
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
	stages_warn(info->stages.warnings, text);
}

/* What other runs of the job use on this node. The plan is that of a run without others. */
static void read_claims(struct info *info, const struct launch_options *launch)
{
	const char *tmpdir = env_get(info->env, "TMPDIR"), *text;
	char scope[256], names[1024], dir[4096];

	text = controller_scope(launch, scope, sizeof scope);
	controller_run_names(launch, names, sizeof names);
	snprintf(dir, sizeof dir, "%s/-", tmpdir ? tmpdir : "/tmp");
	if (text)
		info->claims = claims_read(dir, text, names);
}

/* Read the allocation and, outside a rank, see how berth run would start the agents. A job that no
 * launcher fits is not an error here. */
static int open_stages(struct info *info, struct error *err)
{
	struct plan_request *request = &info->options.plan;
	char path[4096];
	struct launch_options launch = {.alloc = &info->alloc,
					.env = info->env,
					.berth_path = path,
					.node_timeout_ms = NODE_TIMEOUT_MS};
	struct error none = {0};
	int rc = file_find_self(path, sizeof path, err);

	if (!rc && info->plan_file) {
		snprintf(info->dir, sizeof info->dir, "%s", info->plan_file);
		request->dir = dirname(info->dir);
		request->run = env_get(info->env, "BERTH_RUN");
		request->ports = env_get(info->env, "BERTH_PORTS");
	} else if (!rc) {
		launcher_find(NULL, &info->alloc, info->env, &launch.launcher, &none);
	}
	if (!rc)
		rc = stages_open(&info->stages, &launch, request, err);
	if (!rc && launch.launcher)
		read_claims(info, &launch);
	return rc;
}

static int collect_rank(struct info *info, struct error *err)
{
	struct env *rest = env_copy(info->env);
	int rc = rest ? choose_rank(info, err) : error_memory(err, "the environment");
	bool own = info->plan_file && info->local_rank == (size_t)info->own_local_rank;

	if (!rc && own)
		rc = environment_inside(info, rest, err);
	else if (!rc)
		rc = stages_environment(&info->stages, info->node_index, info->local_rank,
					info->env, &info->changes, err);
	warn_simulated(info);
	if (!rc)
		rc = stages_collect_warnings(&info->stages, own || !info->plan_file ? rest : NULL,
					     err);
	env_free(rest);
	return rc;
}

static int collect(struct info *info, struct error *err)
{
	struct stages *stages = &info->stages;
	int rc = stages_read(&info->options.alloc, &info->env, &info->alloc, err);

	if (rc)
		return rc;
	info->plan_file = env_get(info->env, "BERTH_PLAN_FILE");
	if (info->options.plan.ranks || info->options.plan.ranks_per_node)
		info->plan_file = NULL; /* the query is about another job, not the running one */
	if (info->plan_file)
		rc = read_rank_plan(info, err);
	if (!rc)
		rc = open_stages(info, err);
	if (!rc)
		rc = stages_discover(stages, err);
	if (rc)
		return rc;
	warn_isolated_gpus(info);
	info->outside = !info->plan_file && stages->this_node < 0;
	text_append(stages->not_known, sizeof stages->not_known,
		    "; how many ranks would start: berth run --dry-run -- PROGRAM");
	if (info->outside)
		return 0;
	if (!info->plan_file)
		rc = stages_plan(stages, err);
	return rc ? rc : collect_rank(info, err);
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
	const struct plan *plan = &info->stages.plan;
	json_t *inventory = inventory_to_json(&info->stages.inventory), *place = json_null();
	bool outside = info->outside;

	/* Agents send the same object to the controller as berth.card/1. */
	json_object_set_new(inventory, "format", json_string("berth.inventory/1"));
	if (info->plan_file)
		place = json_pack("{s:i, s:i, s:i, s:o}", "rank", info->own_rank, "local_rank",
				  info->own_local_rank, "node_rank", (int)info->node_index,
				  "bound_to", json_text(info->bound_to));
	return stages_to_json(
		&info->stages, "berth.info/1",
		json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:O?}", "version", BERTH_VERSION,
			  "settings", settings_json(info->env), "ranks",
			  outside ? json_null() : json_integer(plan->world_size), "rank", place,
			  "inventory", inventory, "plan",
			  outside ? json_null() : plan_node_to_json(&plan->nodes[info->node_index]),
			  "environment", outside ? json_null() : environment_json(info->changes),
			  "runs", info->claims));
}

int verb_info(int argc, char **argv)
{
	struct info info = {.wanted_rank = -1, .own_rank = -1};
	struct error err = {0};

	arguments_parse(&command, argc, argv, &info);

	int rc = collect(&info, &err);

	if (!rc && !info.json) {
		rc = info_print(&info, &err);
	} else if (!rc) {
		JSON_AUTO json = info_to_json(&info);

		rc = json ? json_print(json, stdout, &err) : error_memory(&err, "berth.info/1");
	}
	free(info.bound_to);
	json_decref(info.claims);
	env_free(info.changes);
	stages_free(&info.stages);
	alloc_free(&info.alloc);
	env_free(info.env);
	return rc ? verb_fail(&err) : 0;
}
