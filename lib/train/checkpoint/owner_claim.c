/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/owner_claim.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"

#define OWNER_FILE_BYTES 65536

/* ---- processes ---- */

void claim_boot(char *out, size_t size)
{
	char *text = NULL, space[64] = "";
	size_t length;

	*out = 0;
	if (file_read("/proc/sys/kernel/random/boot_id", 4096, &text, &length, NULL))
		return;
	text[strcspn(text, "\n")] = 0;
	if (readlink("/proc/self/ns/pid", space, sizeof space - 1) > 0)
		snprintf(out, size, "%.60s %.60s", text, space);
	free(text);
}

int64_t claim_process_started(int64_t pid)
{
	char path[64], *text = NULL, *at, state = 0;
	unsigned long long started = 0;
	size_t size;
	int n = 0;

	snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
	if (file_read(path, 8192, &text, &size, NULL))
		return -1;
	at = strrchr(text, ')');
	if (at)
		n = sscanf(at + 1,
			   " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
			   "%*s %*s %llu",
			   &state, &started);
	free(text);
	return n == 2 && !strchr("ZXx", state) ? (int64_t)started : -1;
}

/* With hidepid, /proc hides other users' processes, and only kill reveals them. */
bool claim_process_has_ended(const struct claim *claim)
{
	int64_t started = claim_process_started(claim->pid);

	return started < 0 ? !kill((pid_t)claim->pid, 0) || errno != EPERM
			   : started != claim->started;
}

/* ---- the file ---- */

static void copy(const json_t *json, const char *key, char *out, size_t size)
{
	const char *text = json_string_value(json_object_get(json, key));

	snprintf(out, size, "%s", text ? text : "");
}

static int64_t number(const json_t *json, const char *key)
{
	return json_integer_value(json_object_get(json, key));
}

int claim_read(const char *path, const struct timespec *now, struct claim *out)
{
	struct claim claim = {0};
	struct stat info;
	char *text = NULL;
	size_t size;
	JSON_AUTO json = NULL;

	if (stat(path, &info))
		return errno == ENOENT ? 0 : -1;
	if (now)
		claim.age_s = (double)(now->tv_sec - info.st_mtim.tv_sec) +
			      (double)(now->tv_nsec - info.st_mtim.tv_nsec) * 1e-9;
	if (!file_read(path, OWNER_FILE_BYTES, &text, &size, NULL) &&
	    !json_read(path, text, size, OWNER_FILE_BYTES, &json, NULL)) {
		copy(json, "scheduler", claim.scheduler, sizeof claim.scheduler);
		copy(json, "job", claim.job, sizeof claim.job);
		copy(json, "host", claim.host, sizeof claim.host);
		copy(json, "boot", claim.boot, sizeof claim.boot);
		copy(json, "token", claim.token, sizeof claim.token);
		claim.attempt = number(json, "attempt");
		claim.pid = number(json, "pid");
		claim.started = number(json, "started");
		claim.renewals = number(json, "renewals");
		claim.readable = *claim.token;
	}
	free(text);
	*out = claim;
	return 1;
}

void claim_name(const struct claim *claim, char *text, size_t size)
{
	char job[320] = "";

	if (!claim->readable) {
		snprintf(text, size, "an unknown run (its .owner file cannot be read)");
		return;
	}
	if (*claim->job)
		snprintf(job, sizeof job, "job %s%s%s, ", claim->job,
			 *claim->scheduler ? " of " : "", claim->scheduler);
	snprintf(text, size, "%sprocess %" PRId64 " on %s", job, claim->pid,
		 *claim->host ? claim->host : "an unknown host");
}
