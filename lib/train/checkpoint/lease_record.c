/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/lease_record.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

#define TEXT_BYTES 16384

void lease_record_set_process(struct lease_record *record)
{
	gethostname(record->host, sizeof record->host - 1);
	record->pid = getpid();
	file_read_line("/proc/sys/kernel/random/boot_id", record->boot, sizeof record->boot);
}

char *lease_record_text(const struct lease_record *record)
{
	JSON_AUTO json = json_pack(
		"{s:i, s:s, s:o, s:o, s:I, s:o, s:s, s:I, s:I, s:s}", "held", 1, "format",
		"berth.lease/1", "scheduler", json_text(record->scheduler), "job",
		json_text(record->job), "attempt", (json_int_t)record->attempt, "host",
		json_text(record->host), "boot", record->boot, "pid", (json_int_t)record->pid,
		"device", (json_int_t)record->device, "token", record->token);

	return json ? json_dumps(json, 0) : NULL;
}

static void copy(const json_t *json, const char *key, char *out, size_t size)
{
	const char *text = json_string_value(json_object_get(json, key));

	snprintf(out, size, "%s", text ? text : "");
}

static int64_t number(const json_t *json, const char *key)
{
	return json_integer_value(json_object_get(json, key));
}

void lease_record_parse(const char *text, size_t size, struct lease_record *out)
{
	JSON_AUTO json = NULL;
	const json_t *held;

	if (json_read("a lease", text, size, TEXT_BYTES, &json, NULL))
		return;
	held = json_object_get(json, "held");
	copy(json, "scheduler", out->scheduler, sizeof out->scheduler);
	copy(json, "job", out->job, sizeof out->job);
	copy(json, "host", out->host, sizeof out->host);
	copy(json, "boot", out->boot, sizeof out->boot);
	copy(json, "token", out->token, sizeof out->token);
	out->attempt = number(json, "attempt");
	out->pid = number(json, "pid");
	out->device = number(json, "device");
	out->readable = *out->token && json_is_integer(held);
	out->released = out->readable && !json_integer_value(held);
}

int lease_record_read(int directory, const char *name, const char *boot, struct lease_record *out)
{
	/* Opening it makes NFS ask the server for its date. */
	int fd = openat(directory, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), rc;
	char text[TEXT_BYTES];
	struct stat info;
	size_t size = 0;
	ssize_t n;

	*out = (struct lease_record){0};
	rc = fd < 0 ? fstatat(directory, name, &info, 0) : fstat(fd, &info);
	if (!rc)
		out->renewed = info.st_mtim;
	if (!rc && fd >= 0 && S_ISREG(info.st_mode)) {
		while ((n = read(fd, text + size, sizeof text - size)) > 0)
			size += (size_t)n;
		if (!n)
			lease_record_parse(text, size, out);
	}
	/* Two FUSE mounts of one directory do not share locks. */
	if (*boot && !strcmp(out->boot, boot) && out->device == (int64_t)info.st_dev) {
		if (!flock(fd, LOCK_SH | LOCK_NB))
			out->lock = LEASE_LOCK_FREE;
		else if (errno == EWOULDBLOCK)
			out->lock = LEASE_LOCK_HELD;
	}
	if (fd >= 0)
		close(fd);
	return !rc ? 1 : errno == ENOENT ? 0 : -1;
}

void lease_record_name(const struct lease_record *record, char *text, size_t size)
{
	bool job = *record->job, scheduler = job && *record->scheduler;

	snprintf(text, size, "%s%s%s%s%sprocess %" PRId64 " on %s", job ? "job " : "", record->job,
		 scheduler ? " of " : "", scheduler ? record->scheduler : "", job ? ", " : "",
		 record->pid, *record->host ? record->host : "an unknown host");
	if (!record->readable)
		snprintf(text, size, "an unknown run (its lease file cannot be read)");
}
