/* SPDX-License-Identifier: BSD-3-Clause */
/* PRRTE's prterun, Open MPI's mpirun (4, and 5, which is prterun in other clothes), and HPE's PALS:
 * one line for all nodes, one process a node, and the process is the agent.
 *
 * Names of the allocation reach Open MPI as they are: it would strip their domains, and pbs_tmrsh
 * wants them. Where PBS has a pbs_tmrsh and nobody chose another remote shell, Open MPI's is that
 * one, through `berth agent --tmrsh` (pbs_tmrsh starts no shell of its own).
 * The agent is no MPI process: what the tool sets for one is taken from its environment. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/pbs.h"
#include "launch/launcher.h"

/* $0 is berth. PMIX_* and their kin would make the agent a client of the tool's server. */
static const char cleanup_script[] =
	"for name in $(env | sed -n "
	"'s/^\\(\\(PMIX\\|PMI\\|OMPI\\|PRTE\\|PALS\\)_[A-Za-z0-9_]*\\)=.*/"
	"\\1/p'); do unset \"$name\"; done; exec \"$0\" agent";

/* In PATH, with another one beside it: mpirun and mpiexec are names of many. */
static bool find_with_sibling(const struct env *env, const char *name, const char *beside,
			      char *path, size_t size)
{
	const char *at = env_get(env, "PATH");

	for (; at && *at; at += strcspn(at, ":"), at += *at == ':') {
		int dir = (int)strcspn(at, ":");
		char other[PATH_MAX];

		if (*at != '/' || snprintf(path, size, "%.*s/%s", dir, at, name) >= (int)size ||
		    snprintf(other, sizeof other, "%.*s/%s", dir, at, beside) >= (int)sizeof other)
			continue;
		if (!access(path, X_OK))
			return !access(other, X_OK); /* what comes first is what is meant */
	}
	return false;
}

static bool find_prterun(const struct env *env, char *path, size_t size)
{
	return find_with_sibling(env, "prterun", "prterun", path, size);
}

static bool find_mpirun(const struct env *env, char *path, size_t size)
{
	return find_with_sibling(env, "mpirun", "ompi_info", path, size);
}

static bool find_pals(const struct env *env, char *path, size_t size)
{
	return find_with_sibling(env, "mpiexec", "palstat", path, size);
}

static bool fits_prterun(const struct alloc *alloc, const struct env *env)
{
	char path[PATH_MAX];

	return !strcmp(alloc->source, "pbs") && find_prterun(env, path, sizeof path);
}

static bool fits_mpirun(const struct alloc *alloc, const struct env *env)
{
	char path[PATH_MAX];

	return !strcmp(alloc->source, "pbs") && find_mpirun(env, path, sizeof path);
}

static bool fits_pals(const struct alloc *alloc, const struct env *env)
{
	char path[PATH_MAX];

	return !strcmp(alloc->source, "pbs") && find_pals(env, path, sizeof path);
}

/* Set for the tool unless the user has. */
static int set_default(struct env *env, const char *name, const char *value)
{
	return env_get(env, name) ? 0 : env_set(env, name, value, ENV_FROM_BERTH, NULL, NULL);
}

