/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that the agent started, kept for the task of the scheduler's step: see rank_proxy_channel.h. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/rank_proxy_internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/loop.h"
#include "hostlist/idset.h"
#include "process/guardian.h"

struct keeper {
	int rank, door, task, signals;
};

static int say_failed(int rank, const char *what, int code)
{
	fprintf(stderr, "berth: rank %d: %s\n", rank, what);
	return code;
}

static size_t add_strings(char **at, const char *const *list)
{
	size_t count = 0;

	for (; list[count]; count++)
		*at = stpcpy(*at, list[count]) + 1;
	return count;
}

static size_t size_of(const char *const *list)
{
	size_t size = 0;

	for (size_t i = 0; list[i]; i++)
		size += strlen(list[i]) + 1;
	return size;
}

/* The rank as a file that its task reads; -1: errno. */
static int describe(char *const argv[], char **envp, const char *folder)
{
	size_t cpus_size = CPU_ALLOC_SIZE(IDSET_MAX + 1);
	const char *const place[] = {folder, NULL};
	struct tasks_rank rank = {.cpus_size = (uint32_t)cpus_size};
	size_t strings = size_of(place) + size_of((const char *const *)argv) +
			 size_of((const char *const *)envp);
	size_t total = sizeof rank + cpus_size + strings;
	char *data = calloc(1, total), *at = data + sizeof rank + cpus_size;
	int fd = memfd_create("berth-rank", MFD_CLOEXEC);

	if (!data || fd < 0 || strings > UINT32_MAX ||
	    sched_getaffinity(0, cpus_size, (cpu_set_t *)(data + sizeof rank)) < 0)
		goto failed;
	add_strings(&at, place);
	rank.argc = (uint32_t)add_strings(&at, (const char *const *)argv);
	rank.envc = (uint32_t)add_strings(&at, (const char *const *)envp);
	rank.strings_size = (uint32_t)strings;
	memcpy(data, &rank, sizeof rank);
	if (file_write_all(fd, data, total))
		goto failed;
	free(data);
	return fd;
failed:
	free(data);
	if (fd >= 0)
		close(fd);
	return -1;
}

static int open_door(const struct env *env, struct keeper *keeper, struct error *err)
{
	struct sockaddr_un address;
	socklen_t size;
	int rc = tasks_address(env, "RANK", &keeper->rank, &address, &size, err);

	if (rc)
		return rc;
	keeper->door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (keeper->door < 0 || bind(keeper->door, (struct sockaddr *)&address, size) ||
	    listen(keeper->door, 8))
		return error_set(err, ERR_UNAVAILABLE, "no socket for the task of rank %d: %s",
				 keeper->rank, strerror(errno));
	return 0;
}

/* The task, or -1 after a signal (*ended) or TASKS_WAIT_MS. */
static int await_task(const struct keeper *keeper, int *ended)
{
	int64_t until = clock_now_ms() + TASKS_WAIT_MS, left;

	while ((left = until - clock_now_ms()) > 0) {
		struct pollfd both[] = {{keeper->door, POLLIN, 0}, {keeper->signals, POLLIN, 0}};
		struct signalfd_siginfo info;

		poll(both, 2, (int)left);
		if (read(keeper->signals, &info, sizeof info) == sizeof info) {
			*ended = (int)info.ssi_signo;
			return -1;
		}
		int task = both[0].revents ? accept4(keeper->door, NULL, NULL, SOCK_CLOEXEC) : -1;

		if (task >= 0 && tasks_is_ours(task))
			return task;
		if (task >= 0)
			close(task);
	}
	return -1;
}

/* Signals down, the end up; returns this process's own code, or ends as the program did. */
static int follow(const struct keeper *keeper)
{
	for (;;) {
		struct pollfd both[] = {{keeper->task, POLLIN, 0}, {keeper->signals, POLLIN, 0}};
		struct signalfd_siginfo info;
		struct tasks_word word;
		int heard;

		poll(both, 2, -1);
		while (read(keeper->signals, &info, sizeof info) == sizeof info)
			tasks_say(keeper->task, TASKS_SIGNAL, (int)info.ssi_signo, NULL, 0);
		heard = both[0].revents ? tasks_hear(keeper->task, &word, NULL) : -1;
		if (heard < 0)
			continue;
		if (!heard) { /* it tells of every end but its own by SIGKILL */
			say_failed(keeper->rank, "its task in the scheduler's step was ended without "
						 "a word: by scancel, or its slurmd?", 0);
			guard_end_as(SIGKILL);
		}
		if (word.kind == TASKS_ENDED)
			guard_end_as(word.value);
		if (word.kind == TASKS_NOT_RUN) /* the task has said so on our stderr */
			return word.value == ENOENT ? 127 : 126;
	}
}

int tasks_keep(const struct env *env, char *const argv[])
{
	struct keeper keeper = {.door = -1, .task = -1, .signals = tasks_signals(0)};
	struct error err = {0};
	char *folder = getcwd(NULL, 0);
	struct env *given = env_copy(env);
	int signalled = 0, fds[TASKS_FDS] = {-1, STDOUT_FILENO, STDERR_FILENO};
	char **envp;

	prctl(PR_SET_NAME, "berth-keeper");
	if (open_door(env, &keeper, &err))
		return say_failed(keeper.rank, err.text, err.code);
	if (given)
		env_drop(given, TASKS_ENV);
	envp = given ? env_to_envp(given) : NULL;
	if (envp && folder)
		fds[TASKS_RANK] = describe(argv, envp, folder);
	if (fds[TASKS_RANK] < 0 || keeper.signals < 0)
		return say_failed(keeper.rank, "memory ran out", ERR_UNAVAILABLE);
	keeper.task = await_task(&keeper, &signalled);
	if (signalled)
		guard_end_as(signalled);
	if (keeper.task < 0)
		return say_failed(keeper.rank, "no task of the scheduler's step came for it within "
					       "60 s", ERR_UNAVAILABLE);
	close(keeper.door);
	if (tasks_say(keeper.task, TASKS_BEGIN, 0, fds, TASKS_FDS))
		return say_failed(keeper.rank, "its task does not listen", ERR_UNAVAILABLE);
	close(fds[TASKS_RANK]);
	return follow(&keeper);
}
