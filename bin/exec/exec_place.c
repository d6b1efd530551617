/* SPDX-License-Identifier: BSD-3-Clause */
#include "exec/exec_place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "base/file.h"
#include "base/number.h"

#define RANKS_MAX 1048576
#define ENVIRON_MAX (8 << 20)
#define ANCESTORS_MAX 64

/* The variables of one launcher. present: the one that identifies it, besides rank. binds: it
 * usually binds to cores, whether or not the user asked for it. processes: how the names of its own
 * processes begin, that is of its ranks' parents; NULL: unknown. berth sets torchrun's other
 * variables, too, but not TORCHELASTIC_USE_AGENT_STORE. */
struct rank_source {
	bool binds;
	const char *const *processes;
	const char *name, *present;
	const char *rank, *size, *local_rank, *local_size, *node;
	const char *job, *job_part;
};

/* PyTorch 2.15 calls the thread pt_elastic. */
static const char *const torchrun_processes[] = {"torchrun", "pt_elastic", "python", "accelerate",
						 NULL};
static const char *const mpirun_processes[] = {"mpirun", "mpiexec", "orte", "prte", NULL};
static const char *const pals_processes[] = {"pals", NULL};
static const char *const mpich_processes[] = {"hydra", "mpiexec", "mpirun", NULL};
static const char *const berth_processes[] = {"berth", NULL};

/* Innermost first: torchrun's workers keep the variables of the mpirun or srun around them, and
 * mpirun's ranks keep those of the allocation. srun's come last: a batch script has them too, so
 * only a step counts. */
