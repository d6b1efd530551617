/* SPDX-License-Identifier: BSD-3-Clause */
/* Slurm: one step with one task per node; each task is an agent.
 *
 * By default a step takes all CPUs that the job has on a node. With --overlap it neither waits
 * for other steps of the user nor blocks them. --mem=0 grants all of the job's memory; otherwise
 * --mem-per-cpu times one task would be only a small part. GPUs are requested by number, because
 * the default went wrong with Slurm 22.05: in a job with --gpus-per-task the step got one task's
 * GPUs, in an --exclusive job none, and in a job with --gpus it was refused. A step requests the
 * same number on each node, so nodes with different numbers of GPUs get one step each.
 *
 * Every option that a variable of the job could set is given explicitly, and those variables are
 * removed from srun's environment. A batch script with --cpus-per-task, --exclusive or
 * SLURM_MPI_TYPE thus starts the same agents as one without. The ranks get the variables back,
 * because their environment is the controller's.
 *
 * Without --unbuffered, slurmstepd passes on whole lines; with it, lines of several nodes mixed.
 *
 * srun's exit code proves nothing (it was 0 after a node had failed): see launcher.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launcher.h"

/* Start the agent if it can run on this node: $0 is berth, $1 the architecture it was built for.
 * uname runs only if berth cannot, because each program costs time at every start
 * (docs/decisions/0007-cost-of-a-start.md). */
static const char probe[] = LAUNCHER_NO_FUNCTION("$SLURMD_NODENAME") LAUNCHER_TRY_BERTH
	"{ [ \"$(uname -m)\" = \"$1\" ] || no \"the node is $(uname -m), but $0 was built for $1; "
	"build berth on such a node, and run that build\"; " LAUNCHER_NO_RUN "}; exec \"$0\" agent";

static bool srun_fits(const struct launcher *launcher, const struct alloc *alloc,
		      const struct env *env)
{
	return alloc->source == ALLOC_FROM_SLURM;
}

/* Variables from which srun takes options, or which describe another process's place. */
static const char *const dropped_variables[] = {
	"SLURM_*", "SRUN_*", "SBATCH_*", "SALLOC_*", "PMI_*", "PMIX_*", "OMPI_COMM_WORLD_*",
	/* Device lists differ by node: Slurm sets them anew for each task. */
	"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
	"ZE_AFFINITY_MASK",
	"PWD", /* sh looks for it at its start, which takes for ever if its file system hangs */
	NULL};
static const char *const kept_variables[] = {"SLURM_CONF",  "SLURM_JOB_ID",
					     "SLURM_JOBID", "SLURM_WORKING_CLUSTER",
					     "SLURM_JWT",   "SLURM_NETWORK", /* the job's fabric */
					     "PMIX_MCA_*", /* settings, no place */
					     NULL};

/* How many nodes one step can serve, from first on: those of its group, or one if the numbers of
 * GPUs in it differ. */
static size_t part_size(const struct alloc *alloc, size_t first)
{
	size_t end = first + 1;
	bool same = true;

	for (; end < alloc->node_count && alloc->nodes[end].group == alloc->nodes[first].group;
	     end++)
		same &= alloc->nodes[end].gpus == alloc->nodes[first].gpus;
	for (size_t i = 0; i < first; i++)
		same &= alloc->nodes[i].group != alloc->nodes[first].group;
	return same ? end - first : 1;
}

static struct alloc part_of(const struct alloc *alloc, size_t first)
{
	return (struct alloc){.source = alloc->source,
			      .nodes = alloc->nodes + first,
			      .groups = alloc->groups,
			      .node_count = part_size(alloc, first)};
}

/* The srun command for the nodes of part, which all have the same number of GPUs. */
static struct launcher_command make_line(const struct launcher_job *job, const struct alloc *part)
{
	char nodes[40], tasks[40], gpus[40], group[40], *list = NULL,
							*names = alloc_node_list(part, NULL);
	int gpu_count = part->nodes[0].gpus;
	struct launcher_command command = {0};
	struct utsname self;

	if (uname(&self))
		strcpy(self.machine, "unknown");
	snprintf(nodes, sizeof nodes, "--nodes=%zu", part->node_count);
	snprintf(tasks, sizeof tasks, "--ntasks=%zu", part->node_count);
	/* Request nothing if there are no GPUs or their number is unknown. If nodes differ,
	 * Slurm refuses a --gpus-per-node that exceeds the smallest node's number, even for a
	 * step on one node; so use --gpus there. */
	snprintf(gpus, sizeof gpus,
		 gpu_count <= 0		 ? "--gpu-bind=none"
		 : part->node_count == 1 ? "--gpus=%d"
					 : "--gpus-per-node=%d",
		 gpu_count);
	snprintf(group, sizeof group, "--het-group=%d", part->nodes[0].group);
	if (names && asprintf(&list, "--nodelist=%s", names) >= 0)
		command.argv = launcher_argv(
			(const char *const[]){"srun", part->groups ? group : NULL, NULL}, NULL,
			(const char *const[]){
				nodes,
				tasks,
				"--ntasks-per-node=1",
				list,
				"--distribution=block",
				"--overlap",
				"--mem=0",
				"--mpi=none",
				"--cpu-bind=none",
				"--mem-bind=none",
				"--gpu-bind=none",
				gpus,
				"--export=ALL",
				"--input=none",
				"--kill-on-bad-exit=0",
				"--wait=0",
				"--no-kill",
				"--chdir=/",
				"--job-name=berth",
				"sh",
				"-c",
				probe,
				job->launch->berth_path,
				self.machine,
				NULL,
			});
	else
		list = NULL;
	free(names);
	free(list);
	return command;
}

