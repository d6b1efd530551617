/* SPDX-License-Identifier: BSD-3-Clause */
/* The processes that descend from this one, by /proc. Internal to the stage agent. */
#ifndef BERTH_PROCESS_PROCESS_TREE_H
#define BERTH_PROCESS_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct process_tree_entry {
	pid_t pid, parent, group;
	unsigned long long start; /* clock ticks since boot: with pid, an identity */
	char state;		  /* as in /proc: 'R', 'D', 'Z'... */
	bool alive;		  /* not a zombie, or one with living threads */
	char name[32];
};

struct process_tree {
	size_t count, room;
	struct process_tree_entry *items;
	/* A process was seen whose parent was not: it may have been ours, look again. */
	bool incomplete;
};
void process_tree_free(struct process_tree *list); /* NULL is fine */

/* All descendants of this process but for those in except and their descendants; zombies
 * included. Replaces what list holds. 0, or -1 when memory is out or /proc cannot be read. */
int process_tree_read(const pid_t *except, size_t except_count, struct process_tree *list);

/* Signal the very process that was listed, not one that took its number since.
 * 0, or -1 with errno (ESRCH: it is gone). */
int process_tree_signal(const struct process_tree_entry *process, int signal);

/* "pid 812 (cp) in state D, ..." of those alive, cut at size. */
void process_tree_format(const struct process_tree *list, char *text, size_t size);

/* pidfd_open, or -1 (ENOSYS before Linux 5.3). */
int process_tree_pidfd_open(pid_t pid);

#endif
