/* SPDX-License-Identifier: BSD-3-Clause */
/* Slurm, natively: a step with one task a rank under Slurm's own PMIx, beside the step of agents,
 * which make the plan and watch.
 *
 * The tasks' places are said one by one (--distribution=arbitrary and a file of nodes): with
 * --ntasks-per-node=2 in a job of -n 4 Slurm 22.05 starts 3 and 1. Not --gpu-bind=none: with
 * several tasks on a node it leaves them no GPU at all (CUDA_VISIBLE_DEVICES is empty;
 * Slurm 22.05), and without --gpus-per-task there is no binding. A step asks for the same number of
 * GPUs on each node, and PMIx needs all ranks in one step: nodes with unlike numbers are refused.
 *
 * SLURM_PMIX_FENCE=ring, where the user says nothing: by default ("mixed") a fence without data
 * goes up and down a tree, and there a node of Slurm 22.05's mpi/pmix can be past it before another
 * has come. Open MPI 4.1.4 then dies in MPI_Init, where a message finds no handler: with 2 nodes of
 * 2 ranks in 16 of 360 starts by tree, in 5 of 510 by mixed, in 0 of 440 by ring. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "launch/launcher.h"
#include "launch/srun.h"

#define ARGUMENTS_MAX 40

struct slurm_step {
	char *argv[ARGUMENTS_MAX];
	char tasks[40], gpus[40];
};

/* Never by itself: the ranks below the agents start faster, on any Slurm. */
static bool never_fits(const struct alloc *alloc, const struct env *env)
{
	(void)alloc;
	(void)env;
	return false;
}

static int check_gpus(const struct alloc *alloc, const int *counts, int *gpus, struct error *err)
{
	const struct alloc_node *first = NULL;

	for (size_t i = 0; i < alloc->node_count; i++) {
		if (!counts[i])
			continue;
		if (!first)
			first = &alloc->nodes[i];
		if (alloc->nodes[i].gpus != first->gpus)
			return error_set(
				err, ERR_UNAVAILABLE,
				"the launcher srun-ranks: %s has %d GPUs of the job, %s has "
				"%d, and one step of Slurm's has equally many on each node; "
				"use --launcher srun, or ask for --gpus-per-node",
				first->name, first->gpus, alloc->nodes[i].name,
				alloc->nodes[i].gpus);
	}
	*gpus = first ? first->gpus : 0;
	return 0;
}

/* ranks: how many, as text. */
static void make_slurm_step(const struct launcher_job *job, const char *ranks, int gpus, bool pmix,
			    struct slurm_step *out)
{
	size_t n = 0;

	snprintf(out->tasks, sizeof out->tasks, "--ntasks=%s", ranks);
	snprintf(out->gpus, sizeof out->gpus, "--gpus-per-node=%d", gpus);

	char *const all[] = {
		(char *)"srun",
		out->tasks,
		(char *)"--distribution=arbitrary",
		(char *)"--overlap",
		(char *)"--overcommit",
		(char *)"--mem=0",
		(char *)(pmix ? "--mpi=pmix" : "--mpi=none"),
		(char *)"--cpu-bind=none",
		(char *)"--mem-bind=none",
		(char *)"--export=ALL",
		(char *)"--input=none",
		(char *)"--kill-on-bad-exit=0",
		(char *)"--wait=0",
		(char *)"--no-kill",
		(char *)"--chdir=/",
		(char *)"--job-name=berth-ranks",
	};

	_Static_assert(sizeof all / sizeof *all + 5 < ARGUMENTS_MAX, "room");
	for (; n < sizeof all / sizeof *all; n++)
		out->argv[n] = all[n];
	if (gpus > 0)
		out->argv[n++] = out->gpus;
	out->argv[n++] = (char *)job->berth_path;
	out->argv[n++] = (char *)"agent";
	out->argv[n++] = (char *)"--task";
	out->argv[n] = NULL;
}

/* A line a task, in a file that srun opens by its name. The descriptor is the caller's; -1. */
static int host_file(const struct alloc *alloc, const int *counts)
{
	char *text = NULL;
	size_t size = 0;
	FILE *stream = open_memstream(&text, &size);
	int fd = memfd_create("berth-tasks", 0);

	for (size_t i = 0; stream && i < alloc->node_count; i++)
		for (int k = 0; k < counts[i]; k++)
			fprintf(stream, "%s\n", alloc->nodes[i].name);
	if (!stream || fclose(stream) || fd < 0 || file_write_all(fd, text, size)) {
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	free(text);
	return fd;
}

static int start_tasks(const struct launcher_job *job, const struct launcher_rank_counts *tasks,
		       struct launcher_process *process, struct error *err)
{
	const struct alloc *alloc = job->alloc;
	struct env *env = env_copy(job->env);
	char ranks[24];
	struct slurm_step slurm_step;
	int gpus = 0, fd, rc = check_gpus(alloc, tasks->counts, &gpus, err);
	long sum = 0;

	for (size_t i = 0; i < alloc->node_count; i++)
		sum += tasks->counts[i];
	snprintf(ranks, sizeof ranks, "%ld", sum);
	fd = host_file(alloc, tasks->counts);
	if (!rc && (!env || fd < 0))
		rc = error_memory(err, "srun's start");
	if (!rc) {
		make_slurm_step(job, ranks, gpus, tasks->pmix, &slurm_step);
		srun_drop_variables(env);
		if (!env_get(job->env, "SLURM_PMIX_FENCE"))
			rc = env_set(env, "SLURM_PMIX_FENCE", "ring", ENV_FROM_BERTH, NULL, err);
	}
	if (!rc) {
		/* By our process id: the descriptor need not be srun's. */
		rc = env_setf(env, "SLURM_HOSTFILE", ENV_FROM_BERTH, NULL, err, "/proc/%d/fd/%d",
			      (int)getpid(), fd);
	}
	if (!rc)
		rc = launcher_spawn(slurm_step.argv, env, NULL, process, err);
	if (!rc)
		process->fd = fd; /* open for as long as srun may read it */
	else if (fd >= 0)
		close(fd);
	env_free(env);
	return rc;
}

static char *command_lines(const struct launcher_job *job)
{
	struct slurm_step slurm_step;
	char *agents = srun_command_line(job), *command_line, *all = NULL;

	make_slurm_step(job, "RANKS", job->alloc->nodes[0].gpus, true, &slurm_step);
	command_line = launcher_command_line(slurm_step.argv);
	if (!agents || !command_line ||
	    asprintf(&all, "%s, and beside it for the ranks %s", agents, command_line) < 0)
		all = NULL;
	free(agents);
	free(command_line);
	return all;
}

const struct launcher launcher_srun_ranks = {
	.name = "srun-ranks",
	.request_variables = srun_request_variables,
	.summary = "as srun, and the ranks as tasks of a step of their own, under Slurm's PMIx",
	.fits = never_fits,
	.start = srun_start,
	.command_line = command_lines,
	.start_tasks = start_tasks,
};
