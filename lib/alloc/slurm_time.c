/* SPDX-License-Identifier: BSD-3-Clause */
/* When Slurm will end the job, where its variables do not say. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "alloc/slurm.h"
#include "base/number.h"

#define DAYS_MAX 36500

int slurm_time_left(const char *text, int64_t *seconds, struct error *err)
{
	char copy[64], *at = copy + strspn(text, " \n"), *dash;
	int64_t days = 0, total = 0;
	size_t size;
	int fields = 0, rc = 0;

	snprintf(copy, sizeof copy, "%s", text);
	size = strcspn(at, " \n");
	if (at[size + strspn(at + size, " \n")] || strlen(text) >= sizeof copy)
		return error_set(err, ERR_DATA, "'%.60s' is no time", text);
	at[size] = '\0';
	if (!strcmp(at, "UNLIMITED") || !strcmp(at, "NOT_SET"))
		return 1;
	dash = strchr(at, '-');
	if (dash) {
		*dash = '\0';
		rc = number_int64("the days", at, 0, DAYS_MAX, &days, err);
		at = dash + 1;
	}
	for (char *next = at; !rc && next; fields++) {
		char *field = strsep(&next, ":");
		int64_t value;

		/* The first field may be large (minutes over an hour), the others are 0 to 59. */
		rc = number_int64("the time", field, 0, fields ? 59 : 24 * 3600, &value, err);
		total = total * 60 + (rc ? 0 : value);
	}
	if (!rc && (fields > 3 || (dash && fields != 3)))
		rc = error_set(err, ERR_DATA, "'%.60s' is no time such as 1-02:00:00", text);
	if (rc) {
		error_prefix(err, "the time left");
		return rc;
	}
	*seconds = days * 86400 + total;
	return 0;
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int start_squeue(const struct env *env, const char *job, pid_t *pid, int *out)
{
	char *const argv[] = {(char *)"squeue", (char *)"-h", (char *)"-j", (char *)job,
			      (char *)"-o",	(char *)"%L",  NULL};
	char **envp = env_to_envp(env);
	posix_spawn_file_actions_t files;
	int pipes[2], rc;

	if (!envp || pipe2(pipes, O_CLOEXEC)) {
		free(envp);
		return -1;
	}
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, pipes[1], 1);
	posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
	rc = posix_spawnp(pid, "squeue", &files, NULL, argv, envp);
	posix_spawn_file_actions_destroy(&files);
	free(envp);
	close(pipes[1]);
	if (rc)
		close(pipes[0]);
	else
		*out = pipes[0];
	return rc ? -1 : 0;
}

/* All that it says, cut at size; -1: not finished in time. */
static int read_all(int fd, int timeout_ms, char *text, size_t size)
{
	int64_t deadline = now_ms() + timeout_ms;
	size_t used = 0;

	for (;;) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		int64_t left = deadline - now_ms();
		ssize_t n;

		if (left <= 0 || poll(&wait, 1, (int)left) == 0)
			return -1;
		n = read(fd, text + used, size - 1 - used);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0 || used + (size_t)n >= size - 1) {
			text[used + (n > 0 ? (size_t)n : 0)] = '\0';
			return 0;
		}
		used += (size_t)n;
	}
}

static void say(struct alloc *alloc, const char *why)
{
	free(alloc->end_why);
	alloc->end_why = strdup(why); /* without memory it is merely not said */
}

void slurm_ask_end_time(const struct env *env, int timeout_ms, struct alloc *alloc)
{
	char text[64], why[160];
	int64_t left;
	pid_t pid;
	int fd, late, rc;

	if (strcmp(alloc->source, "slurm") != 0 || alloc->end_time)
		return;
	if (start_squeue(env, alloc->job_id, &pid, &fd)) {
		say(alloc, "SLURM_JOB_END_TIME is not set, and there is no squeue to ask");
		return;
	}
	late = read_all(fd, timeout_ms, text, sizeof text);
	close(fd);
	if (late)
		kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (late) {
		snprintf(why, sizeof why, "SLURM_JOB_END_TIME is not set, and squeue gave no "
			 "answer within %d ms", timeout_ms);
		say(alloc, why);
		return;
	}
	text[strcspn(text, "\n")] = '\0';
	rc = slurm_time_left(text, &left, NULL);
	if (rc == 1) {
		say(alloc, "squeue: the job has no time limit");
	} else if (rc) {
		snprintf(why, sizeof why,
			 "SLURM_JOB_END_TIME is not set, and squeue does not know the time left ('%.40s')",
			 text);
		say(alloc, why);
	} else {
		alloc->end_time = (int64_t)time(NULL) + left;
		snprintf(why, sizeof why, "squeue: %.40s left", text);
		say(alloc, why);
	}
}
