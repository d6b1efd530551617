/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

#define REPORT_MAX 65536

void agent_stop_file_write(const char *dir, const char *shared, const char *why,
			   struct agent_uplink *uplink)
{
	bool failed = !strcmp(why, "failed");
	char own[PATH_MAX], line[64];
	const char *path = shared ? shared : own;
	int fd, size;

	/* A stop file that nodes share must not report "failed" to the ranks of the next
	 * attempt. */
	if (shared && failed)
		return;
	snprintf(own, sizeof own, "%s/stop", dir);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (failed ? O_TRUNC : O_EXCL), 0666);
	if (fd < 0) {
		if (errno != EEXIST)
			agent_uplink_note(uplink, "cannot write the stop file %s: %s", path,
					  strerror(errno));
		return;
	}
	size = snprintf(line, sizeof line, "%s\n", why);
	if (file_write_all(fd, line, (size_t)size))
		agent_uplink_note(uplink, "cannot write the stop file %s: %s", path,
				  strerror(errno));
	close(fd);
}

json_t *agent_report_read(const char *dir)
{
	char path[PATH_MAX], *text;
	json_t *report = NULL;
	size_t size;

	snprintf(path, sizeof path, "%s/report.json", dir);
	if (access(path, R_OK) || file_read(path, REPORT_MAX, &text, &size, NULL))
		return NULL;
	if (json_read("BERTH_REPORT", text, size, REPORT_MAX, &report, NULL))
		report = NULL;
	free(text);
	return report;
}

int agent_plan_write(const char *dir, const json_t *plan, struct error *err)
{
	char path[PATH_MAX];
	char *text = json_dumps(plan, JSON_INDENT(2));
	int rc;

	if (!text)
		return error_memory(err, "the plan file");
	snprintf(path, sizeof path, "%s/plan.json", dir);
	rc = file_write_atomic(path, text, strlen(text), 0600, err);
	free(text);
	return rc;
}

void agent_files_remove(const char *dir)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/stop", dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/report.json", dir);
	unlink(path);
}
