/* SPDX-License-Identifier: BSD-3-Clause */
/* One machine: the agent is a child process of the controller, connected to it by a socket pair. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "base/file.h"
#include "launch/launcher.h"

/* Slurm sends its signals (preemption, --signal, scancel --signal) to the tasks of steps, not to
 * a batch script and its children. Even on one node the agent must therefore be such a task, so
 * fork leaves batch jobs to srun. */
static bool gets_no_signals(const struct env *env)
{
	const char *kind = env_get(env, "ENVIRONMENT");
	char path[PATH_MAX];

	return kind && !strcmp(kind, "BATCH") && !slurm_in_step(env) &&
	       env_find_tool(env, "srun", path, sizeof path);
}

/* Accept one node only, and only if it is this machine. */
static bool fork_fits(const struct launcher *launcher, const struct alloc *alloc,
		      const struct env *env)
{
	const char *name = alloc->nodes[0].name;

	if (alloc->node_count != 1)
		return false;
	/* The single node of a Slurm job may be another machine: salloc leaves its shell on the
	 * login node. */
	if (alloc->source == ALLOC_FROM_SLURM)
		return alloc->this_node >= 0 && !gets_no_signals(env);
	if (alloc->source == ALLOC_FROM_PBS && alloc->this_node >= 0)
		return true;
	if (alloc->source != ALLOC_FROM_PBS && alloc->source != ALLOC_FROM_HOSTS)
		return true; /* no other source names a node that is not this machine */
	return launcher_is_this_host(name);
}

static int fork_start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		      struct error *err)
{
	struct launcher_process *process;
	int pair[2];

	if (job->launch->alloc->node_count != 1)
		return error_set(err, ERR_USAGE,
				 "launcher fork serves one node, but this allocation has %zu; "
				 "choose another --launcher",
				 job->launch->alloc->node_count);
	process = malloc(sizeof *process);
	if (!process)
		return error_memory(err, "the agent");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
		free(process);
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot create a socket pair for the agent: %m");
	}
	pid_t pid = fork();

	if (pid == 0) {
		/* The agent keeps none of the controller's descriptors except the socket. It
		 * gets a session of its own, because the controller forwards the terminal's
		 * signals. */
		setsid();
		file_close_range(3, pair[1] - 1);
		file_close_range(pair[1] + 1, INT_MAX);
		/* Not exit: what the controller has buffered is the controller's to write. */
		_exit(job->agent(job->context, 0, pair[1]));
	}
	close(pair[1]);
	if (pid < 0) {
		int rc = error_set(err, ERR_UNAVAILABLE, "cannot fork the agent: %m");

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
	.shape = LAUNCH_HERE,
	.fits = fork_fits,
	.start = fork_start,
	.command_line = command_line,
};
