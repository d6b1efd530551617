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
#include "plan/plan.h"

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
	snprintf(own, sizeof own, "%s/" PLAN_FILE_STOP, dir);
	/* A rank may have put a FIFO or a link in its place. */
	fd = open(path,
		  O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW |
			  (failed ? O_TRUNC : O_EXCL),
		  0666);
	if (fd < 0) {
		struct error err;

		if (errno != EEXIST)
			agent_uplink_note(uplink, "cannot write the stop file %s: %s", path,
					  strerror(errno));
		else if (file_check_path(path, &err))
			agent_uplink_note(uplink, "cannot write the stop file: %s", err.text);
		return;
	}
	size = snprintf(line, sizeof line, "%s\n", why);
	if (write(fd, line, (size_t)size) != size)
		agent_uplink_note(uplink, "cannot write the stop file %s: %s", path,
				  strerror(errno));
	close(fd);
}

void agent_end_time_write(const char *dir, int64_t end_time, struct agent_uplink *uplink)
{
	char path[PATH_MAX], line[32];
	int size = snprintf(line, sizeof line, "%lld\n", (long long)end_time);
	struct error err;

	snprintf(path, sizeof path, "%s/" PLAN_FILE_END_TIME, dir);
	if (file_write_temporary(path, line, (size_t)size, 0644, &err))
		agent_uplink_note(uplink, "cannot report the job's end time to the ranks: %s",
				  err.text);
}

/* Without waiting, unlike json_read_file: the rank may have made a FIFO of it. */
static json_t *read_record(const char *path)
{
	json_t *record = NULL;
	char *text;
	size_t size;

	if (access(path, R_OK) || file_read(path, REPORT_MAX, &text, &size, NULL))
		return NULL;
	json_read(path, text, size, REPORT_MAX, &record, NULL);
	free(text);
	return record;
}

json_t *agent_report_read(const char *dir)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/" PLAN_FILE_REPORT, dir);
	return read_record(path);
}

/* Split text into its lines. */
static json_t *lines_of(const char *text)
{
	json_t *lines = json_array();

	for (size_t size; *text; text += size + (text[size] == '\n')) {
		size = strcspn(text, "\n");
		json_array_append_new(lines, json_stringn(text, size));
	}
	return lines;
}

json_t *agent_traceback_read(const char *dir, int local_rank)
{
	char path[PATH_MAX];
	const json_t *message;
	const char *stack;

	snprintf(path, sizeof path, "%s/" PLAN_FILE_ERROR, dir, local_rank);

	JSON_AUTO record = read_record(path);

	unlink(path); /* the next attempt has the same name for it */
	message = json_object_get(record, "message");
	stack = json_string_value(
		json_object_get(json_object_get(message, "extraInfo"), "py_callstack"));
	return stack ? lines_of(stack) : NULL;
}

int agent_plan_write(const char *dir, const json_t *plan, struct error *err)
{
	char path[PATH_MAX];
	char *text = json_dumps(plan, JSON_INDENT(2));
	int rc;

	if (!text)
		return error_memory(err, "the plan file");
	snprintf(path, sizeof path, "%s/" PLAN_FILE, dir);
	rc = file_write_temporary(path, text, strlen(text), 0600, err);
	free(text);
	return rc;
}

void agent_files_remove(const char *dir)
{
	char path[PATH_MAX];

	snprintf(path, sizeof path, "%s/" PLAN_FILE_STOP, dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/" PLAN_FILE_REPORT, dir);
	unlink(path);
	snprintf(path, sizeof path, "%s/" PLAN_FILE_END_TIME, dir);
	unlink(path);
}
