/* SPDX-License-Identifier: BSD-3-Clause */
/* The process tree below this process, read from /proc. */
#ifndef BERTH_PROCESS_PROCESS_TREE_H
#define BERTH_PROCESS_PROCESS_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct process_tree_entry {
	pid_t pid, parent, group;
	unsigned long long start; /* clock ticks since boot: together with pid, an identity */
	unsigned long long used;  /* clock ticks of CPU time, of user and kernel */
	char state;		  /* as in /proc: 'R', 'D', 'Z'... */
	bool alive;		  /* not a zombie, or one with living threads */
	char name[32];
};

struct process_tree {
	size_t count, room;
	struct process_tree_entry *items;
	/* A process was listed whose parent was not. It may be a descendant: read again. */
	bool incomplete;
};
/* Read one process, whether or not it descends from this one. False: it has ended, or is
 * unreadable. */
bool process_tree_find(pid_t pid, struct process_tree_entry *out);

/* Has this process no children, not even zombies? Then it has no descendants: each has an ancestor
 * among the children. Costs one system call; process_tree_read reads a file per process. */
bool process_tree_is_empty(void);
void process_tree_free(struct process_tree *list); /* NULL is allowed */

/* Read all descendants of this process, including zombies, except the processes in except and their
 * descendants. Replaces the contents of list. Return 0, or -1 if memory is out or /proc cannot be
 * read. */
int process_tree_read(const pid_t *except, size_t except_count, struct process_tree *list);

/* Podman starts a rank's program outside the group of its own process: as group of such a program,
 * and of what is in its group, set that of the rank, groups[LOCAL_RANK], with count ranks. Podman's
 * own process is in none then. */
void process_tree_adopt(struct process_tree *list, const pid_t *groups, size_t count);

/* Signal the process that was listed, not one that reused its pid since. Return 0, or -1 with errno
 * (ESRCH: it has ended). */
int process_tree_signal(const struct process_tree_entry *process, int signal);

/* Format "pid 812 (cp) in state D, ..." for those alive, cut at size. */
void process_tree_format(const struct process_tree *list, char *text, size_t size);

/* pidfd_open, or -1 (ENOSYS before Linux 5.3). */
int process_tree_pidfd_open(pid_t pid);

#endif
