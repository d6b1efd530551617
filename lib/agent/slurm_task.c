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

#define RETRY_MS 10	    /* the keeper may not be there yet */
#define TWIN_MS 2000	    /* the same signal from the scheduler and by the agent */
#define WAIT_MS 100	    /* for the scheduler's, when the agent's is first */
#define LEFT_MS 2000	    /* to end what the program left */
#define RANK_MAX (64 << 20) /* arguments and environment */

struct task {
	int rank, keeper, signals;
	int fds[TASKS_FDS];
	char *text;	   /* what TASKS_RANK holds */
	const void *cpus;  /* in text, cpus_size bytes */
	size_t cpus_size;
	const char *folder; /* in text */
	char **argv;	   /* into text */
	struct env *env;   /* the program's */
	pid_t program;
	int64_t heard_ms[NSIG]; /* when the scheduler last sent a signal */
	int64_t due_ms[NSIG];	/* when the keeper's is to be passed on; 0: none is waiting */
};

/* ---- the rank, from its keeper ---- */

static int find_keeper(struct task *task, const struct sockaddr_un *address, socklen_t size,
		       struct error *err)
{
	int64_t until = clock_now_ms() + TASKS_WAIT_MS;
	struct tasks_word word;
	int heard = -1;

	for (;;) {
		task->keeper = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
		if (task->keeper >= 0 &&
		    !connect(task->keeper, (const struct sockaddr *)address, size) &&
		    tasks_is_ours(task->keeper))
			break;
		if (task->keeper >= 0)
			close(task->keeper);
		task->keeper = -1;
		if (clock_now_ms() >= until)
			return error_set(err, ERR_UNAVAILABLE,
					 "the agent of this node kept no rank %d within %d s: does "
					 "the scheduler's step run in a container or network of its "
					 "own?",
					 task->rank, TASKS_WAIT_MS / 1000);
		usleep(RETRY_MS * 1000);
	}
	while (heard < 0 && clock_now_ms() < until) {
		poll(&(struct pollfd){task->keeper, POLLIN, 0}, 1, 1000);
		heard = tasks_hear(task->keeper, &word, task->fds);
	}
	if (heard == 1 && word.kind == TASKS_BEGIN && task->fds[TASKS_FDS - 1] >= 0)
		return 0;
	return error_set(err, ERR_UNAVAILABLE, "the keeper of rank %d was ended", task->rank);
}

/* count strings from *at on, each ended before end; NULL at the end of the list. */
static char **take_strings(char **at, const char *end, size_t count)
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
static bool is_of_task(const char *name)
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
static int make_environment(struct task *task, char **given, const struct env *own,
			    struct error *err)
{
	int rc = 0;

	task->env = env_new();
	if (!task->env)
		return error_memory(err, "the program's environment");
	for (size_t i = 0; !rc && given[i]; i++) {
		char *value = strchr(given[i], '=');

		if (!value || value == given[i])
			continue;
		*value++ = '\0';
		rc = env_set(task->env, given[i], value, ENV_FROM_USER, NULL, err);
	}
	for (size_t i = 0; !rc && i < env_count(own); i++) {
		const struct env_var *var = env_at(own, i);

		if (var->value && is_of_task(var->name))
			rc = env_set(task->env, var->name, var->value, ENV_FROM_SCHEDULER, NULL, err);
	}
	return rc;
}

static int read_rank(struct task *task, const struct env *own, struct error *err)
{
	char path[40], **folder = NULL, **given = NULL;
	struct tasks_rank rank;
	size_t size;
	int rc;

	snprintf(path, sizeof path, "/proc/self/fd/%d", task->fds[TASKS_RANK]);
	rc = file_read(path, RANK_MAX, &task->text, &size, err);
	if (rc)
		return rc;
	rc = error_set(err, ERR_DATA, "what the keeper of rank %d says is not understood", task->rank);
	if (size < sizeof rank)
		return rc;
	memcpy(&rank, task->text, sizeof rank);
	if (rank.cpus_size > size || rank.strings_size > size ||
	    size != sizeof rank + rank.cpus_size + rank.strings_size)
		return rc;
	char *at = task->text + sizeof rank + rank.cpus_size;

	task->cpus = task->text + sizeof rank;
	task->cpus_size = rank.cpus_size;
	folder = take_strings(&at, task->text + size, 1);
	task->argv = folder ? take_strings(&at, task->text + size, rank.argc) : NULL;
	given = task->argv && rank.argc ? take_strings(&at, task->text + size, rank.envc) : NULL;
	if (given) {
		task->folder = folder[0];
		rc = make_environment(task, given, own, err);
	}
	free(folder);
	free(given);
	return rc;
}

/* ---- the program ---- */