static int set_default_tmrsh(struct env *env, const struct launcher_job *job)
{
	static const char *const names[] = {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"};
	char path[PATH_MAX], agent[PATH_MAX + 32];
	int rc = 0;

	if (strcmp(job->launch->alloc->source, "pbs") || strchr(job->launch->berth_path, ' ') ||
	    pbs_find_tool(job->launch->env, "pbs_tmrsh", path, sizeof path))
		return 0;
	snprintf(agent, sizeof agent, "%s agent --tmrsh", job->launch->berth_path);
	for (size_t i = 0; !rc && i < sizeof names / sizeof *names; i++)
		rc = set_default(env, names[i], agent);
	/* On other nodes there is no PATH to it, and on the first no PBS_NODEFILE. */
	if (!rc)
		rc = set_default(env, "OMPI_MCA_plm_rsh_no_tree_spawn", "1");
	return rc ? rc : set_default(env, "PRTE_MCA_plm_ssh_no_tree_spawn", "1");
}

/* One that was moved since it was built, as PyPI's package of Open MPI, looks for its daemon where
 * it was meant to be: it is beside prterun. (Its mpirun sees to that itself.) */
static int set_default_prefix(struct env *env, const char *prterun)
{
	char dir[PATH_MAX], daemon[PATH_MAX];

	if (!realpath(prterun, dir))
		return 0;
	for (int up = 0; up < 2; up++) {
		char *slash = strrchr(dir, '/');

		if (slash)
			*slash = '\0';
	}
	if (snprintf(daemon, sizeof daemon, "%s/bin/prted", dir) >= (int)sizeof daemon ||
	    access(daemon, X_OK))
		return 0;
	return set_default(env, "PRTE_PREFIX", dir);
}

/* The tool's environment: the agents' and its own settings, less what makes it a process of another
 * MPI job. */
static struct env *environment(const struct launcher_job *job)
{
	static const char *const begins[] = {"OMPI_COMM_WORLD", "PMIX_", "PMI_", "PALS_"};
	struct env *env = launcher_all_agents_env(job, LAUNCHER_SELF_FROM_HOST);
	int rc = env ? 0 : -1;

	for (size_t i = 0; env && i < env_count(env);) {
		char name[256];
		bool drop = false;

		snprintf(name, sizeof name, "%s", env_at(env, i)->name);
		for (size_t b = 0; b < sizeof begins / sizeof *begins; b++)
			drop |= !strncmp(name, begins[b], strlen(begins[b])) &&
				strncmp(name, "PMIX_MCA_", 9);
		if (drop)
			env_drop(env, name);
		else
			i++;
	}
	if (!rc)
		rc = set_default(env, "OMPI_MCA_orte_keep_fqdn_hostnames", "1");
	if (!rc)
		rc = set_default(env, "PRTE_MCA_prte_keep_fqdn_hostnames", "1");
	if (!rc)
		rc = set_default(env, "OMPI_MCA_orte_abort_on_non_zero_status", "0");
	if (!rc)
		rc = set_default_tmrsh(env, job);
	if (!rc)
		return env;
	env_free(env);
	return NULL;
}

/* "n1:1,n2:1"; with before in front of each but the first of its own. */
static char *host_list(const struct alloc *alloc, const char *slots)
{
	char *text = NULL;
	size_t size = 0;
	FILE *stream = open_memstream(&text, &size);

	for (size_t i = 0; stream && i < alloc->node_count; i++)
		fprintf(stream, "%s%s%s", i ? "," : "", alloc->nodes[i].name, slots);
	if (stream && !fclose(stream))
		return text;
	free(text);
	return NULL;
}

/* ---- lines: env is the tool's, to which they may add ---- */

/* begin, -x NAME for each variable that agents are told (its value is not in ps), end. */
static char **make_line(const char *const *begin, const struct env *env, const char *const *end)
{
	size_t room = 0, n = 0;
	const char **command;
	char **argv;

	for (size_t i = 0; begin[i]; i++)
		room++;
	for (size_t i = 0; end[i]; i++)
		room++;
	command = calloc(room + 2 * env_count(env) + 1, sizeof *command);
	if (!command)
		return NULL;
	for (size_t i = 0; begin[i]; i++)
		command[n++] = begin[i];
	for (size_t i = 0; i < env_count(env); i++)
		if (launcher_forwards_variable(env_at(env, i)->name)) {
			command[n++] = "-x";
			command[n++] = env_at(env, i)->name;
		}
	for (size_t i = 0; end[i]; i++)
		command[n++] = end[i];
	argv = launcher_argv(command, NULL, NULL);
	free(command);
	return argv;
}

static char **open_mpi_argv(const struct launcher_job *job, const struct env *env, const char *path)
{
	char *hosts = host_list(job->launch->alloc, ":1"), **argv = NULL;

	if (hosts)
		argv = make_line((const char *const[]){path, "--map-by", "ppr:1:node", "--bind-to",
						       "none", "--host", hosts, NULL},
				 env,
				 (const char *const[]){"sh", "-c", cleanup_script,
						       job->launch->berth_path, NULL});
	free(hosts);
	return argv;
}

static char **prterun_argv(const struct launcher_job *job, struct env *env)
{
	char path[PATH_MAX];

	if (!find_prterun(job->launch->env, path, sizeof path))
		return open_mpi_argv(job, env, "prterun");
	return set_default_prefix(env, path) ? NULL : open_mpi_argv(job, env, path);
}

static char **mpirun_argv(const struct launcher_job *job, struct env *env)
{
	char path[PATH_MAX];

	return open_mpi_argv(job, env,
			     find_mpirun(job->launch->env, path, sizeof path) ? path : "mpirun");
}

static char **pals_argv(const struct launcher_job *job, struct env *env)
{
	char path[PATH_MAX] = "mpiexec", count[24], *hosts = host_list(job->launch->alloc, "");
	char **argv = NULL;

	(void)env; /* --envall takes it along */
	find_pals(job->launch->env, path, sizeof path);
	snprintf(count, sizeof count, "%zu", job->launch->alloc->node_count);
	if (hosts)
		argv = launcher_argv((const char *const[]){path, "-n", count, "--ppn", "1",
							   "--hosts", hosts, "--cpu-bind", "none",
							   "--envall", "sh", "-c", cleanup_script,
							   job->launch->berth_path, NULL},
				     NULL, NULL);
	free(hosts);
	return argv;
}

static int start_one(const struct launcher_job *job,
		     char **(*make)(const struct launcher_job *job, struct env *env),
		     struct launcher_process **out, size_t *count, struct error *err)
{
	struct launcher_process *process = malloc(sizeof *process);
	struct env *env = environment(job);
	struct launcher_command command = {.argv = env ? make(job, env) : NULL};
	int rc = process && command.argv ? launcher_spawn(command.argv, env, NULL, process, err)
					 : error_memory(err, "the agents' start");

	launcher_command_free(&command);
	env_free(env);
	if (rc) {
		free(process);
		return rc;
	}
	*out = process;
	*count = 1;
	return 0;
}

static int start_prterun(const struct launcher_job *job, struct launcher_process **out,
			 size_t *count, struct error *err)
{
	char path[PATH_MAX];

	if (!find_prterun(job->launch->env, path, sizeof path))
		return error_set(
			err, ERR_UNAVAILABLE,
			"there is no prterun in PATH; load the module of PRRTE or Open MPI 5, "
			"or take another --launcher");
	return start_one(job, prterun_argv, out, count, err);
}

static int start_mpirun(const struct launcher_job *job, struct launcher_process **out,
			size_t *count, struct error *err)
{
	char path[PATH_MAX];

	if (!find_mpirun(job->launch->env, path, sizeof path))
		return error_set(err, ERR_UNAVAILABLE,
				 "there is no mpirun of Open MPI in PATH (another MPI's does not "
				 "serve); load its module, or take another --launcher");
	return start_one(job, mpirun_argv, out, count, err);
}

static int start_pals(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		      struct error *err)
{
	return start_one(job, pals_argv, out, count, err);
}

static char *command_line_of(const struct launcher_job *job,
			     char **(*make)(const struct launcher_job *job, struct env *env))
{
	struct env *env = environment(job);
	struct launcher_command command = {.argv = env ? make(job, env) : NULL};
	char *text = command.argv ? launcher_command_line(command.argv) : NULL;

	launcher_command_free(&command);
	env_free(env);
	return text;
}

static char *prterun_command_line(const struct launcher_job *job)
{
	return command_line_of(job, prterun_argv);
}

static char *mpirun_command_line(const struct launcher_job *job)
{
	return command_line_of(job, mpirun_argv);
}

static char *pals_command_line(const struct launcher_job *job)
{
	return command_line_of(job, pals_argv);
}

const struct launcher launcher_prterun = {
	.name = "prterun",
	.fits = fits_prterun,
	.start = start_prterun,
	.command_line = prterun_command_line,
};

const struct launcher launcher_mpirun = {
	.name = "mpirun",
	.fits = fits_mpirun,
	.start = start_mpirun,
	.command_line = mpirun_command_line,
};

/* From HPE's documentation: never tried on a machine that has it. */
const struct launcher launcher_pals = {
	.name = "pals",
	.fits = fits_pals,
	.start = start_pals,
	.command_line = pals_command_line,
};
