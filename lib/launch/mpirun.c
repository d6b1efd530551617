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
	"'s/^\\(\\(PMIX\\|PMI\\|OMPI\\|PRTE\\|PALS\\)_[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset "
	"\"$name\"; done; exec \"$0\" agent";

/* In PATH, with another one beside it: mpirun and mpiexec are names of many. */
static bool find_tool(const struct launcher *launcher, const struct env *env, char *path,
		      size_t size)
{
	const char *at = env_get(env, "PATH");

	for (; at && *at; at += strcspn(at, ":"), at += *at == ':') {
		int dir = (int)strcspn(at, ":");
		char other[PATH_MAX];

		if (*at != '/' ||
		    snprintf(path, size, "%.*s/%s", dir, at, launcher->tool) >= (int)size ||
		    snprintf(other, sizeof other, "%.*s/%s", dir, at, launcher->beside) >=
			    (int)sizeof other)
			continue;
		if (!access(path, X_OK))
			return !access(other, X_OK); /* what comes first is what is meant */
	}
	return false;
}

static bool fits(const struct launcher *launcher, const struct alloc *alloc, const struct env *env)
{
	char path[PATH_MAX];

	return !strcmp(alloc->source, "pbs") && find_tool(launcher, env, path, sizeof path);
}

/* Set for the tool unless the user has. settings: names and values, NULL at the end. */
static int set_defaults(struct env *env, const char *const (*settings)[2])
{
	int rc = 0;

	for (; !rc && (*settings)[0]; settings++)
		if (!env_get(env, (*settings)[0]))
			rc = env_set(env, (*settings)[0], (*settings)[1], ENV_FROM_BERTH, NULL,
				     NULL);
	return rc;
}

static int set_default_tmrsh(struct env *env, const struct launcher_job *job)
{
	char path[PATH_MAX], agent[PATH_MAX + 32];
	const char *const settings[][2] = {
		{"OMPI_MCA_plm_rsh_agent", agent},
		{"PRTE_MCA_plm_ssh_agent", agent},
		/* On other nodes there is no PATH to it, and on the first no PBS_NODEFILE. */
		{"OMPI_MCA_plm_rsh_no_tree_spawn", "1"},
		{"PRTE_MCA_plm_ssh_no_tree_spawn", "1"},
		{NULL}};

	if (strcmp(job->launch->alloc->source, "pbs") || strchr(job->launch->berth_path, ' ') ||
	    pbs_find_tool(job->launch->env, "pbs_tmrsh", path, sizeof path))
		return 0;
	snprintf(agent, sizeof agent, "%s agent --tmrsh", job->launch->berth_path);
	return set_defaults(env, settings);
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
	return set_defaults(env, (const char *const[][2]){{"PRTE_PREFIX", dir}, {NULL}});
}

/* The tool's environment: the agents' and its own settings, less what makes it a process of another
 * MPI job. */
static struct env *environment(const struct launcher_job *job)
{
	static const char *const dropped[] = {"OMPI_COMM_WORLD*", "PMIX_*", "PMI_*", "PALS_*",
					      NULL};
	static const char *const kept[] = {"PMIX_MCA_*", NULL};
	static const char *const settings[][2] = {{"OMPI_MCA_orte_keep_fqdn_hostnames", "1"},
						  {"PRTE_MCA_prte_keep_fqdn_hostnames", "1"},
						  {"OMPI_MCA_orte_abort_on_non_zero_status", "0"},
						  {NULL}};
	struct env *env = launcher_all_agents_env(job, LAUNCHER_SELF_FROM_HOST);

	if (!env)
		return NULL;
	env_drop_matching(env, dropped, kept);
	if (!set_defaults(env, settings) && !set_default_tmrsh(env, job))
		return env;
	env_free(env);
	return NULL;
}

/* "n1:1,n2:1": each node with slots after its name; malloced. */
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

/* PRRTE and Open MPI. */
static int make_open_mpi(const struct launcher_job *job, size_t node, struct launcher_command *out)
{
	const struct launcher *launcher = job->launch->launcher;
	char path[PATH_MAX], *hosts = host_list(job->launch->alloc, ":1");
	bool found = find_tool(launcher, job->launch->env, path, sizeof path);
	int rc;

	out->env = environment(job);
	rc = hosts && out->env ? 0 : -1;
	if (!rc && found && launcher == &launcher_prterun)
		rc = set_default_prefix(out->env, path);
	if (!rc)
		out->argv = make_line((const char *const[]){found ? path : launcher->tool,
							    "--map-by", "ppr:1:node", "--bind-to",
							    "none", "--host", hosts, NULL},
				      out->env,
				      (const char *const[]){"sh", "-c", cleanup_script,
							    job->launch->berth_path, NULL});
	free(hosts);
	return out->argv ? 0 : -1;
}

static int make_pals(const struct launcher_job *job, size_t node, struct launcher_command *out)
{
	char path[PATH_MAX] = "mpiexec", count[24], *hosts = host_list(job->launch->alloc, "");

	find_tool(job->launch->launcher, job->launch->env, path, sizeof path);
	snprintf(count, sizeof count, "%zu", job->launch->alloc->node_count);
	out->env = environment(job); /* --envall takes it along */
	if (hosts && out->env)
		out->argv = launcher_argv(
			(const char *const[]){path, "-n", count, "--ppn", "1", "--hosts", hosts,
					      "--cpu-bind", "none", "--envall", "sh", "-c",
					      cleanup_script, job->launch->berth_path, NULL},
			NULL, NULL);
	free(hosts);
	return out->argv ? 0 : -1;
}

static int start_open_mpi(const struct launcher_job *job, struct launcher_process **out,
			  size_t *count, struct error *err)
{
	const struct launcher *launcher = job->launch->launcher;
	char path[PATH_MAX];

	if (find_tool(launcher, job->launch->env, path, sizeof path))
		return launcher_start_tools(job, out, count, err);
	return error_set(err, ERR_UNAVAILABLE,
			 launcher == &launcher_prterun
				 ? "there is no prterun in PATH; load the module of PRRTE or Open "
				   "MPI 5, or take another --launcher"
				 : "there is no mpirun of Open MPI in PATH (another MPI's does not "
				   "serve); load its module, or take another --launcher");
}

const struct launcher launcher_prterun = {
	.name = "prterun",
	.tool = "prterun",
	.beside = "prterun",
	.fits = fits,
	.start = start_open_mpi,
	.command_line = launcher_tools_line,
	.make = make_open_mpi,
	.one_tool = true,
};

const struct launcher launcher_mpirun = {
	.name = "mpirun",
	.tool = "mpirun",
	.beside = "ompi_info",
	.fits = fits,
	.start = start_open_mpi,
	.command_line = launcher_tools_line,
	.make = make_open_mpi,
	.one_tool = true,
};

/* From HPE's documentation: never tried on a machine that has it. */
const struct launcher launcher_pals = {
	.name = "pals",
	.tool = "mpiexec",
	.beside = "palstat",
	.fits = fits,
	.start = launcher_start_tools,
	.command_line = launcher_tools_line,
	.make = make_pals,
	.one_tool = true,
};
