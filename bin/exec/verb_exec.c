/* SPDX-License-Identifier: BSD-3-Clause */
/* berth exec: runs between another launcher and its program. It computes this rank's part of the
 * node, adds missing variables to the environment, binds, and executes the program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "arguments.h"
#include "base/log.h"
#include "exec/exec.h"
#include "exec/exec_address.h"
#include "exec/exec_place.h"
#include "exec/exec_pmix.h"
#include "hostlist/affinity.h"
#include "options.h"
#include "plan/plan.h"
#include "submit/submit.h"
#include "verb.h"

struct exec {
	const struct exec_request *request;
	struct env *env;
	struct exec_place place;
	pid_t launcher_pid; /* 0: not found */
	struct inventory inventory;
	struct plan_request plan_request;
	struct plan plan;
	struct env *changes;
	struct plan_rank *rank; /* in plan */
};

#define EXEC(member) offsetof(struct exec_request, member)

static const struct arguments_option options[] = {
	{"keep-binding", NULL,
	 "Keep the launcher's binding to cores (default: berth's plan replaces it)", ARGUMENTS_FLAG,
	 EXEC(keep_binding)},
	{"gpus-visible", "all|own",
	 "GPUs that a rank sees: all of the plan (default), or its own only", ARGUMENTS_BOOL,
	 EXEC(gpus_visible_own), 1},
	{"master-addr", "ADDRESS|none",
	 "Set MASTER_ADDR, the address of rank 0's node, the same for all ranks; none: PROGRAM "
	 "needs neither it nor MASTER_PORT, like MPI programs",
	 ARGUMENTS_TEXT, EXEC(master_addr)},
	{"port", "PORT", "Set MASTER_PORT (default: derived from the job's name; rank 0 tests it)",
	 ARGUMENTS_INT, EXEC(port), 1, 65535},
	{"dry-run", NULL, "Show what this rank would get; run nothing", ARGUMENTS_FLAG,
	 EXEC(dry_run)},
	{0},
};

/* ---- the plan ---- */

/* mpirun binds each rank to a core of its own; seen from there the node would have one core. So use
 * what the launcher itself may use, which is what it was given: a taskset around it still holds,
 * and the kernel reduces it to what the cgroup allows. If the launcher does not bind, only the user
 * does. */
static void widen_affinity(const struct exec *exec)
{
	bool widen = exec->place.binds && exec->launcher_pid;
	struct idset *own = widen ? affinity_get(0) : NULL;
	struct idset *theirs = widen ? affinity_get(exec->launcher_pid) : NULL;

	if (own && theirs && !idset_unite(own, theirs))
		(void)!affinity_set(own);
	idset_free(own);
	idset_free(theirs);
}

/* Make the plan of a job that consists of this node alone, and give it the numbers that the
 * launcher's job has. */
static int make_plan(struct exec *exec, struct error *err)
{
	struct alloc_node node = {
		.name = exec->inventory.node, .slots = exec->place.local_size, .gpus = -1};
	char job[] = "";
	struct alloc alloc = {
		.source = ALLOC_FROM_LAUNCHER, .job_id = job, .node_count = 1, .nodes = &node};

	exec->plan_request =
		(struct plan_request){.ranks = exec->place.local_size,
				      .gpus_visible_own = exec->request->gpus_visible_own,
				      .outer = exec->place.started_by};
	int rc = plan_make(&alloc, &exec->inventory, 1, &exec->plan_request, NULL, exec->env,
			   &exec->plan, err);

	if (rc)
		return rc;
	exec->plan.world_size = exec->place.size;
	exec->plan.nodes[0].node_rank = (size_t)exec->place.node_rank;
	exec->rank = &exec->plan.nodes[0].ranks[exec->place.local_rank];
	exec->rank->rank = exec->place.rank;
	return 0;
}

static int make_changes(struct exec *exec, struct error *err)
{
	const struct exec_place *place = &exec->place;
	const struct exec_rendezvous rendezvous = {
		.master_addr = exec->request->master_addr,
		.port = exec->request->port,
		.loopback = exec->plan.network.address,
		.launcher_pid = exec->launcher_pid ? exec->launcher_pid : getppid(),
	};
	int rc = plan_environment(&exec->plan, &exec->inventory, 0, (size_t)place->local_rank,
				  &exec->plan_request, exec->env, &exec->changes, err);

	return rc ? rc : exec_address_add(place, &rendezvous, exec->env, exec->changes, err);
}

/* ---- bind and become the program ---- */

static int bind_rank(const struct exec *exec, struct error *err)
{
	char note[AFFINITY_NOTE_MAX];
	int rc = affinity_bind(exec->place.rank, exec->rank->cpus_os, note, sizeof note);

	if (rc > 0)
		log_user(LOG_WARNING, "%s", note);
	return rc < 0 ? error_set(err, ERR_UNAVAILABLE, "%s", note) : 0;
}