static _Noreturn void be_program(const struct task *task, char **envp, int failed)
{
	sigset_t none;
	int in = open("/dev/null", O_RDONLY | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(in, 0);
	dup2(task->fds[TASKS_STDOUT], 1);
	dup2(task->fds[TASKS_STDERR], 2);
	if (sched_setaffinity(0, task->cpus_size, task->cpus))
		dprintf(2, "berth: warning: rank %d is not bound to its cores: the step may not use "
			   "them (%s)\n", task->rank, strerror(errno));
	if (chdir(task->folder)) {
		dprintf(2, "berth: rank %d: the folder %s: %s\n", task->rank, task->folder,
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
static int start(struct task *task, int *start_errno, struct error *err)
{
	char **envp = env_to_envp(task->env);
	int pipe_fds[2];

	if (!envp || pipe2(pipe_fds, O_CLOEXEC)) {
		free(envp);
		return error_memory(err, "the program's start");
	}
	task->program = fork();
	if (!task->program)
		be_program(task, envp, pipe_fds[1]);
	free(envp);
	close(pipe_fds[1]);
	if (task->program < 0) {
		close(pipe_fds[0]);
		return error_set(err, ERR_UNAVAILABLE, "no process for rank %d: %s", task->rank,
				 strerror(errno));
	}
	if (read(pipe_fds[0], start_errno, sizeof *start_errno) != sizeof *start_errno)
		*start_errno = 0;
	close(pipe_fds[0]);
	/* Its end is to be the end of its output. */
	close(task->fds[TASKS_STDOUT]);
	close(task->fds[TASKS_STDERR]);
	return 0;
}

/* A signal for the whole job comes by two ways: the scheduler sends it to all processes of its step,
 * so to the program itself (which stays in the task's process group), and the agent to the keeper. */
static void pass_on(struct task *task, int64_t now)
{
	for (int number = 1; number < NSIG; number++) {
		if (!task->due_ms[number] || now < task->due_ms[number])
			continue;
		task->due_ms[number] = 0;
		if (!task->heard_ms[number] || now - task->heard_ms[number] > TWIN_MS)
			kill(getpgrp() == getpid() ? 0 : task->program, number);
	}
}

static void take_signals(struct task *task, int64_t now)
{
	struct signalfd_siginfo info;

	while (read(task->signals, &info, sizeof info) == sizeof info)
		if (info.ssi_signo < NSIG && info.ssi_pid != (uint32_t)getpid())
			task->heard_ms[info.ssi_signo] = now;
}

/* Until the program's end, in *status. */
static void follow(struct task *task, int *status)
{
	bool keeper_there = true, waiting = false;

	for (;;) {
		struct pollfd both[] = {{task->signals, POLLIN, 0}, {task->keeper, POLLIN, 0}};
		struct tasks_word word;
		int64_t now;

		poll(both, keeper_there ? 2 : 1, waiting ? WAIT_MS : -1);
		now = clock_now_ms();
		take_signals(task, now);
		if (waitpid(task->program, status, WNOHANG) == task->program)
			return;
		int heard = keeper_there && both[1].revents
				    ? tasks_hear(task->keeper, &word, NULL)
				    : -1;

		if (heard == 1 && word.kind == TASKS_SIGNAL && word.value > 0 &&
		    word.value < NSIG && !task->due_ms[word.value])
			task->due_ms[word.value] = now + WAIT_MS;
		if (heard == 0) { /* the agent has ended the rank, or is no more */
			keeper_there = false;
			kill(task->program, SIGKILL);
		}
		pass_on(task, now);
		waiting = false;
		for (int number = 1; number < NSIG; number++)
			waiting |= task->due_ms[number] != 0;
	}
}

static void task_free(struct task *task)
{
	env_free(task->env);
	free(task->argv);
	free(task->text);
}

int tasks_run(const struct env *env)
{
	struct task task = {.keeper = -1, .signals = tasks_signals(SIGCHLD)};
	struct error err = {0};
	struct sockaddr_un address;
	socklen_t size;
	int status = 0, start_errno = 0;
	int rc = tasks_address(env, "SLURM_PROCID", &task.rank, &address, &size, &err);

	prctl(PR_SET_NAME, "berth-task");
	if (!rc)
		rc = supervise_adopt(&err);
	if (!rc)
		rc = find_keeper(&task, &address, size, &err);
	if (!rc)
		rc = read_rank(&task, env, &err);
	if (!rc)
		rc = start(&task, &start_errno, &err);
	if (rc) {
		fprintf(stderr, "berth: %s\n", err.text);
		task_free(&task);
		return -rc;
	}
	if (start_errno) {
		waitpid(task.program, &status, 0);
		tasks_say(task.keeper, TASKS_NOT_RUN, start_errno, NULL, 0);
	} else {
		follow(&task, &status);
		/* What it left behind, before its end is told: that has its output open. */
		supervise_kill_descendants(NULL, 0, LEFT_MS, NULL, 0);
		tasks_say(task.keeper, TASKS_ENDED, status, NULL, 0);
	}
	task_free(&task);
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
