/* SPDX-License-Identifier: BSD-3-Clause */
/* Did the kernel's out-of-memory killer act? Private to this stage. */
#ifndef BERTH_PROCESS_OOM_H
#define BERTH_PROCESS_OOM_H

#include <stdint.h>

#include "process/supervise.h"

struct oom_watch {
	char path[4096]; /* memory.events (v2) or memory.oom_control (v1); "" if neither exists */
	int64_t cgroup_kills; /* last count; -1 unknown */
	int64_t system_kills; /* last count from /proc/vmstat; -1 unknown */
};

/* Remember the present counters. cgroup_root: "/sys/fs/cgroup". */
void oom_watch_begin(struct oom_watch *watch, const char *cgroup_root);

/* Has a counter risen? Each call credits one kill, so that it is not also blamed for a second
 * process that ended otherwise. */
enum supervise_oom oom_watch_poll(struct oom_watch *watch);

#endif
