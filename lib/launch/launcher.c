/* SPDX-License-Identifier: BSD-3-Clause */
/* The table of launchers, the environment of agents, and how a launcher's tool is started. Tools
 * get files in memory instead of pipes, so that neither side ever waits for the other. */
#include "launch/launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"

/* The first launcher that fits is used, so the most specific ones come first. */
static const struct launcher *const launchers[] = {
	&launcher_fork,	   &launcher_hand,   &launcher_srun, &launcher_pals,	 &launcher_tm,
	&launcher_prterun, &launcher_mpirun, &launcher_ssh,  &launcher_loopback,
};

#define LAUNCHER_COUNT (sizeof launchers / sizeof *launchers)

static int find_launcher(const char *name, const struct alloc *alloc, const struct env *env,
			 const struct launcher **out, struct error *err)
{
	char known[256] = "";

	for (size_t i = 0; i < LAUNCHER_COUNT; i++) {
		if (name ? !strcmp(name, launchers[i]->name)
			 : launchers[i]->fits(launchers[i], alloc, env)) {
			*out = launchers[i];
			if (!alloc) /* only its name is in question */
				return 0;
			log_info(LOG_LAUNCH, "launcher %s: %s%s", launchers[i]->name,
				 name ? "--launcher" : "the first that fits; these do not: ",
				 name	  ? ""
				 : *known ? known
					  : "(it is the first)");
			return 0;
		}
		text_append(known, sizeof known, "%s%s", i ? ", " : "", launchers[i]->name);
	}
	if (name)
		return error_set(err, ERR_USAGE, "unknown launcher '%s'; choose one of: %s", name,
				 known);
	return error_set(err, ERR_UNAVAILABLE,
			 "no launcher fits the %zu node%s of this allocation (%s, first node %s); "
			 "choose a --launcher: %s",
			 alloc->node_count, alloc->node_count == 1 ? "" : "s", alloc->why,
			 alloc->nodes[0].name, known);
}

int launcher_find(const char *name, const struct alloc *alloc, const struct env *env,
		  const struct launcher **out, struct error *err)
{
	const char *preferred = name ? NULL : env_get(env, LAUNCHER_PREFERRED);
	int rc = find_launcher(name, alloc, env, out, err);

	/* It is for nodes that a scheduler granted or that --hosts names. */
	if (rc || !preferred || (*out)->shape != LAUNCH_NODES)
		return rc;
	rc = find_launcher(preferred, alloc, env, out, err);
	if (!rc)
		log_info(LOG_LAUNCH, LAUNCHER_PREFERRED " names it");
	return rc ? error_prefix(err, LAUNCHER_PREFERRED) : 0;
}

const struct launcher *launcher_next(const struct launcher *after, const struct alloc *alloc,
				     const struct env *env)
{
	size_t i = 0;

	while (launchers[i++] != after)
		;
	while (i < LAUNCHER_COUNT && !launchers[i]->fits(launchers[i], alloc, env))
		i++;
	return i < LAUNCHER_COUNT ? launchers[i] : NULL;
}

char *launcher_sample_line(const struct launch_options *launch)
{
	bool cookie = launch->launcher->secret_from_cookie;
	struct launcher_job job = {
		.launch = launch,
		.secret = cookie ? NULL : "",
		.secret_source = cookie ? "cookie:NONCE" : NULL,
		.controller_addresses = "ADDRESS:PORT",
	};

	return launch->launcher->command_line(&job);
}

/* The environment for a job's agents. where[] holds two name and value pairs, which say how an
 * agent finds its node. */
static struct env *make_agent_env(const struct launcher_job *job, const char *const where[4])
{
	struct env *env = env_copy(job->launch->env);
	const struct {
		const char *name, *value;
	} set[] = {
		{LAUNCHER_ENV_CONTROLLER, job->controller_addresses},
		{LAUNCHER_ENV_JOB, job->launch->alloc->job_id},
		{LAUNCHER_ENV_SECRET, job->secret},
		{LAUNCHER_ENV_SECRET_SOURCE, job->secret_source},
		{where[0], where[1]},
		{where[2], where[3]},
	};
	int rc = env ? 0 : -1;

	for (size_t i = 0; !rc && i < sizeof set / sizeof *set; i++)
		if (set[i].value)
			rc = env_set(env, set[i].name, set[i].value, ENV_FROM_BERTH, NULL, NULL);
	if (!rc)
		rc = env_setf(env, LAUNCHER_ENV_NODE_TIMEOUT, ENV_FROM_BERTH, NULL, NULL, "%d",
			      job->launch->node_timeout_ms);
	if (!rc)
		return env;
	env_free(env);
	return NULL;
}

struct env *launcher_agent_env(const struct launcher_job *job, size_t node_index)
{
	char index[24];

