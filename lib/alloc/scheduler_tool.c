/* SPDX-License-Identifier: BSD-3-Clause */
#include "alloc/scheduler_tool.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

/* Start the tool. *out becomes the reading end of its standard output; stderr_fd is a file for its
 * standard error. */
static int start(char *const argv[], const struct env *env, int stderr_fd, pid_t *pid, int *out)
{
	char **envp = env_to_envp(env);
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	sigset_t none;
	int pipes[2], rc;

	if (!envp || pipe2(pipes, O_CLOEXEC)) {
		free(envp);
		return -1;
	}
	sigemptyset(&none);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, pipes[1], 1);
	posix_spawn_file_actions_adddup2(&files, stderr_fd, 2);
	/* A process group of its own, so that what the tool starts (qstat starts a shell and
	 * pbs_iff) ends with it. */
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setpgroup(&attributes, 0);
	posix_spawnattr_setsigmask(&attributes, &none);
	rc = posix_spawnp(pid, argv[0], &files, &attributes, argv, envp);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	free(envp);
	close(pipes[1]);
	if (rc)
		close(pipes[0]);
	else
		*out = pipes[0];
	return rc ? -1 : 0;
}

/* Read all output, cut at limit. Return -1 if it does not end in time. */
static int read_all(int fd, int64_t deadline, char *text, size_t limit)
{
	size_t used = 0;

	for (;;) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		int64_t left = deadline - clock_now_ms();
		ssize_t n;

		if (left <= 0 || poll(&wait, 1, (int)left) == 0)
			return -1;
		n = read(fd, text + used, limit - used);
		if (n < 0 && errno == EINTR)
			continue;
		used += n > 0 ? (size_t)n : 0;
		text[used] = '\0';
		if (n <= 0 || used == limit)
			return 0;
	}
}

/* Wait for its end until the deadline, then kill it. */
static int reap(pid_t pid, int64_t deadline, bool late)
{
	int status = 0;

	while (!late) {
		pid_t got = waitpid(pid, &status, WNOHANG);

		if (got == pid || (got < 0 && errno != EINTR))
			return status;
		late = clock_now_ms() >= deadline;
		if (!late)
			usleep(500);
	}
	kill(-pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
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

enum scheduler_tool_result scheduler_tool_run(char *const argv[], const struct env *env,
					      int timeout_ms, size_t limit,
					      struct scheduler_tool_output *out)
{
	int64_t deadline = clock_now_ms() + timeout_ms;
	char *text = malloc(limit + 1);
	int stderr_fd = memfd_create("berth-ask", MFD_CLOEXEC), fd = -1, status = 0;
	enum scheduler_tool_result result = SCHEDULER_TOOL_UNAVAILABLE;
	bool late;
	pid_t pid;

	if (!text || stderr_fd < 0 || start(argv, env, stderr_fd, &pid, &fd))
		goto out;
	late = read_all(fd, deadline, text, limit) != 0;
	close(fd); /* a tool that writes more than the limit gets SIGPIPE */
	status = reap(pid, deadline, late);
	result = status == -1 ? SCHEDULER_TOOL_TIMEOUT : SCHEDULER_TOOL_EXITED;
	if (result == SCHEDULER_TOOL_EXITED) {
		out->text = text;
		text = NULL;
		out->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
		read_stderr(stderr_fd, out->stderr_text);
	}
out:
	if (stderr_fd >= 0)
		close(stderr_fd);
	free(text);
	return result;
}
