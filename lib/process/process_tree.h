/* SPDX-License-Identifier: BSD-3-Clause */
/* The processes that descend from this one, by /proc. Internal to the stage agent. */
#ifndef BERTH_PROCESS_PROCESS_TREE_H
#define BERTH_PROCESS_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct descend_process {
	pid_t pid, parent, group;
	unsigned long long start; /* clock ticks since boot: with pid, an identity */
	char state;		  /* as in /proc: 'R', 'D', 'Z'... */
	bool alive;		  /* not a zombie, or one with living threads */
	char name[32];
};

struct descend_list {
	size_t count, room;
	struct descend_process *items;
	/* A process was seen whose parent was not: it may have been ours, look again. */
	bool torn;
};
void descend_list_free(struct descend_list *list); /* NULL is fine */

/* All descendants of this process but for those in except and their descendants; zombies
 * included. Replaces what list holds. 0, or -1 when memory is out or /proc cannot be read. */
int descend_list(const pid_t *except, size_t except_count, struct descend_list *list);

/* Signal the very process that was listed, not one that took its number since.
 * 0, or -1 with errno (ESRCH: it is gone). */
int descend_signal(const struct descend_process *process, int signal);

/* "pid 812 (cp) in state D, ..." of those alive, cut at size. */
void descend_names(const struct descend_list *list, char *text, size_t size);

/* pidfd_open, or -1 (ENOSYS before Linux 5.3). */
int descend_pidfd(pid_t pid);

#endif