static const struct rank_source rank_sources[] = {
	{false, torchrun_processes, "torchrun", "TORCHELASTIC_USE_AGENT_STORE", "RANK",
	 "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID",
	 "TORCHELASTIC_RESTART_COUNT"},
	{true, mpirun_processes, "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK",
	 "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL,
	 "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
	{true, pals_processes, "PALS", "PALS_RANKID", "PALS_RANKID", "PMI_SIZE",
	 "PALS_LOCAL_RANKID", "PMI_LOCAL_SIZE", "PALS_NODEID", "PALS_APID", NULL},
	{true, mpich_processes, "MPICH's mpiexec", "PMI_RANK", "PMI_RANK", "PMI_SIZE",
	 "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL, NULL, NULL},
	{false, berth_processes, "the environment", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK",
	 "LOCAL_WORLD_SIZE", "NODE_RANK", NULL, NULL},
	{true, NULL, "srun", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
	 "SLURM_LOCALID", NULL, "SLURM_NODEID", "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

static int read_number(const struct env *env, const struct rank_source *source, const char *name,
		       int min, int *out, struct error *err)
{
	const char *text = env_get(env, name);

	if (!text)
		return error_set(err, ERR_DATA, "%s is set, so %s started this rank, but %s is not",
				 source->rank, source->name, name);
	return number_int(name, text, min, RANKS_MAX, out, err);
}

int exec_place_tasks(const char *text, int node, int *out, struct error *err)
{
	static const char name[] = "SLURM_STEP_TASKS_PER_NODE";
	int *counts = calloc((size_t)node + 1, sizeof *counts), rc;
	size_t described = 0;

	if (!counts)
		return error_memory(err, "the task counts of the nodes");
	rc = slurm_counts(name, text, (size_t)node + 1, counts, &described, err);
	if (!rc && described <= (size_t)node)
		rc = error_set(err, ERR_DATA,
			       "%s is '%.120s', which describes %zu nodes, but this is node %d "
			       "(counted from 0)",
			       name, text, described, node);
	if (!rc)
		*out = counts[node];
	free(counts);
	return rc;
}

static int read_local_size(const struct env *env, const struct rank_source *source,
			   struct exec_place *place, struct error *err)
{
	const char *text = source->local_size ? env_get(env, source->local_size)
					      : env_get(env, "SLURM_STEP_TASKS_PER_NODE");

	if (!text && place->size == 1) {
		place->local_size = 1;
		return 0;
	}
	if (!text)
		return error_set(err, ERR_DATA,
				 "%s reports rank %d of %d, but not how many ranks this node has; "
				 "expected that in %s",
				 source->name, place->rank, place->size,
				 source->local_size ? source->local_size
						    : "SLURM_STEP_TASKS_PER_NODE");
	if (source->local_size)
		return number_int(source->local_size, text, 1, RANKS_MAX, &place->local_size, err);
	return exec_place_tasks(text, place->node_rank, &place->local_size, err);
}

static int check_place(const struct rank_source *source, const struct exec_place *place,
		       struct error *err)
{
	if (place->rank >= place->size)
		return error_set(
			err, ERR_DATA, "%s is %d and %s is %d: expected a rank from 0 to %d",
			source->rank, place->rank, source->size, place->size, place->size - 1);
	if (place->local_rank >= place->local_size || place->local_size > place->size)
		return error_set(err, ERR_DATA,
				 "%s reports local rank %d of %d on a node, in a job of %d ranks",
				 source->name, place->local_rank, place->local_size, place->size);
	return 0;
}

/* RANK must agree with the launcher's own number: the program may read either. */
static int check_rank(const struct env *env, const struct rank_source *source,
		      const struct exec_place *place, struct error *err)
{
	const char *rank = env_get(env, "RANK"), *size = env_get(env, "WORLD_SIZE");
	int rank_number = place->rank, size_number = place->size;
	int rc = rank ? number_int("RANK", rank, 0, RANKS_MAX, &rank_number, err) : 0;

	if (!rc && size)
		rc = number_int("WORLD_SIZE", size, 1, RANKS_MAX, &size_number, err);
	if (rc || (rank_number == place->rank && size_number == place->size))
		return rc;
	return error_set(err, ERR_DATA,
			 "%s reports rank %d of %d, but RANK and WORLD_SIZE are %s and %s: unset "
			 "RANK and WORLD_SIZE before you start the launcher",
			 source->name, place->rank, place->size, rank ? rank : "(not set)",
			 size ? size : "(not set)");
}

static int fill(const struct env *env, const struct rank_source *source, struct exec_place *place,
		struct error *err)
{
	int rc = read_number(env, source, source->rank, 0, &place->rank, err);

	place->started_by = source->name;
	place->detected_by = source->present;
	place->binds = source->binds;
	place->node_rank = -1;
	if (!rc)
		rc = read_number(env, source, source->size, 1, &place->size, err);
	if (!rc && (env_get(env, source->local_rank) || place->size > 1))
		rc = read_number(env, source, source->local_rank, 0, &place->local_rank, err);
	if (!rc && source->node && env_get(env, source->node))
		rc = read_number(env, source, source->node, 0, &place->node_rank, err);
	if (!rc && !source->local_size && place->node_rank < 0)
		place->node_rank = 0;
	if (!rc)
		rc = read_local_size(env, source, place, err);
	if (!rc)
		rc = check_place(source, place, err);
	if (!rc)
		rc = check_rank(env, source, place, err);
	if (rc)
		return rc;
	if (place->local_size == place->size && place->node_rank < 0)
		place->node_rank = 0;
	const char *job = source->job ? env_get(env, source->job) : NULL;
	const char *part = source->job_part ? env_get(env, source->job_part) : NULL;

	snprintf(place->job, sizeof place->job, "%.120s%s%.120s", job ? job : "", part ? "." : "",
		 part ? part : "");
	return 0;
}

/* srun sets variables with the same values, also with --mpi=pmix. */
bool exec_place_asks_pmix(const struct env *env)
{
	const char *name = env_get(env, "PMIX_NAMESPACE");

	if (!name || !env_get(env, "PMIX_RANK") || !strncmp(name, "slurm.", 6))
		return false;
	for (size_t i = 0; i < sizeof rank_sources / sizeof *rank_sources; i++)
		if (env_get(env, rank_sources[i].present) &&
		    strcmp(rank_sources[i].name, "srun") != 0)
			return false;
	return true;
}

int exec_place_find(const struct env *env, struct exec_place *out, struct error *err)
{
	for (size_t i = 0; i < sizeof rank_sources / sizeof *rank_sources; i++) {
		struct exec_place place = {0};

		const char *present = env_get(env, rank_sources[i].present);

		if (!present || *present == '-') /* Slurm 26.05's batch script is step -5 */
			continue;
		int rc = fill(env, &rank_sources[i], &place, err);

		if (!rc)
			*out = place;
		return rc;
	}
	return error_set(
		err, ERR_USAGE,
		"no launcher started this process as a rank (none of OMPI_COMM_WORLD_RANK, RANK, "
		"PALS_RANKID, PMI_RANK, PMIX_RANK, SLURM_STEP_ID is set): put berth exec between a "
		"launcher and its program, as in mpirun -n 2 berth exec -- PROGRAM; berth run "
		"starts ranks itself");
}

/* Was the process started with the variable? Also false if its environment is unreadable: a daemon
 * of root's, which is no rank of ours. */
static bool started_with(pid_t pid, const char *name)
{
	size_t length = strlen(name), size = 0;
	char path[40], *text = NULL;
	bool found = false;

	snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
	if (file_read(path, ENVIRON_MAX, &text, &size, NULL))
		return false;
	for (const char *at = text; !found && at < text + size; at += strlen(at) + 1)
		found = !strncmp(at, name, length) && at[length] == '=';
	free(text);
	return found;
}

/* Parse "12 (a name (of its own)) S 7 ...": the name may contain anything. 0: unknown. */
static pid_t parent_of(pid_t pid)
{
	char path[40], *text = NULL;
	size_t size;
	int parent = 0;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	if (file_read(path, 1 << 16, &text, &size, NULL))
		return 0;
	const char *end = strrchr(text, ')');

	if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
		parent = 0;
	free(text);
	return parent;
}

pid_t exec_place_launcher_pid(const struct exec_place *place)
{
	pid_t pid = getppid();

	for (int steps = 0; pid > 1 && steps < ANCESTORS_MAX; steps++) {
		if (!started_with(pid, place->detected_by))
			return pid;
		pid = parent_of(pid);
	}
	return 0;
}

/* Batch scripts and terminals inherit variables of jobs that ended long ago. */
static bool is_alive(const char *const *processes, const struct exec_place *place)
{
	pid_t pid = exec_place_launcher_pid(place);
	char path[40], command[32];
	bool found = false;

	snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
	if (!pid || file_read_line(path, command, sizeof command))
		return false;
	for (const char *const *name = processes; !found && *name; name++)
		found = !strncmp(command, *name, strlen(*name));
	return found;
}

bool exec_place_outer(const struct env *env, struct exec_place *out)
{
	for (size_t i = 0; i < sizeof rank_sources / sizeof *rank_sources; i++) {
		const struct rank_source *source = &rank_sources[i];

		*out = (struct exec_place){0};
		if (!source->processes || !env_get(env, source->present) ||
		    fill(env, source, out, NULL) || out->size == 1 ||
		    !is_alive(source->processes, out))
			continue;
		if (source->processes == berth_processes)
			out->started_by = "berth run";
		return true;
	}
	*out = (struct exec_place){.started_by = "prterun", .detected_by = "PMIX_RANK"};
	return exec_place_asks_pmix(env) && is_alive(mpirun_processes, out);
}

int exec_place_port(const struct exec_place *place, long salt)
{
	uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
	char text[300];

	if (place->job[0])
		snprintf(text, sizeof text, "%s", place->job);
	else
		snprintf(text, sizeof text, "%ld", salt);
	for (const char *at = text; *at; at++)
		hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
	return 10000 + (int)(hash % 20000);
}
