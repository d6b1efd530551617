/* SPDX-License-Identifier: BSD-3-Clause */
/* berth run as one of several ranks of another launcher: srun -n 8 berth run -- PROGRAM. Eight jobs
 * of eight ranks each are never intended. So each task of srun becomes one rank of eight, as under
 * berth exec; under other launchers, which have commands of their own for that, it is an error. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "base/number.h"
#include "exec/exec.h"
#include "exec/exec_pmix.h"
#include "exec/exec_place.h"
#include "run/run_program.h"

/* The first given option that has an effect only if berth starts all ranks; NULL: none. */
static const char *is_unusable(const struct run_options *options)
{
	const struct {
		bool given;
		const char *name;
	} list[] = {
		{options->roles.count > 0, options->roles.ray ? "--ray" : "--role"},
		{options->request.place.plan.ranks > 0, "--ranks"},
		{options->request.place.plan.ranks_per_node > 0, "--ranks-per-node"},
		{options->request.place.plan.per_node, "--per-node"},
		{options->request.nodes > 0, "--nodes"},
		{options->request.job.container.image != NULL, "--container"},
		{options->request.job.log_dir != NULL, "--log-dir"},
		{options->request.report != NULL, "--report"},
		{options->label, "--label"},
		{options->request.job.pty, "--pty"},
		{options->collapse != RUN_COLLAPSE_AUTO, "--collapse"},
		{options->request.restarts.max_restarts > 0, "--max-restarts"},
		{options->request.requeue, "--requeue"},
		{options->request.job.end.warn_before_ms > 0, "--warn-before"},
		{options->request.job.end.warn_signal > 0, "--warn-signal"},
		{options->request.end_time != NULL, "--end-time"},
	};

	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		if (list[i].given)
			return list[i].name;
	return NULL;
}

/* srun -n 8 --pty bash: only the first task has a terminal, and the shells of the others have
 * ended. In that shell berth run starts all ranks, as in salloc. */
static bool in_terminal_shell(const struct env *env)
{
	const char *port = env_get(env, "SLURM_PTY_PORT"), *rank = env_get(env, "SLURM_PROCID");
	const char *task = env_get(env, "SLURM_TASK_PID");

	return port && *port && rank && !strcmp(rank, "0") && task && atoi(task) != getpid();
}

int run_refuse_nested(const struct run_options *options, const struct env *env, struct error *err)
{
	bool own_program = options->request.own_program;
	struct exec_place outer;
	const char *verb = own_program ? "train" : "run", *what = own_program ? "" : " -- PROGRAM";

	if (options->nested || options->request.dry_run || options->has_node_rank ||
	    !exec_place_outer(env, &outer) ||
	    (!outer.size && (exec_pmix_find(env, &outer, NULL) || outer.size == 1)))
		return 0;
	if (!strcmp(outer.started_by, "berth run"))
		return error_set(err, ERR_USAGE,
				 "this berth %s is one of %d ranks of another berth run, and each "
				 "would start a complete job: omit one of the two. --nested allows "
				 "it",
				 verb, outer.size);
	return error_set(
		err, ERR_USAGE,
		"%s started this berth %s as one of %d ranks, and each would start a complete "
		"job: use berth %s -n %d%s without %s, or put berth %s after %s, so that each "
		"takes its rank. --nested allows it",
		outer.started_by, verb, outer.size, verb, outer.size, what, outer.started_by,
		own_program ? "exec -- berth-train" : "exec -- PROGRAM", outer.started_by);
}

int run_as_task(const struct run_options *options, const struct env *env, int *code,
		struct error *err)
{
	const char *const *argv = options->request.program;
	const char *text = env_get(env, "SLURM_STEP_NUM_TASKS");
	const char *useless = is_unusable(options);
	int tasks;

	if (options->request.launcher || options->has_node_rank ||
	    options->request.place.alloc.hosts || options->request.place.alloc.hostfile ||
	    !slurm_in_step(env) || !text || in_terminal_shell(env))
		return 0;
	if (number_int("SLURM_STEP_NUM_TASKS", text, 1, INT32_MAX, &tasks, err))
		return -err->code;
	if (tasks == 1)
		return 0;
	if (run_asked(&options->request.place.plan, argv).name)
		return error_set(err, ERR_USAGE,
				 "srun started %d tasks of berth run, and each would start all "
				 "ranks of %s: omit srun",
				 tasks, argv[0]);
	if (useless)
		return error_set(err, ERR_USAGE,
				 "srun started berth run as one of %d tasks, so it acts as one "
				 "rank, for which %s has no effect: omit srun, so that berth run "
				 "starts the ranks, or omit %s",
				 tasks, useless, useless);
	const struct exec_request request = {
		.program = (char **)argv,
		.env = options->env,
		.env_count = options->env_count,
		.master_addr = options->request.place.plan.master_addr,
		.port = options->request.place.plan.port,
		.dry_run = options->request.dry_run,
		.gpus_visible_own = options->request.place.plan.gpus_visible_own,
	};

	*code = exec_in_place(&request);
	return 1;
}
