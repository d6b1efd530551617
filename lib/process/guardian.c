/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/guardian.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "process/supervise.h"
#include "process/tmpdir.h"

#define LEFT_MS 5000 /* time to end what the agent left; a process in state D may outlast it */

static const int forwarded_signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT};

static void detach(int keep_fd)
{
	prctl(PR_SET_NAME, "berth-guard");
	/* Close everything: a reader of the agent's pipe or connection must see its end when the
	 * agent ends. */
	file_close_range(0, keep_fd - 1);
	file_close_range(keep_fd + 1, INT_MAX);
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

static _Noreturn void run_guardian(pid_t agent, const char *dir, int lock_fd, const sigset_t *set)
{
	int status;

	detach(lock_fd);
	status = wait_for(agent, set);
	supervise_kill_descendants(NULL, 0, LEFT_MS, NULL, 0);
	tmpdir_remove(dir);
	exit_like(status);
}

int guardian_fork(const char *dir, int lock_fd, pid_t *guardian, struct error *err)
{
	sigset_t set, before;
	pid_t self = getpid(), pid;
	int rc = supervise_become_subreaper(err);

	if (rc)
		return rc;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	for (size_t i = 0; i < sizeof forwarded_signals / sizeof *forwarded_signals; i++)
		sigaddset(&set, forwarded_signals[i]);
	sigprocmask(SIG_BLOCK, &set, &before);
	signal(SIGCHLD, SIG_DFL); /* if ignored, the kernel would discard the agent's status */
	pid = fork();
	if (pid > 0)
		run_guardian(pid, dir, lock_fd, &set);
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
	return 0;
}
