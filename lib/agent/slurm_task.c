/* SPDX-License-Identifier: BSD-3-Clause */
/* The task of the scheduler's step that runs a rank's program: see rank_proxy_channel.h. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rank_proxy_internal.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/loop.h"
#include "process/supervise.h"

#define RETRY_MS 10		 /* the keeper may not be there yet */
#define DUPLICATE_SIGNAL_MS 2000 /* the same signal from the scheduler and by the agent */
#define WAIT_MS 100		 /* for the scheduler's, when the agent's is first */
#define LEFT_MS 2000		 /* to end what the program left */
#define RANK_MAX (64 << 20)	 /* arguments and environment */

struct slurm_task {
	int rank, rank_proxy, signals;
	int fds[RANK_PROXIES_FDS];
	char *text;	  /* what RANK_PROXIES_RANK holds */
	const void *cpus; /* in text, cpus_size bytes */
	size_t cpus_size;
	const char *dir; /* in text */
	char **argv;	 /* into text */
	struct env *env; /* the program's */
	pid_t program_pid;
	int64_t scheduler_signal_ms[NSIG]; /* when the scheduler last sent a signal */
	int64_t due_ms[NSIG]; /* when the keeper's is to be passed on; 0: none is waiting */
};

/* ---- the rank, from its keeper ---- */

static int find_rank_proxy(struct slurm_task *task, const struct sockaddr_un *address,
			   socklen_t size, struct error *err)
{
	int64_t until = clock_now_ms() + RANK_PROXIES_WAIT_MS;
	struct rank_proxies_message message;
	int received = -1;

	for (;;) {
		task->rank_proxy = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (task->rank_proxy >= 0 &&
		    !connect(task->rank_proxy, (const struct sockaddr *)address, size) &&
		    rank_proxies_is_own_user(task->rank_proxy))
			break;
		if (task->rank_proxy >= 0)
			close(task->rank_proxy);
		task->rank_proxy = -1;
		if (clock_now_ms() >= until)
			return error_set(
				err, ERR_UNAVAILABLE,
				"the agent of this node kept no rank %d within %d s: does "
				"the scheduler's step run in a container or network of its "
				"own?",
				task->rank, RANK_PROXIES_WAIT_MS / 1000);
		usleep(RETRY_MS * 1000);
	}
	while (received < 0 && clock_now_ms() < until) {
		poll(&(struct pollfd){task->rank_proxy, POLLIN, 0}, 1, 1000);
		received = rank_proxies_receive(task->rank_proxy, &message, task->fds);
	}
	if (received == 1 && message.kind == RANK_PROXIES_BEGIN &&
	    task->fds[RANK_PROXIES_FDS - 1] >= 0)
		return 0;
	return error_set(err, ERR_UNAVAILABLE, "the keeper of rank %d was ended", task->rank);
}

/* count strings from *at on, each ended before end; NULL at the end of the list. */
static char **split_strings(char **at, const char *end, size_t count)
{
	char **list = count <= RANK_MAX ? calloc(count + 1, sizeof *list) : NULL;

	for (size_t i = 0; list && i < count; i++) {
		char *stop = *at < end ? memchr(*at, 0, (size_t)(end - *at)) : NULL;

		if (!stop) {
			free(list);
			return NULL;
		}
		list[i] = *at;
		*at = stop + 1;
	}
	return list;
}

/* Is it of the task itself, and not of the rank? */
static bool belongs_to_task(const char *name)
{
	static const char *const begins[] = {"SLURM", "PMIX_", "PMI_"};

	if (!strncmp(name, "PMIX_MCA_", 9)) /* settings */
		return false;
	for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
		if (!strncmp(name, begins[i], strlen(begins[i])))
			return true;
	return false;
}

/* The rank's environment, and over it what the scheduler says of its task. */
static int make_environment(struct slurm_task *task, char **rank_env, const struct env *own,
			    struct error *err)
{
	int rc = 0;