static void show(const struct exec *exec)
{
	char *cpus = idset_format(exec->rank->cpus_os);

	printf("rank %d of %d (started by %s), local rank %d of %d: cores %s (%s)\n",
	       exec->place.rank, exec->place.size, exec->place.started_by, exec->place.local_rank,
	       exec->place.local_size, cpus ? cpus : "?",
	       exec->request->keep_binding ? "keeps the launcher's binding"
	       : exec->inventory.this_system
		       ? exec->rank->why
		       : "not bound: the topology comes from another machine");
	for (size_t i = 0; i < env_count(exec->changes); i++) {
		const struct env_var *var = env_at(exec->changes, i);

		printf("  %s%s%s  # %s%s%s\n", var->name, var->value ? "=" : " is removed",
		       var->value ? var->value : "", env_from_name(var->from), var->why ? ": " : "",
		       var->why ? var->why : "");
	}
	free(cpus);
}

static void warn(const struct exec *exec)
{
	const struct plan_node *node = &exec->plan.nodes[0];
	char isolation[SLURM_ISOLATION_MAX];

	if (exec->place.local_rank)
		return;
	if (slurm_gpus_isolated(exec->env, exec->place.local_size, isolation, sizeof isolation))
		log_user(LOG_WARNING, "%s", isolation);
	for (size_t i = 0; i < node->warning_count; i++)
		log_user(LOG_WARNING, "%s", node->warnings[i]);
	if (!exec->inventory.this_system && !exec->request->keep_binding)
		log_user(LOG_WARNING,
			 "BERTH_TOPOLOGY comes from another machine, so ranks are not bound");
	if (exec->place.rank)
		return;
	log_user(LOG_NOTE,
		 "%d rank%s started by %s: berth exec sets each rank's place and cores; the "
		 "launcher handles starting, signals, failures and logs (no supervision)",
		 exec->place.size, exec->place.size == 1 ? "" : "s", exec->place.started_by);
}

/* Returns only on failure, with a shell's exit codes. */
static int exec_program(struct exec *exec)
{
	struct error err = {0};

	if (env_apply(exec->env, exec->changes, &err))
		return verb_fail(&err);
	char **envp = env_to_envp(exec->env);

	if (!envp) {
		error_memory(&err, "the program's environment");
		return verb_fail(&err);
	}
	execvpe(exec->request->program[0], exec->request->program, envp);
	int seen = errno;

	free(envp);
	log_user(LOG_ERROR, "cannot run %s: %s", exec->request->program[0],
		 seen == ENOENT ? "not found in PATH, or its interpreter is missing"
				: strerror(seen));
	return seen == ENOENT ? 127 : 126;
}

static int prepare(struct exec *exec, struct error *err)
{
	const struct inventory_source source = {0};

	int rc = submit_environment(exec->request->env, exec->request->env_count, &exec->env, err);

	if (!rc)
		rc = exec_place_asks_pmix(exec->env)
			     ? exec_pmix_find(exec->env, &exec->place, err)
			     : exec_place_find(exec->env, &exec->place, err);
	if (rc)
		return rc;
	exec->launcher_pid = exec_place_launcher_pid(&exec->place);
	if (!exec->request->keep_binding)
		widen_affinity(exec);
	rc = inventory_discover_from_env(&source, exec->env, &exec->inventory, err);
	if (!rc)
		rc = make_plan(exec, err);
	if (!rc)
		rc = make_changes(exec, err);
	if (!rc && !exec->request->keep_binding && !exec->request->dry_run &&
	    exec->inventory.this_system)
		rc = bind_rank(exec, err);
	return rc;
}

int exec_in_place(const struct exec_request *request)
{
	struct exec exec = {.request = request};
	struct error err = {0};
	int code;

	if (prepare(&exec, &err)) {
		code = verb_fail(&err);
	} else {
		warn(&exec);
		if (request->dry_run)
			show(&exec);
		code = !request->dry_run ? exec_program(&exec) : fflush(stdout) ? ERR_IO : 0;
	}
	env_free(exec.changes);
	plan_free(&exec.plan);
	inventory_free(&exec.inventory);
	env_free(exec.env);
	return code;
}

int verb_exec(int argc, char **argv)
{
	static const struct arguments_command command = {
		.tables = {{options}},
		.positional = {.type = ARGUMENTS_REST, .offset = EXEC(program)},
		.usage = "[--] PROGRAM [ARGUMENTS]",
		.doc = "Run PROGRAM as the rank that another launcher (mpirun, torchrun, srun, "
		       "PALS) has made of this process. Gives it its GPU and cores, and adds what "
		       "its environment lacks.\vberth does not supervise such a rank. Example: "
		       "mpirun -n 4 berth exec -- python train.py",
	};
	struct exec_request request = {0};

	arguments_parse(&command, argc, argv, &request);
	return exec_in_place(&request);
}
