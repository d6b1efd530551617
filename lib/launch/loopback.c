/* SPDX-License-Identifier: BSD-3-Clause */
/* Several agents on this machine that stand for several nodes: the real connections, tree and
 * exchange, without a second machine. For trying things out, and for the tests; all "nodes" see
 * the same cores and GPUs. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch/launcher.h"

static bool fits(const struct alloc *alloc, const struct env *env)
{
	(void)alloc;
	(void)env;
	return false; /* only when named: nobody has pretended nodes by accident */
}

static int spawn(const struct launcher_job *job, size_t node_index, pid_t *pid, struct error *err)
{
	char *const argv[] = {(char *)"berth", (char *)"agent", NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	struct env *env = launcher_agent_env(job, node_index);
	char **envp = env ? env_to_envp(env) : NULL;
	sigset_t none;
	int rc;

	if (!envp) {
		env_free(env);
		return error_memory(err, "an agent's environment");
	}
	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, 2, 1);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &none);
	rc = posix_spawn(pid, job->launch->berth_path, &files, &attributes, argv, envp);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	free(envp);
	env_free(env);
	if (rc)
		return error_set(err, ERR_UNAVAILABLE, "agent %zu cannot be started from %s: %s",
				 node_index, job->launch->berth_path, strerror(rc));
	return 0;
}

static int start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		 struct error *err)
{
	size_t nodes = job->launch->alloc->node_count;
	struct launcher_process *processes = calloc(nodes, sizeof *processes);
	int rc = processes ? 0 : error_memory(err, "the agents");
	size_t started = 0;

	while (!rc && started < nodes) {
		processes[started].fd = processes[started].output_fd = -1;
		processes[started].node_index = (long)started;
		rc = spawn(job, started, &processes[started].pid, err);
		started += !rc;
	}
	if (!rc) {
		*out = processes;
		*count = nodes;
		return 0;
	}
	launcher_kill_all(processes, started);
	return rc;
}

static char *command_line(const struct launcher_job *job)
{
	char *text;

	if (asprintf(&text, "%zu times %s agent, on this machine", job->launch->alloc->node_count,
		     job->launch->berth_path) < 0)
		return NULL;
	return text;
}

int launcher_simulate_nodes(const struct alloc *alloc, size_t nodes, struct alloc *out,
			    struct error *err)
{
	struct alloc simulated = {.end_time = alloc->end_time, .restarts = alloc->restarts};

	simulated.source = strdup(alloc->source);
	simulated.job_id = strdup(alloc->job_id);
	simulated.nodes = calloc(nodes, sizeof *simulated.nodes);
	if (asprintf(&simulated.why, "%zu pretended nodes on this machine (--launcher loopback)",
		     nodes) < 0)
		simulated.why = NULL;
	if (!simulated.source || !simulated.job_id || !simulated.nodes || !simulated.why)
		goto memory;
	for (; simulated.node_count < nodes; simulated.node_count++) {
		struct alloc_node *node = &simulated.nodes[simulated.node_count];

		*node = (struct alloc_node){.slots = alloc->nodes[0].slots,
					    .gpus = alloc->nodes[0].gpus};
		if (asprintf(&node->name, "loop%zu", simulated.node_count) < 0) {
			node->name = NULL;
			goto memory;
		}
	}
	*out = simulated;
	return 0;
memory:
	alloc_free(&simulated);
	return error_memory(err, "the pretended nodes");
}

const struct launcher launcher_loopback = {
	.name = "loopback",
	.single_host = true,
	.fits = fits,
	.start = start,
	.command_line = command_line,
};
