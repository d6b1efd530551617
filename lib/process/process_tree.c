/* SPDX-License-Identifier: BSD-3-Clause */
/* /proc is read while processes start, end and get new parents, so a list may lack some. Callers
 * read it again until nothing is left. A pid may be reused meanwhile: compare start times. */
#include "process/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "process/supervise.h"

#define ENVIRON_MAX (8 << 20)

int process_tree_pidfd_open(pid_t pid)
{
#ifdef SYS_pidfd_open
	return (int)syscall(SYS_pidfd_open, pid, 0);
#else
	errno = ENOSYS;
	return -1;
#endif
}

static int pidfd_signal(int fd, int signal)
{
#ifdef SYS_pidfd_send_signal
	return (int)syscall(SYS_pidfd_send_signal, fd, signal, NULL, 0);
#else
	errno = ENOSYS;
	return -1;
#endif
}

bool process_tree_find(pid_t pid, struct process_tree_entry *out)
{
	char path[32], text[1024];

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);

	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;

	ssize_t size = read(fd, text, sizeof text - 1);

	close(fd);
	if (size <= 0)
		return false;
	text[size] = '\0';

	/* The name may contain spaces and parentheses: the last one ends it. */
	char *name = strchr(text, '('), *end = strrchr(text, ')');
	int parent, group, threads;
	unsigned long long start, user, kernel;

	if (!name || !end || end < name)
		return false;
	*end = '\0';
	/* Fields 3 to 22 of proc_pid_stat(5): state, parent, group, CPU times, threads, start time.
	 */
	if (sscanf(end + 1,
		   " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %d %*d "
		   "%llu",
		   &out->state, &parent, &group, &user, &kernel, &threads, &start) != 7)
		return false;
	out->pid = pid;
	out->parent = parent;
	out->group = group;
	out->start = start;
	out->used = user + kernel;
	/* A process whose main thread has ended is shown as a zombie while its other threads run.
	 */
	out->alive = (out->state != 'Z' && out->state != 'X') || threads > 1;
	snprintf(out->name, sizeof out->name, "%s", name + 1);
	return true;
}

static bool list_add(struct process_tree *list, const struct process_tree_entry *process)
{
	if (!array_reserve(&list->items, list->count, &list->room, sizeof *list->items))
		return false;
	list->items[list->count++] = *process;
	return true;
}

static int list_all(struct process_tree *list)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	int rc = 0;

	if (!proc)
		return -1;
	list->count = 0;
	while (!rc && (entry = readdir(proc))) {
		struct process_tree_entry process;
		char *end;
		long pid = strtol(entry->d_name, &end, 10);

		if (pid <= 0 || *end || !process_tree_find((pid_t)pid, &process))
			continue;
		if (!list_add(list, &process))
			rc = -1;
	}
	closedir(proc);
	return rc;
}

static int by_pid(const void *a, const void *b)
{
	pid_t x = ((const struct process_tree_entry *)a)->pid;
	pid_t y = ((const struct process_tree_entry *)b)->pid;

	return x < y ? -1 : x > y;
}

static const struct process_tree_entry *find_process(const struct process_tree *list, pid_t pid)
{
	struct process_tree_entry key = {.pid = pid};

	return bsearch(&key, list->items, list->count, sizeof key, by_pid);
}

/* Follow the parents up to this process, an excepted one, or the top. */
static bool descends(struct process_tree *all, const struct process_tree_entry *process,
		     const pid_t *except, size_t except_count)
{
	pid_t self = getpid();

	/* A list read while processes start and end may even contain a cycle. */
	for (size_t steps = 0; steps <= all->count; steps++) {
		for (size_t i = 0; i < except_count; i++)
			if (process->pid == except[i])
				return false;
		if (process->parent == self)
			return true;
		if (process->parent <= 1)
			return false;

		const struct process_tree_entry *parent = find_process(all, process->parent);

		if (!parent) {
			/* 0 is the parent of those outside our PID namespace: handled above. */
			all->incomplete = true;
			return false;
		}
		process = parent;
	}
	return false;
}

int process_tree_read(const pid_t *except, size_t except_count, struct process_tree *list)
{
	struct process_tree all = {0};

	if (list_all(&all)) {
		process_tree_free(&all);
		return -1;
	}
	if (all.count)
		qsort(all.items, all.count, sizeof *all.items, by_pid);
	list->count = 0;

	int rc = 0;
	pid_t self = getpid();

	for (size_t i = 0; i < all.count && !rc; i++)
		if (all.items[i].pid != self &&
		    descends(&all, &all.items[i], except, except_count) &&
		    !list_add(list, &all.items[i]))
			rc = -1;
	list->incomplete = all.incomplete;
	process_tree_free(&all);
	return rc;
}

