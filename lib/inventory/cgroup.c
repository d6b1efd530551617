/* SPDX-License-Identifier: BSD-3-Clause */
/* What the cgroup of this process allows: memory, and CPU time as the kernel's bandwidth control
 * grants it (a container's --cpus). A CPU set is in hwloc's topology already. */
#include "inventory/sys.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The limit that one group sets; -1: none. */
typedef int64_t limit_reader(const char *group, bool v2);

/* Version 1 has 2^63 less a page for "none", version 2 has "max". */
static int64_t read_memory(const char *group, bool v2)
{
	char text[64], *end;

	if (sys_text(text, sizeof text, "%s/memory.%s", group, v2 ? "max" : "limit_in_bytes"))
		return -1;

	long long value = strtoll(text, &end, 10);

	return end != text && value > 0 && value < (1LL << 60) ? value : -1;
}

/* Thousandths of a CPU: version 2 has "150000 100000" (quota and period) or "max 100000", version 1
 * two files and -1 for "none". */
static int64_t read_cpus(const char *group, bool v2)
{
	long long quota = -1, period = -1;
	char text[64];

	if (!v2) {
		quota = sys_number(-1, "%s/cpu.cfs_quota_us", group);
		period = sys_number(-1, "%s/cpu.cfs_period_us", group);
	} else if (!sys_text(text, sizeof text, "%s/cpu.max", group)) {
		char *end;

		quota = strtoll(text, &end, 10);
		period = strtoll(end, NULL, 10);
	}
	/* The kernel accepts quotas up to 2^44 us. */
	if (quota <= 0 || period <= 0 || quota > 1LL << 44)
		return -1;
	return quota * 1000 / period > 0 ? quota * 1000 / period : 1;
}

/* The smallest limit of the group and of those above it. */
static int64_t limit_upward(limit_reader *read, const char *mount, const char *group, bool v2)
{
	char path[PATH_MAX], full[PATH_MAX];
	int64_t limit = -1;

	snprintf(path, sizeof path, "%s", group);
	for (;;) {
		if (snprintf(full, sizeof full, "%s%s", mount, path) >= (int)sizeof full)
			return limit;

		int64_t found = read(full, v2);
		char *slash = strrchr(path, '/');

		if (found > 0 && (limit < 0 || found < limit))
			limit = found;
		if (!slash)
			return limit;
		*slash = '\0';
	}
}

/* proc_text: "0::/user.slice" (version 2), "4:memory:/job_1" or "2:cpu,cpuacct:/" (version 1). A
 * container's path may be the host's: then only the mount itself, its own group, is there. */
static int64_t find_limit(limit_reader *read, const char *controller, const char *sys_root,
			  const char *proc_text)
{
	int64_t limit = -1;
	const char *line = proc_text;

	while (line && *line) {
		size_t length = strcspn(line, "\n");
		char entry[PATH_MAX], mount[PATH_MAX], list[256], wanted[32];

		snprintf(entry, sizeof entry, "%.*s", (int)length, line);
		line += length + (line[length] == '\n');

		char *kind = strchr(entry, ':');
		char *group = kind ? strchr(kind + 1, ':') : NULL;

		if (!group)
			continue;
		*group++ = '\0';
		snprintf(list, sizeof list, ",%s,", ++kind);
		snprintf(wanted, sizeof wanted, ",%s,", controller);

		bool v2 = !*kind;

		if (!v2 && !strstr(list, wanted))
			continue;
		snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", sys_root ? sys_root : "",
			 v2 ? "" : "/", v2 ? "" : controller);

		int64_t found = limit_upward(read, mount, strcmp(group, "/") ? group : "", v2);

		if (found > 0 && (limit < 0 || found < limit))
			limit = found;
	}
	return limit;
}

int64_t cgroup_memory_limit(const char *sys_root, const char *proc_cgroup_text)
{
	return find_limit(&read_memory, "memory", sys_root, proc_cgroup_text);
}

int64_t cgroup_cpu_limit(const char *sys_root, const char *proc_cgroup_text)
{
	return find_limit(&read_cpus, "cpu", sys_root, proc_cgroup_text);
}