static int start_part(const struct launcher_job *job, const struct env *env, size_t first,
		      struct launcher_process *process, struct error *err)
{
	struct alloc part = part_of(job->launch->alloc, first);
	struct launcher_command command = make_line(job, &part);
	int rc = command.argv ? launcher_spawn(command.argv, env, NULL, process, err)
			      : error_memory(err, "srun's start");

	launcher_command_free(&command);
	if (rc || part.node_count == job->launch->alloc->node_count)
		return rc;
	process->nodes_covered =
		calloc(job->launch->alloc->node_count, sizeof *process->nodes_covered);
	/* If memory is out it stands for all nodes, and messages about its end are less exact. */
	for (size_t i = 0; process->nodes_covered && i < part.node_count; i++)
		process->nodes_covered[first + i] = true;
	return 0;
}

static int srun_start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		      struct error *err)
{
	size_t nodes = job->launch->alloc->node_count, started = 0;
	struct launcher_process *processes;
	struct env *env;
	int rc = 0;

	if (job->launch->alloc->source !=
	    ALLOC_FROM_SLURM) /* outside a job, srun would request one of its own */
		return error_set(err, ERR_USAGE,
				 "launcher srun works only inside a Slurm job, and there is none "
				 "(%s); use it in sbatch or salloc",
				 job->launch->alloc->why);
	processes = calloc(nodes, sizeof *processes);
	env = launcher_all_agents_env(job, "SLURMD_NODENAME");
	if (env)
		env_drop_matching(env, dropped_variables, kept_variables);
	if (!processes || !env)
		rc = error_memory(err, "srun's start");
	for (size_t first = 0; !rc && first < nodes;
	     first += part_size(job->launch->alloc, first)) {
		rc = start_part(job, env, first, &processes[started], err);
		started += !rc;
	}
	env_free(env);
	if (rc) {
		launcher_kill_all(processes, started);
		return rc;
	}
	*out = processes;
	*count = started;
	return 0;
}

static char *command_line(const struct launcher_job *job)
{
	struct alloc part = part_of(job->launch->alloc, 0);
	struct launcher_command command = make_line(job, &part);
	char *one = command.argv ? launcher_command_line(command.argv) : NULL, *all = NULL;

	launcher_command_free(&command);
	if (one && part.node_count < job->launch->alloc->node_count &&
	    asprintf(&all,
		     part.groups
			     ? "%s (one such command per group, or per node if GPU counts differ)"
			     : "%s (one such command per node: their GPU counts differ)",
		     one) >= 0) {
		free(one);
		return all;
	}
	return one;
}

/* scancel JOB.STEP: slurmstepd prints "*** STEP 5.0 ON n1 CANCELLED AT 2026-11-25T16:06:42 ***",
 * which may be lost, and srun "Job step aborted: Waiting up to ...". If Slurm ends the step for a
 * reason of its own, "DUE TO TIME LIMIT" or the like comes before the last stars. */
static const char *cancelled(const char *output, size_t *size)
{
	const char *at = strstr(output, "*** STEP "), *end = at ? strstr(at + 4, "***") : NULL;
	const char *due = strstr(output, " DUE TO "), *aborted = strstr(output, "Job step aborted");

	if (due || strcasestr(output, "node fail"))
		return NULL;
	*size = end && strstr(at, " CANCELLED AT ") ? (size_t)(end + 3 - at) : 0;
	if (*size)
		return at;
	*size = aborted ? strcspn(aborted, ":;") : 0;
	return aborted;
}

static const char *const request_variables[] = {"SLURM_JOB_ID",	       "SLURM_JOB_NODELIST",
						"SLURM_STEP_NODELIST", "SLURM_GPUS_PER_NODE",
						"SLURM_GPUS_ON_NODE",  NULL};

/* slurmctld is restarted, or fails over to another host; a step's memory is unknown right after. */
static const char *const passing[] = {
	"Unable to contact slurm controller",	    "Socket timed out on send/recv",
	"Slurm backup controller in standby mode",  "Zero Bytes were transmitted or received",
	"Memory required by task is not available", NULL};
/* With task/none, whatever --cpu-bind says. */
static const char *const harmless[] = {"lacks support for cpu binding", NULL};

const struct launcher launcher_srun = {
	.name = "srun",
	.passing = passing,
	.harmless = harmless,
	.request_variables = request_variables,
	.fits = srun_fits,
	.start = srun_start,
	.command_line = command_line,
	.no_agent = " failed on node ",
	.cancelled = cancelled,
};