	task->env = env_new();
	if (!task->env)
		return error_memory(err, "the program's environment");
	for (size_t i = 0; !rc && rank_env[i]; i++) {
		char *value = strchr(rank_env[i], '=');

		if (!value || value == rank_env[i])
			continue;
		*value++ = '\0';
		rc = env_set(task->env, rank_env[i], value, ENV_FROM_USER, NULL, err);
	}
	for (size_t i = 0; !rc && i < env_count(own); i++) {
		const struct env_var *var = env_at(own, i);

		if (var->value && belongs_to_task(var->name))
			rc = env_set(task->env, var->name, var->value, ENV_FROM_SCHEDULER, NULL,
				     err);
	}
	return rc;
}

static int read_rank(struct slurm_task *task, const struct env *own, struct error *err)
{
	char path[40], **dir = NULL, **rank_env = NULL;
	struct rank_proxies_rank rank;
	size_t size;
	int rc;

	snprintf(path, sizeof path, "/proc/self/fd/%d", task->fds[RANK_PROXIES_RANK]);
	rc = file_read(path, RANK_MAX, &task->text, &size, err);
	if (rc)
		return rc;
	rc = error_set(err, ERR_DATA, "what the keeper of rank %d says is not understood",
		       task->rank);
	if (size < sizeof rank)
		return rc;
	memcpy(&rank, task->text, sizeof rank);
	if (rank.cpus_size > size || rank.strings_size > size ||
	    size != sizeof rank + rank.cpus_size + rank.strings_size)
		return rc;
	char *at = task->text + sizeof rank + rank.cpus_size;

	task->cpus = task->text + sizeof rank;
	task->cpus_size = rank.cpus_size;
	dir = split_strings(&at, task->text + size, 1);
	task->argv = dir ? split_strings(&at, task->text + size, rank.argc) : NULL;
	rank_env =
		task->argv && rank.argc ? split_strings(&at, task->text + size, rank.envc) : NULL;
	if (rank_env) {
		task->dir = dir[0];
		rc = make_environment(task, rank_env, own, err);
	}
	free(dir);
	free(rank_env);
	return rc;
}

/* ---- the program ---- */

