/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that the agent started, kept for the task of the scheduler's step: see
 * rank_proxy_channel.h. */
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

struct rank_proxy {
	int rank, listen_fd, task_fd, signals;
};

static int print_failure(int rank, const char *what, int code)
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

static size_t strings_bytes(const char *const *list)
{
	size_t size = 0;

	for (size_t i = 0; list[i]; i++)
		size += strlen(list[i]) + 1;
	return size;
}

/* The rank as a file that its task reads; -1: errno. */
static int describe(char *const argv[], char **envp, const char *dir)
{
	size_t cpus_size = CPU_ALLOC_SIZE(IDSET_MAX + 1);
	const char *const dir_list[] = {dir, NULL};
	struct rank_proxies_rank rank = {.cpus_size = (uint32_t)cpus_size};
	size_t strings = strings_bytes(dir_list) + strings_bytes((const char *const *)argv) +
			 strings_bytes((const char *const *)envp);
	size_t total = sizeof rank + cpus_size + strings;
	char *data = calloc(1, total), *at = data + sizeof rank + cpus_size;
	int fd = memfd_create("berth-rank", MFD_CLOEXEC);

	if (!data || fd < 0 || strings > UINT32_MAX ||
	    sched_getaffinity(0, cpus_size, (cpu_set_t *)(data + sizeof rank)) < 0)
		goto failed;
	add_strings(&at, dir_list);
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

static int open_socket(const struct env *env, struct rank_proxy *rank_proxy, struct error *err)
{
	struct sockaddr_un address;
	socklen_t size;
	int rc = rank_proxies_address(env, "RANK", &rank_proxy->rank, &address, &size, err);

	if (rc)
		return rc;
	rank_proxy->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (rank_proxy->listen_fd < 0 ||
	    bind(rank_proxy->listen_fd, (struct sockaddr *)&address, size) ||
	    listen(rank_proxy->listen_fd, 8))
		return error_set(err, ERR_UNAVAILABLE, "no socket for the task of rank %d: %s",
				 rank_proxy->rank, strerror(errno));
	return 0;
}

/* The task, or -1 after a signal (*ended) or RANK_PROXIES_WAIT_MS. */
static int accept_task(const struct rank_proxy *rank_proxy, int *ended)
{
	int64_t until = clock_now_ms() + RANK_PROXIES_WAIT_MS, left;

	while ((left = until - clock_now_ms()) > 0) {
		struct pollfd both[] = {{rank_proxy->listen_fd, POLLIN, 0},
					{rank_proxy->signals, POLLIN, 0}};
		struct signalfd_siginfo info;

		poll(both, 2, (int)left);
		if (read(rank_proxy->signals, &info, sizeof info) == sizeof info) {
			*ended = (int)info.ssi_signo;
			return -1;
		}
		int task_fd = both[0].revents
				      ? accept4(rank_proxy->listen_fd, NULL, NULL, SOCK_CLOEXEC)
				      : -1;

		if (task_fd >= 0 && rank_proxies_is_own_user(task_fd))
			return task_fd;
		if (task_fd >= 0)
			close(task_fd);
	}
	return -1;
}

/* Signals down, the end up; returns this process's own code, or ends as the program did. */
static int follow(const struct rank_proxy *rank_proxy)
{
	for (;;) {
		struct pollfd both[] = {{rank_proxy->task_fd, POLLIN, 0},
					{rank_proxy->signals, POLLIN, 0}};
		struct signalfd_siginfo info;
		struct rank_proxies_message message;
		int received;

		poll(both, 2, -1);
		while (read(rank_proxy->signals, &info, sizeof info) == sizeof info)
			rank_proxies_send(rank_proxy->task_fd, RANK_PROXIES_SIGNAL,
					  (int)info.ssi_signo, NULL, 0);
		received = both[0].revents
				   ? rank_proxies_receive(rank_proxy->task_fd, &message, NULL)
				   : -1;
		if (received < 0)
			continue;
		if (!received) { /* it tells of every end but its own by SIGKILL */
			print_failure(rank_proxy->rank,
				      "its task in the scheduler's step was ended without "
				      "a word: by scancel, or its slurmd?",
				      0);
			guardian_exit_like(SIGKILL);
		}
		if (message.kind == RANK_PROXIES_ENDED)
			guardian_exit_like(message.value);
		if (message.kind == RANK_PROXIES_NOT_RUN) /* the task has said so on our stderr */
			return message.value == ENOENT ? 127 : 126;
	}
}

int rank_proxy_run(const struct env *env, char *const argv[])
{
	struct rank_proxy rank_proxy = {
		.listen_fd = -1, .task_fd = -1, .signals = rank_proxies_block_signals(0)};
	struct error err = {0};
	char *dir = getcwd(NULL, 0);
	struct env *program_env = env_copy(env);
	int signalled = 0, fds[RANK_PROXIES_FDS] = {-1, STDOUT_FILENO, STDERR_FILENO};
	char **envp;

	prctl(PR_SET_NAME, "berth-keeper");
	if (open_socket(env, &rank_proxy, &err))
		return print_failure(rank_proxy.rank, err.text, err.code);
	if (program_env)
		env_drop(program_env, RANK_PROXIES_ENV);
	envp = program_env ? env_to_envp(program_env) : NULL;
	if (envp && dir)
		fds[RANK_PROXIES_RANK] = describe(argv, envp, dir);
	if (fds[RANK_PROXIES_RANK] < 0 || rank_proxy.signals < 0)
		return print_failure(rank_proxy.rank, "memory ran out", ERR_UNAVAILABLE);
	rank_proxy.task_fd = accept_task(&rank_proxy, &signalled);
	if (signalled)
		guardian_exit_like(signalled);
	if (rank_proxy.task_fd < 0)
		return print_failure(rank_proxy.rank,
				     "no task of the scheduler's step came for it within "
				     "60 s",
				     ERR_UNAVAILABLE);
	close(rank_proxy.listen_fd);
	if (rank_proxies_send(rank_proxy.task_fd, RANK_PROXIES_BEGIN, 0, fds, RANK_PROXIES_FDS))
		return print_failure(rank_proxy.rank, "its task does not listen", ERR_UNAVAILABLE);
	close(fds[RANK_PROXIES_RANK]);
	return follow(&rank_proxy);
}
