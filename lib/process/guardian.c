/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "process/supervise.h"
#include "process/tmpdir.h"

#define LEFT_MS 5000 /* time to end what the agent left; a process in state D may outlast it */
#define AT_END_MS 5000
#define AT_END_SIZE 65536 /* of a pipe */

static const int forwarded_signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT};

static void detach(int one, int other)
{
	int low = one < other ? one : other, high = one < other ? other : one;

	prctl(PR_SET_NAME, "berth-guard");
	/* Close everything else: a reader of the agent's pipe or connection must see its end when
	 * the agent ends. */
	file_close_range(0, low - 1);
	file_close_range(low + 1, high - 1);
	file_close_range(high + 1, INT_MAX);
	while (open("/dev/null", O_RDWR) >= 0 && fcntl(STDERR_FILENO, F_GETFD) < 0)
		; /* until standard input, output and error are open */
	/* The guardian must not keep a file system from being unmounted. */
	(void)!chdir("/");
}

/* Wait for the agent's end; reap orphans that end earlier. */
static int wait_for(pid_t agent, const sigset_t *set)
{
	siginfo_t info;
	int status;
	pid_t pid;

	for (;;) {
		while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0)
			if (pid == agent)
				return status;
		if (sigwaitinfo(set, &info) > 0 && info.si_signo != SIGCHLD)
			kill(agent, info.si_signo);
	}
}

/* End this process as the agent did: by its code or its signal (without a core file). status: as
 * waitpid returned it. */
static _Noreturn void exit_like(int status)
{
	struct rlimit none = {0, 0};
	sigset_t one;
	int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

	if (!number)
		_exit(WEXITSTATUS(status));
	/* The process that ended this way has dumped core itself, if allowed. */
	setrlimit(RLIMIT_CORE, &none);
	signal(number, SIG_DFL);
	sigemptyset(&one);
	sigaddset(&one, number);
	kill(getpid(), number);
	sigprocmask(SIG_UNBLOCK, &one, NULL);
	_exit(128 + number);
}

/* Run the command whose words, each with its NUL, are in the pipe, for a few seconds at most. */
static void run_at_end(int fd)
{
	static char text[AT_END_SIZE + 1]; /* a NUL is behind it */
	struct words words = {0};
	ssize_t size = read(fd, text, AT_END_SIZE);
	sigset_t none;
	char **argv;
	pid_t pid;

	for (ssize_t i = 0; i < size; i += (ssize_t)strlen(text + i) + 1)
		words_add(&words, "%s", text + i);
	argv = words_end(&words);
	pid = argv && argv[0] ? fork() : -1;
	if (!pid) {
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execv(argv[0], argv);
		_exit(127);
	}
	for (int i = 0; pid > 0 && waitpid(pid, NULL, WNOHANG) == 0; i++)
		if (i < AT_END_MS / 10)
			usleep(10000);
		else
			kill(pid, SIGKILL);
	free(argv);
}

static _Noreturn void run_guardian(pid_t agent, const char *dir, int lock_fd, int at_end_fd,
				   const sigset_t *set)
{
	int status;

	detach(lock_fd, at_end_fd);
	status = wait_for(agent, set);
	supervise_kill_descendants(NULL, 0, LEFT_MS, NULL, 0);
	run_at_end(at_end_fd);
	tmpdir_remove(dir);
	exit_like(status);
}

int guardian_at_end(int fd, const char *const *words, struct error *err)
{
	for (size_t i = 0; words[i]; i++)
		if (write(fd, words[i], strlen(words[i]) + 1) < 0)
			return error_set(err, ERR_OUTPUT, "cannot write to the guardian: %m");
	return 0;
}

int guardian_fork(const char *dir, int lock_fd, pid_t *guardian, int *at_end_fd, struct error *err)
{
	sigset_t set, before;
	pid_t self = getpid(), pid;
	int rc = supervise_become_subreaper(err), ends[2];

	if (rc)
		return rc;
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return error_set(err, ERR_UNAVAILABLE, "cannot make a pipe: %m");
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	for (size_t i = 0; i < sizeof forwarded_signals / sizeof *forwarded_signals; i++)
		sigaddset(&set, forwarded_signals[i]);
	sigprocmask(SIG_BLOCK, &set, &before);
	signal(SIGCHLD, SIG_DFL); /* if ignored, the kernel would discard the agent's status */
	pid = fork();
	if (pid > 0)
		run_guardian(pid, dir, lock_fd, ends[0], &set);
	close(ends[0]);
	if (pid < 0)
		error_set(err, ERR_UNAVAILABLE,
			  "cannot fork the agent's guardian process: %m (check the process limits: "
			  "ulimit -u, the cgroup's pids.max)");
	sigprocmask(SIG_SETMASK, &before, NULL);
	if (pid < 0)
		return -err->code;
	/* A signal to the guardian's group must arrive once: forwarded by the guardian. */
	setsid();
	*guardian = self;
	*at_end_fd = ends[1];
	return 0;
}