static _Noreturn void exec_program(const struct slurm_task *task, char **envp, int failed)
{
	sigset_t none;
	int in = open("/dev/null", O_RDONLY | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(in, 0);
	dup2(task->fds[RANK_PROXIES_STDOUT], 1);
	dup2(task->fds[RANK_PROXIES_STDERR], 2);
	if (sched_setaffinity(0, task->cpus_size, task->cpus))
		dprintf(2,
			"berth: warning: rank %d is not bound to its cores: the step may not use "
			"them (%s)\n",
			task->rank, strerror(errno));
	if (chdir(task->dir)) {
		dprintf(2, "berth: rank %d: the folder %s: %s\n", task->rank, task->dir,
			strerror(errno));
	} else {
		signal(SIGPIPE, SIG_DFL);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execvpe(task->argv[0], task->argv, envp);
		dprintf(2, "berth: cannot run %s: %s\n", task->argv[0], strerror(errno));
	}
	int seen = errno;

	(void)!write(failed, &seen, sizeof seen);
	_exit(127);
}

/* *start_errno: why it is not running, 0 otherwise. */
static int start(struct slurm_task *task, int *start_errno, struct error *err)
{
	char **envp = env_to_envp(task->env);
	int pipe_fds[2];

	if (!envp || pipe2(pipe_fds, O_CLOEXEC)) {
		free(envp);
		return error_memory(err, "the program's start");
	}
	task->program_pid = fork();
	if (!task->program_pid)
		exec_program(task, envp, pipe_fds[1]);
	free(envp);
	close(pipe_fds[1]);
	if (task->program_pid < 0) {
		close(pipe_fds[0]);
		return error_set(err, ERR_UNAVAILABLE, "no process for rank %d: %s", task->rank,
				 strerror(errno));
	}
	if (read(pipe_fds[0], start_errno, sizeof *start_errno) != sizeof *start_errno)
		*start_errno = 0;
	close(pipe_fds[0]);
	/* Its end is to be the end of its output. */
	close(task->fds[RANK_PROXIES_STDOUT]);
	close(task->fds[RANK_PROXIES_STDERR]);
	return 0;
}

/* A signal for the whole job comes by two ways: the scheduler sends it to all processes of its
 * step, so to the program itself (which stays in the task's process group), and the agent to the
 * keeper. */
static void forward_signals(struct slurm_task *task, int64_t now)
{
	for (int number = 1; number < NSIG; number++) {
		if (!task->due_ms[number] || now < task->due_ms[number])
			continue;
		task->due_ms[number] = 0;
		if (!task->scheduler_signal_ms[number] ||
		    now - task->scheduler_signal_ms[number] > DUPLICATE_SIGNAL_MS)
			kill(getpgrp() == getpid() ? 0 : task->program_pid, number);
	}
}

static void read_signals(struct slurm_task *task, int64_t now)
{
	struct signalfd_siginfo info;

	while (read(task->signals, &info, sizeof info) == sizeof info)
		if (info.ssi_signo < NSIG && info.ssi_pid != (uint32_t)getpid())
			task->scheduler_signal_ms[info.ssi_signo] = now;
}

/* Until the program's end, in *status. */
static void follow(struct slurm_task *task, int *status)
{
	bool proxy_connected = true, waiting = false;

	for (;;) {
		struct pollfd both[] = {{task->signals, POLLIN, 0}, {task->rank_proxy, POLLIN, 0}};
		struct rank_proxies_message message;
		int64_t now;

		poll(both, proxy_connected ? 2 : 1, waiting ? WAIT_MS : -1);
		now = clock_now_ms();
		read_signals(task, now);
		if (waitpid(task->program_pid, status, WNOHANG) == task->program_pid)
			return;
		int received = proxy_connected && both[1].revents
				       ? rank_proxies_receive(task->rank_proxy, &message, NULL)
				       : -1;

		if (received == 1 && message.kind == RANK_PROXIES_SIGNAL && message.value > 0 &&
		    message.value < NSIG && !task->due_ms[message.value])
			task->due_ms[message.value] = now + WAIT_MS;
		if (received == 0) { /* the agent has ended the rank, or is no more */
			proxy_connected = false;
			kill(task->program_pid, SIGKILL);
		}
		forward_signals(task, now);
		waiting = false;
		for (int number = 1; number < NSIG; number++)
			waiting |= task->due_ms[number] != 0;
	}
}

static void slurm_task_free(struct slurm_task *task)
{
	env_free(task->env);
	free(task->argv);
	free(task->text);
}

int slurm_task_run(const struct env *env)
{
	struct slurm_task task = {.rank_proxy = -1, .signals = rank_proxies_block_signals(SIGCHLD)};
	struct error err = {0};
	struct sockaddr_un address;
	socklen_t size;
	int status = 0, start_errno = 0;
	int rc = rank_proxies_address(env, "SLURM_PROCID", &task.rank, &address, &size, &err);

	prctl(PR_SET_NAME, "berth-task");
	if (!rc)
		rc = supervise_become_subreaper(&err);
	if (!rc)
		rc = find_rank_proxy(&task, &address, size, &err);
	if (!rc)
		rc = read_rank(&task, env, &err);
	if (!rc)
		rc = start(&task, &start_errno, &err);
	if (rc) {
		fprintf(stderr, "berth: %s\n", err.text);
		slurm_task_free(&task);
		return -rc;
	}
	if (start_errno) {
		waitpid(task.program_pid, &status, 0);
		rank_proxies_send(task.rank_proxy, RANK_PROXIES_NOT_RUN, start_errno, NULL, 0);
	} else {
		follow(&task, &status);
		/* What it left behind, before its end is told: that has its output open. */
		supervise_kill_descendants(NULL, 0, LEFT_MS, NULL, 0);
		rank_proxies_send(task.rank_proxy, RANK_PROXIES_ENDED, status, NULL, 0);
	}
	slurm_task_free(&task);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
