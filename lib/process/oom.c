/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/oom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

#define LIMIT (1 << 20)

/* The number after "KEY " at the start of a line; -1 if there is none. */
static int64_t counter(const char *path, const char *key)
{
	char *text;
	size_t size, length = strlen(key);
	int64_t value = -1;

	if (!path[0] || file_read(path, LIMIT, &text, &size, NULL))
		return -1;
	for (char *line = text; line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (!strncmp(line, key, length) && line[length] == ' ') {
			value = strtoll(line + length + 1, NULL, 10);
			break;
		}
	}
	free(text);
	return value;
}

/* The counter's file of our memory cgroup, if it has one. */
static void find_path(const char *root, char *out, size_t size)
{
	char *text, *save = NULL;
	size_t length;

	out[0] = '\0';
	if (file_read("/proc/self/cgroup", LIMIT, &text, &length, NULL))
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *controllers = strchr(line, ':');
		char *path = controllers ? strchr(controllers + 1, ':') : NULL;
		char list[256];
		int n;

		if (!path)
			continue;
		*path++ = '\0';
		snprintf(list, sizeof list, ",%s,", controllers + 1);
		if (strstr(list, ",memory,"))
			n = snprintf(out, size, "%s/memory%s/memory.oom_control", root, path);
		else if (!controllers[1] && !out[0])
			n = snprintf(out, size, "%s%s/memory.events", root, path);
		else
			continue;
		/* In a container the path may be the host's; then the mount itself is our group. */
		if (counter(out, "oom_kill") < 0)
			n = snprintf(out, size, "%s/%s", root,
				     controllers[1] ? "memory/memory.oom_control"
						    : "memory.events");
		if (n < 0 || (size_t)n >= size || counter(out, "oom_kill") < 0)
			out[0] = '\0';
	}
	free(text);
}

void oom_watch_begin(struct oom_watch *watch, const char *cgroup_root)
{
	find_path(cgroup_root ? cgroup_root : "/sys/fs/cgroup", watch->path, sizeof watch->path);
	watch->cgroup_kills = counter(watch->path, "oom_kill");
	watch->system_kills = counter("/proc/vmstat", "oom_kill");
}

static bool rose(int64_t *seen, int64_t now)
{
	if (*seen < 0 || now <= *seen)
		return false;
	++*seen;
	return true;
}

enum supervise_oom oom_watch_poll(struct oom_watch *watch)
{
	bool cgroup = rose(&watch->cgroup_kills, counter(watch->path, "oom_kill"));
	bool system = rose(&watch->system_kills, counter("/proc/vmstat", "oom_kill"));

	return cgroup ? SUPERVISE_OOM_YES : system ? SUPERVISE_OOM_LIKELY : SUPERVISE_OOM_NO;
}
