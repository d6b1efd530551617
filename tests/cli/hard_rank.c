/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank that is hard to end, for kill.py: hard-rank FENCES RUN_MS STUBBORN
 *
 * Leaves four processes behind: a child, a child in its own session, one forked twice, and one
 * forked twice with an empty environment. If STUBBORN is 1, they and the rank ignore SIGTERM.
 * Prints "born", then FENCES times "fence" before it meets the other ranks, then "run", and runs
 * for RUN_MS more. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_PMIX
#include <pmix.h>
#endif

static int stubborn;

static void wait_ms(int ms)
{
	struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

	nanosleep(&pause, NULL);
}

static void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		_exit(1);
}

static void linger(void)
{
	alarm(120); /* no process of a test lives long, even if something fails */
	for (;;)
		pause();
}

static void leave_child(int twice, int bare)
{
	pid_t pid = fork();

	if (pid > 0) {
		if (twice)
			waitpid(pid, NULL, 0);
		return;
	}
	if (twice) {
		setsid();
		if (fork() > 0)
			_exit(0);
	}
	if (bare) {
		char *none[] = {NULL};

		execle("/bin/sleep", "sleep", "120", (char *)NULL, none);
		_exit(1);
	}
	linger();
}

static void leave_session(void)
{
	if (fork() > 0)
		return;
	setsid();
	linger();
}

#ifdef HAVE_PMIX
static int meet(int fences)
{
	pmix_proc_t self, all;

	if (!getenv("PMIX_NAMESPACE") || PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS)
		return 1; /* berth run promises that it exists */
	PMIX_PROC_LOAD(&all, self.nspace, PMIX_RANK_WILDCARD);
	say("fence\n");
	for (int i = 0; i < fences; i++) {
		if (PMIx_Fence(&all, 1, NULL, 0) != PMIX_SUCCESS)
			return 1;
		wait_ms(2);
	}
	return 0;
}
#else
static int meet(int fences)
{
	say("fence\n");
	wait_ms(fences * 3);
	return 0;
}
#endif

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	stubborn = atoi(argv[3]);
	if (stubborn)
		signal(SIGTERM, SIG_IGN);
	leave_child(0, 0);
	leave_session();
	leave_child(1, 0);
	leave_child(1, 1);
	say("born\n");
	if (meet(atoi(argv[1])))
		return 1;
	say("run\n");
	wait_ms(atoi(argv[2]));
	return 0;
}
