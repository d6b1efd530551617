/* SPDX-License-Identifier: BSD-3-Clause */
/* Did the kernel's out-of-memory killer act? Internal to the stage agent. */
#ifndef BERTH_PROCESS_OOM_H
#define BERTH_PROCESS_OOM_H

#include <stdint.h>

#include "process/supervise.h"

struct oom_watch {
	char path[4096];      /* memory.events (v2) or memory.oom_control (v1); "" when none */
	int64_t cgroup_kills; /* seen so far; -1 unknown */
	int64_t system_kills; /* /proc/vmstat's; -1 unknown */
};

/* Remember what the counters say now. cgroup_root: "/sys/fs/cgroup". */
void oom_watch_begin(struct oom_watch *watch, const char *cgroup_root);

/* Has a counter risen? One kill is credited a call, so that a second process that ended otherwise
 * is not blamed on it. */
enum supervise_oom oom_watch_poll(struct oom_watch *watch);

#endif
