/* SPDX-License-Identifier: BSD-3-Clause */
/* One machine: the agent is a child of the controller, and a socket pair their connection. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "launch/launcher.h"

/* Slurm's signals (preemption, --signal, scancel --signal) go to the tasks of steps, not to a batch
 * script and what it starts: on its one node, too, the agent is to be such a task. But a step
 * passes on no standard input. */
static bool gets_no_signals(const struct env *env)
{
	const char *kind = env_get(env, "ENVIRONMENT");
	char path[PATH_MAX];
	struct stat input, null;

	return kind && !strcmp(kind, "BATCH") && !slurm_in_step(env) &&
	       env_find_tool(env, "srun", path, sizeof path) && !stat("/dev/null", &null) &&
	       (fstat(STDIN_FILENO, &input) || input.st_rdev == null.st_rdev);
}

/* One node, and it must be this one. */
static bool fits(const struct launcher *launcher, const struct alloc *alloc, const struct env *env)
{
	const char *name = alloc->nodes[0].name;

	if (alloc->node_count != 1)
		return false;
	/* The one node of a job of Slurm's may be another machine: salloc leaves its shell on the
	 * login node. */
	if (!strcmp(alloc->source, "slurm"))
		return alloc->this_node >= 0 && !gets_no_signals(env);
	if (!strcmp(alloc->source, "pbs") && alloc->this_node >= 0)
		return true;
	if (strcmp(alloc->source, "pbs") && strcmp(alloc->source, "hosts"))
		return true; /* nothing else has a node that is not this one */
	return launcher_is_this_host(name);
}

static int start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		 struct error *err)
{
	struct launcher_process *process;
	int pair[2];

	if (job->launch->alloc->node_count != 1)
		return error_set(err, ERR_USAGE,
				 "the launcher fork serves one node; this allocation has %zu",
				 job->launch->alloc->node_count);
	process = malloc(sizeof *process);
	if (!process)
		return error_memory(err, "the agent");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
		free(process);
		return error_set(err, ERR_UNAVAILABLE, "socketpair: %m");
	}
	pid_t pid = fork();

	if (pid == 0) {
		/* Nothing of the controller's but the socket; the terminal's signals are the
		 * controller's.
		 */
		setsid();
		if (pair[1] > 3)
			close_range(3, (unsigned)pair[1] - 1, 0);
		close_range((unsigned)pair[1] + 1, ~0u, 0);
		_exit(job->agent(job->context, 0, pair[1]));
	}
	close(pair[1]);
	if (pid < 0) {
		int rc = error_set(err, ERR_UNAVAILABLE, "no process for the agent: %m");

		close(pair[0]);
		free(process);
		return rc;
	}
	*process = (struct launcher_process){
		.pid = pid, .node_index = 0, .fd = pair[0], .output_fd = -1};
	*out = process;
	*count = 1;
	return 0;
}

static char *command_line(const struct launcher_job *job)
{
	return strdup("(fork: the agent is a child process of berth run)");
}

const struct launcher launcher_fork = {
	.name = "fork",
	.uses_socket_pair = true,
	.single_host = true,
	.fits = fits,
	.start = start,
	.command_line = command_line,
};
