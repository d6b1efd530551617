/* SPDX-License-Identifier: BSD-3-Clause */
#include "alloc/scheduler_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define UNKNOWN INT_MIN
#define KILLED_MS 200 /* from SIGKILL to the end of a process that is not in state D */
_Static_assert(KILLED_MS == 200, "scheduler_tool.h says 0.2 s");

/* What people keep in .bashrc for tables that they read themselves: it selects other jobs, or the
 * jobs of another cluster, and berth would take a job that is not listed for one that has ended. */
static const char *const filters[] = {"SQUEUE_*",	"SCONTROL_*",  "SACCT_*",
				      "SLURM_CLUSTERS", "PBS_QSTAT_*", NULL};

/* Start the tool in a process group of its own, so that what it starts (qstat starts a shell and
 * pbs_iff) ends with it. *out becomes the reading end of its standard output; stderr_fd is a file
 * for its standard error. */
static int start_tool(char *const argv[], const struct env *env, int stderr_fd, pid_t *pid,
		      int *out)
{
	static const char *const none[] = {NULL};
	struct env *plain = env_copy(env);
	int pipes[2], rc;

	if (!plain || pipe2(pipes, O_CLOEXEC)) {
		env_free(plain);
		return -1;
	}
	env_drop_matching(plain, filters, none);
	rc = env_spawn(plain, argv[0], argv, (const int[]){-1, pipes[1], stderr_fd}, pid);
	env_free(plain);
	close(pipes[1]);
	if (rc)
		close(pipes[0]);
	else
		*out = pipes[0];
	return rc ? -1 : 0;
}

/* As waitpid, until the deadline; 0: it still runs. */
static pid_t wait_until(pid_t pid, int64_t deadline, int *status)
{
	pid_t got;

	while (!(got = waitpid(pid, status, WNOHANG)) && clock_now_ms() < deadline)
		usleep(500);
	return got;
}

/* Wait for its end until the deadline, then kill it. Return its status; -1: killed; UNKNOWN:
 * another part of this process has reaped it. A tool in state D (its file system hangs) outlives
 * SIGKILL, and the caller has heartbeats to send: leave it to controller_reap, or to init. */
static int reap(pid_t pid, int64_t deadline, bool late)
{
	int status = 0;
	pid_t got = late ? 0 : wait_until(pid, deadline, &status);

	if (got)
		return got == pid ? status : UNKNOWN;
	kill(-pid, SIGKILL);
	wait_until(pid, clock_now_ms() + KILLED_MS, &status);
	return -1;
}

static void read_stderr(int fd, char stderr_text[SCHEDULER_TOOL_STDERR_BYTES])
{
	ssize_t n = pread(fd, stderr_text, SCHEDULER_TOOL_STDERR_BYTES - 1, 0);

	stderr_text[n > 0 ? n : 0] = '\0';
	for (char *at = stderr_text; *at; at++)
		if ((unsigned char)*at < ' ')
			*at = ' ';
	for (size_t size = strlen(stderr_text); size && stderr_text[size - 1] == ' ';)
		stderr_text[--size] = '\0';
}

int scheduler_tool_begin(struct scheduler_tool *tool, char *const argv[], const struct env *env,
			 size_t limit)
{
	*tool = (struct scheduler_tool){.fd = -1, .limit = limit};
	tool->text = malloc(limit + 1);
	tool->stderr_fd = memfd_create("berth-ask", MFD_CLOEXEC);
	if (!tool->text || tool->stderr_fd < 0 ||
	    start_tool(argv, env, tool->stderr_fd, &tool->pid, &tool->fd)) {
		if (tool->stderr_fd >= 0)
			close(tool->stderr_fd);
		free(tool->text);
		tool->pid = 0;
		return -1;
	}
	fcntl(tool->fd, F_SETFL, O_NONBLOCK);
	return 0;
}

bool scheduler_tool_read(struct scheduler_tool *tool)
{
	for (;;) {
		ssize_t n = read(tool->fd, tool->text + tool->used, tool->limit - tool->used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return false;
		tool->used += n > 0 ? (size_t)n : 0;
		if (n <= 0 || tool->used == tool->limit)
			return true;
	}
}

enum scheduler_tool_result scheduler_tool_end(struct scheduler_tool *tool, int64_t deadline_ms,
					      struct scheduler_tool_output *out)
{
	bool late = clock_now_ms() >= deadline_ms;
	int status;

	close(tool->fd); /* a tool that writes more than the limit gets SIGPIPE */
	status = reap(tool->pid, deadline_ms, late);
	tool->text[tool->used] = '\0';
	if (status == -1) {
		free(tool->text);
	} else {
		char *fitting = realloc(tool->text, tool->used + 1);

		out->text = fitting ? fitting : tool->text;
		out->code = status == UNKNOWN	? -1
			    : WIFEXITED(status) ? WEXITSTATUS(status)
						: 128 + WTERMSIG(status);
		read_stderr(tool->stderr_fd, out->stderr_text);
	}
	close(tool->stderr_fd);
	*tool = (struct scheduler_tool){.fd = -1};
	return status == -1 ? SCHEDULER_TOOL_TIMEOUT : SCHEDULER_TOOL_EXITED;
}

enum scheduler_tool_result scheduler_tool_run(char *const argv[], const struct env *env,
					      int timeout_ms, size_t limit,
					      struct scheduler_tool_output *out)
{
	int64_t deadline = clock_now_ms() + timeout_ms, left;
	struct scheduler_tool tool;

	if (scheduler_tool_begin(&tool, argv, env, limit))
		return SCHEDULER_TOOL_UNAVAILABLE;
	while (!scheduler_tool_read(&tool) && (left = deadline - clock_now_ms()) > 0)
		poll(&(struct pollfd){.fd = tool.fd, .events = POLLIN}, 1, (int)left);
	return scheduler_tool_end(&tool, deadline, out);
}