/* LOCAL_RANK in a process's environment, or -1. */
static long local_rank_of(pid_t pid)
{
	static const char name[] = "\0LOCAL_RANK=";
	char path[40], *text = NULL, *at;
	size_t size = 0;
	long rank = -1;

	snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
	if (file_read(path, ENVIRON_MAX, &text, &size, NULL))
		return -1;
	at = memmem(text, size, name, sizeof name - 1);
	if (at)
		rank = strtol(at + sizeof name - 1, NULL, 10);
	free(text);
	return rank;
}

void process_tree_adopt(struct process_tree *list, const pid_t *groups, size_t count)
{
	for (size_t i = 0; i < list->count; i++) {
		const struct process_tree_entry *process = &list->items[i];
		const struct process_tree_entry *parent = find_process(list, process->parent);
		pid_t group = process->group;
		long rank = parent && !strcmp(parent->name, "conmon") ? local_rank_of(process->pid)
								      : -1;

		for (size_t k = 0; rank >= 0 && (size_t)rank < count && k < list->count; k++)
			if (list->items[k].group == group)
				list->items[k].group = groups[rank];
			else if (list->items[k].group == groups[rank])
				list->items[k].group = 0; /* podman run */
	}
}

void process_tree_free(struct process_tree *list)
{
	if (!list)
		return;
	free(list->items);
	memset(list, 0, sizeof *list);
}

int process_tree_signal(const struct process_tree_entry *process, int signal)
{
	int fd = process_tree_pidfd_open(process->pid);

	if (fd < 0)
		return errno == ESRCH ? -1 : kill(process->pid, signal);

	/* Another process may have got the pid between the listing and pidfd_open. */
	struct process_tree_entry now = {0};
	int rc = -1, error = ESRCH;

	if (process_tree_find(process->pid, &now) && now.start == process->start) {
		rc = pidfd_signal(fd, signal);
		error = errno;
		if (rc && error == ENOSYS) {
			rc = kill(process->pid, signal);
			error = errno;
		}
	}
	close(fd);
	errno = error;
	return rc;
}

void process_tree_format(const struct process_tree *list, char *text, size_t size)
{
	if (!size)
		return;
	text[0] = '\0';
	for (size_t i = 0; i < list->count; i++) {
		const struct process_tree_entry *process = &list->items[i];

		if (process->alive)
			text_append(text, size, "%spid %d (%s) in state %c", *text ? ", " : "",
				    (int)process->pid, process->name, process->state);
	}
}

/* One round: SIGKILL all that live and reap our zombies; return how many were alive. */
static size_t kill_round(const struct process_tree *list)
{
	size_t alive = 0;

	for (size_t i = 0; i < list->count; i++) {
		if (list->items[i].alive) {
			alive++;
			process_tree_signal(&list->items[i], SIGKILL);
		} else if (list->items[i].parent == getpid()) {
			/* __WALL: also one that was cloned with another exit signal than SIGCHLD.
			 */
			waitpid(list->items[i].pid, NULL, WNOHANG | __WALL);
		}
	}
	return alive;
}

bool process_tree_is_empty(void)
{
	siginfo_t info;

	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) && errno == ECHILD;
}

size_t supervise_kill_descendants(const pid_t *except, size_t except_count, int deadline_ms,
				  char *left, size_t size)
{
	struct process_tree list = {0};
	int64_t deadline = clock_now_ms() + deadline_ms;
	int clean = 0, pause_ms = 1;
	size_t alive = 0;

	if (left && size)
		left[0] = '\0';
	/* /proc is no snapshot: while we read, a process can move from its dying parent to us.
	 * Accept only two empty lists in a row. Accept incomplete ones only if they stay so
	 * (parents that /proc hides from us). */
	for (;;) {
		/* One call, and usually true after a good end: then /proc need not be listed. */
		if (process_tree_is_empty()) {
			alive = 0;
			break;
		}
		if (process_tree_read(except, except_count, &list))
			break;
		alive = kill_round(&list);
		clean = alive ? 0 : clean + 1;
		if (clean >= (list.incomplete ? 5 : 2))
			break;
		if (clock_now_ms() >= deadline) {
			if (left)
				process_tree_format(&list, left, size);
			break;
		}

		struct timespec pause = {.tv_nsec = pause_ms * 1000000L};

		nanosleep(&pause, NULL);
		pause_ms = pause_ms < 20 ? pause_ms * 2 : 20;
	}
	process_tree_free(&list);
	return alive;
}

int supervise_become_subreaper(struct error *err)
{
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		return error_set(
			err, ERR_UNAVAILABLE,
			"cannot adopt the ranks' orphaned processes (PR_SET_CHILD_SUBREAPER): %m");
	return 0;
}
