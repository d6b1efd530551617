/* SPDX-License-Identifier: BSD-3-Clause */
/* A rank for the tests of supervise: argv[1] selects its behaviour. */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void say(const char *text)
{
	if (write(1, text, strlen(text)) < 0)
		_exit(99);
}

static void wait_for_ever(void)
{
	alarm(60); /* a failing test leaves no process running for long */
	for (;;)
		pause();
}

static void ignore_all(void)
{
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
}

/* Write count lines to both streams alternately: "o 17 xxxx" and "e 17 xxxx". */
static int lines(int count, int size)
{
	char *text = malloc((size_t)size + 64);
	FILE *streams[2] = {stdout, stderr};

	setvbuf(stdout, NULL, _IOFBF, 30000);
	setvbuf(stderr, NULL, _IOFBF, 10007);
	memset(text, 'x', (size_t)size);
	text[size] = '\0';
	for (int i = 0; i < count; i++)
		for (int k = 0; k < 2; k++)
			fprintf(streams[k], "%c %d %s\n", "oe"[k], i, text);
	free(text);
	return 0;
}

/* A grandchild in a session of its own, which keeps our stdout and ignores every signal it can. */
static void leave_daemon(void)
{
	int ready[2];
	char byte;

	if (pipe(ready))
		_exit(1);

	pid_t pid = fork();

	if (pid > 0) {
		close(ready[1]);
		waitpid(pid, NULL, 0);
		if (read(ready[0], &byte, 1) != 1) /* it ignores signals and has written its line */
			_exit(1);
		close(ready[0]);
		return;
	}
	setsid();
	if (fork() > 0)
		_exit(0);
	ignore_all();

	char text[64];

	snprintf(text, sizeof text, "daemon %d\n", (int)getpid());
	say(text);
	if (write(ready[1], "", 1) != 1)
		_exit(1);
	wait_for_ever();
}

/* A process that forks and exits all the time, so its pid keeps changing. */
static void hop(void)
{
	struct timespec pause = {.tv_nsec = 500000};

	for (int i = 0; i < 100000; i++) {
		if (fork() > 0)
			_exit(0);
		if (i % 7 == 0)
			setsid();
		nanosleep(&pause, NULL);
	}
}

static int show_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	while ((entry = readdir(dir)))
		if (entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(dir))
			printf("%s\n", entry->d_name);
	closedir(dir);
	return 0;
}

static int show_status(void)
{
	FILE *file = fopen("/proc/self/status", "r");
	char line[4096];

	while (fgets(line, sizeof line, file))
		if (!strncmp(line, "Cpus_allowed_list:", 18) || !strncmp(line, "SigBlk:", 7) ||
		    !strncmp(line, "SigIgn:", 7))
			fputs(line, stdout);
	fclose(file);
	printf("session %d %d\n", getsid(0) == getpid(), getpgrp() == getpid());
	return 0;
}

static void *thread_main(void *unused)
{
	say("thread\n");
	wait_for_ever();
	return unused;
}

static void told(int signal)
{
	char text[32];

	snprintf(text, sizeof text, "signal %d\n", signal);
	say(text);
	if (signal == SIGTERM)
		_exit(7);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int number = argc > 2 ? atoi(argv[2]) : 0;

	if (!strcmp(mode, "exit"))
		return number;
	if (!strcmp(mode, "raise")) {
		signal(number, SIG_DFL); /* the sanitizers catch some of these */
		raise(number);
		wait_for_ever();
	}
	if (!strcmp(mode, "lines"))
		return lines(number, atoi(argv[3]));
	if (!strcmp(mode, "say")) {
		say(argv[2]);
		return 0;
	}
	if (!strcmp(mode, "stubborn")) {
		ignore_all();
		say("ready\n");
		wait_for_ever();
	}
	if (!strcmp(mode, "signals")) {
		signal(SIGUSR1, told);
		signal(SIGUSR2, told);
		signal(SIGTERM, told);
		say("ready\n");
		wait_for_ever();
	}
	if (!strcmp(mode, "daemon")) {
		leave_daemon();
		if (number)
			wait_for_ever();
		return 0;
	}
	if (!strcmp(mode, "orphans")) {
		for (int i = 0; i < number; i++)
			if (!fork()) {
				if (!fork())
					usleep(1000);
				_exit(0);
			}
		while (wait(NULL) > 0 || errno == EINTR)
			;
		say("ready\n");
		wait_for_ever();
	}
	if (!strcmp(mode, "hop")) {
		if (!fork())
			hop();
		say("ready\n");
		if (number)
			wait_for_ever();
		return 0;
	}
	if (!strcmp(mode, "fds"))
		return show_fds();
	if (!strcmp(mode, "status"))
		return show_status();
	if (!strcmp(mode, "leaderless")) {
		pthread_t thread;

		ignore_all();
		pthread_create(&thread, NULL, thread_main, NULL);
		pthread_exit(NULL);
	}
	if (!strcmp(mode, "stopped")) {
		say("ready\n");
		raise(SIGSTOP);
		wait_for_ever();
	}
	if (!strcmp(mode, "cat")) {
		char text[256];
		ssize_t n;

		while ((n = read(0, text, sizeof text)) > 0)
			if (write(1, text, (size_t)n) != n)
				return 1;
		return 0;
	}
	if (!strcmp(mode, "where")) {
		char *cwd = getcwd(NULL, 0);

		printf("%s %s %s\n", argv[0], cwd, getenv("COLOUR") ? getenv("COLOUR") : "-");
		free(cwd);
		return 0;
	}
	return 98;
}