	snprintf(index, sizeof index, "%zu", node_index);
	return make_agent_env(job, (const char *const[]){LAUNCHER_ENV_NAME,
							 job->launch->alloc->nodes[node_index].name,
							 LAUNCHER_ENV_NODE, index});
}

struct env *launcher_all_agents_env(const struct launcher_job *job, const char *self)
{
	char *list = alloc_node_list(job->launch->alloc, NULL);
	struct env *env = list ? make_agent_env(job, (const char *const[]){LAUNCHER_ENV_NODES, list,
									   LAUNCHER_ENV_SELF, self})
			       : NULL;

	free(list);
	return env;
}

static const char *const forwarded[] = {"LD_LIBRARY_PATH", "BERTH_*", NULL};
/* Ranks get these from the JOB message. BERTH_ROLE_SECRET must not be on a command line (tm). */
static const char *const not_forwarded[] = {
	"BERTH_ROLE*",	   "BERTH_REPLICA*",	"BERTH_RAY*",	   "BERTH_PLAN_FILE",
	"BERTH_JOB_ID",	   "BERTH_NODE_RANK",	"BERTH_ATTEMPT",   "BERTH_REPORT",
	"BERTH_STOP_FILE", "BERTH_SECRET_FILE", "BERTH_END_TIME*", NULL};

bool launcher_forwards_variable(const char *name)
{
	return env_name_matches(name, forwarded) && !env_name_matches(name, not_forwarded);
}

struct env *launcher_forwarded_env(const struct launcher_job *job, size_t node_index)
{
	static const char *const all[] = {"*", NULL}, *const none[] = {NULL};
	struct env *env = launcher_agent_env(job, node_index);

	if (!env)
		return NULL;
	env_drop_matching(env, all, forwarded);
	env_drop_matching(env, not_forwarded, none);
	env_drop(env, LAUNCHER_ENV_SECRET);
	return env;
}

static int input_file(const char *input)
{
	size_t size = strlen(input);
	int fd = memfd_create("berth-input", MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	if (file_write_all(fd, input, size) || lseek(fd, 0, SEEK_SET)) {
		close(fd);
		return -1;
	}
	return fd;
}

int launcher_spawn(char *const argv[], const struct env *env, const char *input,
		   struct launcher_process *process, struct error *err)
{
	int output = memfd_create("berth-launcher", MFD_CLOEXEC);
	int in = input ? input_file(input) : -1;
	pid_t pid;
	int rc = output < 0 || (input && in < 0) ? error_memory(err, "the launcher's start") : 0;

	if (!rc)
		rc = env_spawn(env, argv[0], argv, (int[]){in, output, output}, &pid);
	if (rc > 0)
		rc = error_set(err, ERR_UNAVAILABLE, "cannot start %s: %s%s", argv[0], strerror(rc),
			       rc == ENOENT ? "; is it in PATH?" : "");
	if (in >= 0)
		close(in);
	if (!rc)
		*process = (struct launcher_process){
			.pid = pid, .node_index = -1, .fd = -1, .output_fd = output};
	else if (output >= 0)
		close(output);
	if (!rc && log_details[LOG_LAUNCH] >= LOG_MESSAGES) {
		char *line = launcher_command_line(argv);

		log_debug(LOG_LAUNCH, "process %d: %s", (int)pid, line ? line : argv[0]);
		free(line);
	}
	return rc;
}

int launcher_kill(const struct launcher_process *process, int number)
{
	/* A tool leads a session of its own and may have children: signal all of them. */
	return kill(process->output_fd >= 0 ? -process->pid : process->pid, number);
}

static bool needs_no_quotes(const char *text)
{
	return *text &&
	       !text[strspn(
		       text,
		       "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%")];
}

char *launcher_command_line(char *const argv[])
{
	char *text = NULL;
	size_t size = 0;
	FILE *stream = open_memstream(&text, &size);

	if (!stream)
		return NULL;
	for (size_t i = 0; argv[i]; i++) {
		if (i)
			fputc(' ', stream);
		if (needs_no_quotes(argv[i])) {
			fputs(argv[i], stream);
			continue;
		}
		fputc('\'', stream);
		for (const char *at = argv[i]; *at; at++)
			fputs(*at == '\'' ? "'\\''" : (char[]){*at, 0}, stream);
		fputc('\'', stream);
	}
	if (!fclose(stream))
		return text;
	free(text);
	return NULL;
}

bool launcher_is_here(const struct launcher *launcher)
{
	return launcher->shape == LAUNCH_HERE || launcher->shape == LAUNCH_SIMULATED;
}

bool launcher_has_part(const char *const *parts, const char *text)
{
	while (parts && *parts && !strstr(text, *parts))
		parts++;
	return parts && *parts;
}
