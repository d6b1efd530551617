/* SPDX-License-Identifier: BSD-3-Clause */
/* The CPUs that a thread may run on, as sets of the kernel's CPU numbers. */
#ifndef BERTH_HOSTLIST_AFFINITY_H
#define BERTH_HOSTLIST_AFFINITY_H

#include <sys/types.h>

#include "hostlist/idset.h"

/* The CPUs of the thread tid (0: the caller); for a process's number, those of its first thread.
 * The caller frees the set. NULL with errno. */
struct idset *affinity_get(pid_t tid);
/* Bind the calling thread. The kernel silently leaves out CPUs that the cpuset does not allow.
 * Return 0, or -1 with errno. */
int affinity_set(const struct idset *cpus_os);

#define AFFINITY_NOTE_MAX 1000
/* Bind the calling thread as a rank should be; an empty set changes nothing. Return 0; 1 if the
 * kernel left out CPUs, or -1 if it refused. note then says which rank runs where. */
int affinity_bind(int rank, const struct idset *cpus_os, char *note, size_t size);

#endif
