/* SPDX-License-Identifier: BSD-3-Clause */
/* PRRTE's prterun, Open MPI's mpirun (4, and 5, which wraps prterun), and HPE's PALS. One
 * command serves all nodes; it starts one process per node, the agent.
 *
 * Open MPI gets the allocation's node names unchanged: it would strip their domains, but
 * pbs_tmrsh needs them. If PBS provides pbs_tmrsh and the user chose no other remote shell, Open
 * MPI uses it through `berth agent --tmrsh`, because pbs_tmrsh starts no shell of its own. The
 * agent is not an MPI process, so the variables that the tool sets for one are removed from its
 * environment. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/pbs.h"
#include "base/bytes.h"
#include "launch/launcher.h"

/* $0 is berth. With PMIX_* and similar variables the agent would become a client of the tool's
 * server. */
static const char cleanup_script[] =
	LAUNCHER_NO_FUNCTION("$(uname -n)") LAUNCHER_TRY_BERTH LAUNCHER_NO_RUN
	"for name in $(env | sed -n "
	"'s/^\\(\\(PMIX\\|PMI\\|OMPI\\|PRTE\\|PALS\\)_[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset "
	"\"$name\"; done; exec \"$0\" agent";

/* Find the tool in PATH, with a certain program next to it: several MPIs have an mpirun and an
 * mpiexec. */
static bool find_tool(const struct launcher *launcher, const struct env *env, char *path,
		      size_t size)
{
	char other[PATH_MAX];

	if (!env_find_tool(env, launcher->tool, path, size))
		return false;
	/* The first in PATH counts. */
	snprintf(other, sizeof other, "%.*s/%s", (int)(strrchr(path, '/') - path), path,
		 launcher->beside);
	return !access(other, X_OK);
}

static bool mpirun_fits(const struct launcher *launcher, const struct alloc *alloc,
			const struct env *env)
{
	char path[PATH_MAX];

	return alloc->source == ALLOC_FROM_PBS && find_tool(launcher, env, path, sizeof path);
}

/* With TM's tools present, TM starts the agents directly, also if Open MPI was built with TM: that
 * is faster than asking ompi_info (0.2 s), and TM needs no daemons. */
static bool fits_open_mpi(const struct launcher *launcher, const struct alloc *alloc,
			  const struct env *env)
{
	return mpirun_fits(launcher, alloc, env) && !launcher_tm.fits(&launcher_tm, alloc, env);
}

/* Set defaults for the tool where the user has set nothing. settings holds names and values and
 * ends with NULL. */
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
		/* Other nodes have no PATH to pbs_tmrsh; only the first has PBS_NODEFILE. */
		{"OMPI_MCA_plm_rsh_no_tree_spawn", "1"},
		{"PRTE_MCA_plm_ssh_no_tree_spawn", "1"},
		{NULL}};

	if (job->launch->alloc->source != ALLOC_FROM_PBS || strchr(job->launch->berth_path, ' ') ||
	    pbs_find_tool(job->launch->env, "pbs_tmrsh", path, sizeof path))
		return 0;
	snprintf(agent, sizeof agent, "%s agent --tmrsh", job->launch->berth_path);
	return set_defaults(env, settings);
}

/* A prterun that was moved since it was built, such as the one in PyPI's Open MPI package, looks
 * for its daemon in the original prefix. The daemon is next to prterun, so set the prefix. (Open
 * MPI's own mpirun does so itself.) */
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
	struct words words = {0};

	for (size_t i = 0; i < alloc->node_count; i++)
		words_add(&words, "%s%s", alloc->nodes[i].name, slots);
	return words_join(&words, ',');
}

/* Build begin, then -x NAME for each variable that agents need (so that ps does not show the
 * value), then end. */
static char **make_line(const char *const *begin, const struct env *env, const char *const *end)
{
	struct words words = {0};

	words_add_list(&words, begin);
	for (size_t i = 0; i < env_count(env); i++)
		if (launcher_forwards_variable(env_at(env, i)->name)) {
			words_add(&words, "-x");
			words_add(&words, "%s", env_at(env, i)->name);
		}
	words_add_list(&words, end);
	return words_end(&words);
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
	out->env = environment(job); /* --envall passes it on */
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
				 ? "prterun is not in PATH; load the module of PRRTE or Open MPI "
				   "5, or choose another --launcher"
				 : "Open MPI's mpirun is not in PATH (another MPI's does not "
				   "work); load its module, or choose another --launcher");
}

const struct launcher launcher_prterun = {
	.name = "prterun",
	.tool = "prterun",
	.beside = "prterun",
	.fits = fits_open_mpi,
	.start = start_open_mpi,
	.command_line = launcher_tools_line,
	.make = make_open_mpi,
	.one_tool = true,
};

const struct launcher launcher_mpirun = {
	.name = "mpirun",
	.tool = "mpirun",
	.beside = "ompi_info",
	.fits = fits_open_mpi,
	.start = start_open_mpi,
	.command_line = launcher_tools_line,
	.make = make_open_mpi,
	.one_tool = true,
};

/* Written from HPE's documentation, and never tested on a machine with PALS. */
const struct launcher launcher_pals = {
	.name = "pals",
	.tool = "mpiexec",
	.beside = "palstat",
	.fits = mpirun_fits,
	.start = launcher_start_tools,
	.command_line = launcher_tools_line,
	.make = make_pals,
	.one_tool = true,
};
