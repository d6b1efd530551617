/* SPDX-License-Identifier: BSD-3-Clause */
/* The files by which the ranks of a node and berth talk: BERTH_STOP_FILE and BERTH_REPORT. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/file.h"
#include "base/json.h"

#define REPORT_MAX 65536

void agent_write_stop_file(struct agent *agent, const char *why)
{
	char own[sizeof agent->dir + 8], line[64];
	const char *path = agent->job.stop_file;
	bool failed = why && !strcmp(why, "failed");
	int fd, size;

	if (!why || !agent->have_job)
		return;
	snprintf(own, sizeof own, "%s/stop", agent->dir);
	/* A file that nodes share must not call a job failed to those that start next. */
	if (path && failed)
		return;
	fd = open(path ? path : own, O_WRONLY | O_CREAT | O_CLOEXEC | (failed ? O_TRUNC : O_EXCL),
		  0666);
	if (fd < 0) {
		if (errno != EEXIST)
			agent_uplink_note(agent->uplink, "the stop file %s cannot be written: %s",
					  path ? path : own, strerror(errno));
		return;
	}
	size = snprintf(line, sizeof line, "%s\n", why);
	if (file_write_all(fd, line, (size_t)size))
		agent_uplink_note(agent->uplink, "the stop file %s cannot be written: %s",
				  path ? path : own, strerror(errno));
	close(fd);
}

json_t *agent_read_report(const struct agent *agent)
{
	char path[sizeof agent->dir + 16], *text;
	json_t *report = NULL;
	size_t size;

	snprintf(path, sizeof path, "%s/report.json", agent->dir);
	if (access(path, R_OK) || file_read(path, REPORT_MAX, &text, &size, NULL))
		return NULL;
	if (json_read("BERTH_REPORT", text, size, REPORT_MAX, &report, NULL))
		report = NULL;
	free(text);
	return report;
}

void agent_remove_files(const struct agent *agent)
{
	char path[sizeof agent->dir + 16];

	snprintf(path, sizeof path, "%s/stop", agent->dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/report.json", agent->dir);
	unlink(path);
}
