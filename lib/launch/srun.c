/* SPDX-License-Identifier: BSD-3-Clause */
/* Slurm: one step of one task a node, and the task is the agent.
 *
 * A step by default takes all CPUs and GPUs that the job has on a node; --overlap, so that it
 * neither waits for a step that the user runs beside it nor keeps one from starting; --mem=0, all
 * of the job's memory, where the job's own --mem-per-cpu times one task would be a small part.
 * Every option that a variable of the job could set otherwise is explicit, and those variables are
 * taken from srun's environment: a batch script with --cpus-per-task, --exclusive or
 * SLURM_MPI_TYPE shall start the same agents as one without. The ranks get them back, since their
 * environment is the head's.
 *
 * srun's exit code proves nothing (it was 0 after a node had failed): see engine.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "launch/engine.h"

/* Starts the agent where it can run: $0 is berth, $1 the machine it is built for. */
static const char probe[] =
	"no() { echo \"" ENGINE_NO_AGENT "$SLURMD_NODENAME: $*\" >&2; exit 69; }; "
	"[ \"$(uname -m)\" = \"$1\" ] || no \"it is $(uname -m), and $0 was built for $1; build "
	"berth on such a node, and start that one\"; "
	"[ -x \"$0\" ] || no \"$0 is not there; put berth into a folder that all nodes see\"; "
	"exec \"$0\" agent";

static bool fits(const struct alloc *alloc, const struct env *env)
{
	(void)env;
	return !strcmp(alloc->source, "slurm");
}

/* Is it a variable that srun takes an option from, or that describes somebody else's place? */
static bool is_options(const char *name)
{
	static const char *const kept[] = {
		"SLURM_CONF",		 "SLURM_JOB_ID", "SLURM_JOBID",
		"SLURM_WORKING_CLUSTER", "SLURM_JWT",	 "SLURM_NETWORK", /* the job's fabric */
	};
	static const char *const begins[] = {"SLURM_", "SRUN_",	 "SBATCH_", "SALLOC_",
					     "PMI_",   "PMIX_",	 "OMPI_COMM_WORLD_"};
	/* A node's devices are that node's: Slurm sets them anew for each task. */
	static const char *const devices[] = {"CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
					      "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
					      "ZE_AFFINITY_MASK"};

	for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
		if (!strcmp(name, kept[i]))
			return false;
	if (!strncmp(name, "PMIX_MCA_", 9)) /* settings, no place */
		return false;
	for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
		if (!strncmp(name, begins[i], strlen(begins[i])))
			return true;
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
		if (!strcmp(name, devices[i]))
			return true;
	return false;
}

static struct env *environment(const struct engine_job *job)
{
	struct env *env = engine_agents_env(job, "SLURMD_NODENAME");

	for (size_t i = 0; env && i < env_count(env);) {
		char name[256];

		snprintf(name, sizeof name, "%s", env_at(env, i)->name);
		if (is_options(name))
			env_drop(env, name);
		else
			i++;
	}
	return env;
}

struct line {
	char *argv[40];
	char nodes[40], tasks[40], *list, machine[65 + 8];
};

static int make_line(const struct engine_job *job, struct line *out)
{
	char *names = engine_node_list(job->alloc);
	struct utsname self;
	size_t n = 0;

	if (!names || asprintf(&out->list, "--nodelist=%s", names) < 0)
		out->list = NULL;
	free(names);
	if (!out->list)
		return -1;
	if (uname(&self))
		strcpy(self.machine, "unknown");
	snprintf(out->machine, sizeof out->machine, "%s", self.machine);
	snprintf(out->nodes, sizeof out->nodes, "--nodes=%zu", job->alloc->node_count);
	snprintf(out->tasks, sizeof out->tasks, "--ntasks=%zu", job->alloc->node_count);

	char *const all[] = {
		(char *)"srun",
		out->nodes,
		out->tasks,
		(char *)"--ntasks-per-node=1",
		out->list,
		(char *)"--distribution=block",
		(char *)"--overlap",
		(char *)"--mem=0",
		(char *)"--mpi=none",
		(char *)"--cpu-bind=none",
		(char *)"--mem-bind=none",
		(char *)"--gpu-bind=none",
		(char *)"--export=ALL",
		(char *)"--input=none",
		(char *)"--unbuffered",
		(char *)"--kill-on-bad-exit=0",
		(char *)"--wait=0",
		(char *)"--no-kill",
		(char *)"--chdir=/",
		(char *)"--job-name=berth",
		(char *)"sh",
		(char *)"-c",
		(char *)probe,
		(char *)job->program,
		out->machine,
	};

	_Static_assert(sizeof all / sizeof *all < sizeof out->argv / sizeof *out->argv, "room");
	for (; n < sizeof all / sizeof *all; n++)
		out->argv[n] = all[n];
	out->argv[n] = NULL;
	return 0;
}

static int start(const struct engine_job *job, struct engine_child **out, size_t *count,
		 struct error *err)
{
	struct engine_child *child;
	struct env *env;
	struct line line;
	int rc;

	if (!fits(job->alloc, job->env)) /* srun would ask for a job of its own */
		return error_set(err, ERR_USAGE,
				 "the engine srun starts agents in a job of Slurm's, and this is "
				 "none (%s); use it in sbatch or salloc",
				 job->alloc->why ? job->alloc->why : job->alloc->source);
	child = malloc(sizeof *child);
	env = environment(job);
	rc = make_line(job, &line);

	if (rc || !child || !env)
		rc = error_memory(err, "srun's start");
	else
		rc = engine_spawn(line.argv, env, child, err);
	free(line.list);
	env_free(env);
	if (rc) {
		free(child);
		return rc;
	}
	*out = child;
	*count = 1;
	return 0;
}

static char *line_text(const struct engine_job *job)
{
	struct line line;
	char *text = make_line(job, &line) ? NULL : engine_line(line.argv);

	free(line.list);
	return text;
}

const struct engine engine_srun = {
	.name = "srun",
	.summary = "the nodes of a Slurm job, a step with one task on each",
	.fits = fits,
	.start = start,
	.line = line_text,
};
