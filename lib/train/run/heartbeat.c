/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/heartbeat.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* Bytes of each line. All lines have the same length, because a shorter one would leave the end of
 * a longer one in the file. */
#define LINE 64

static int file = -1;
static double last_done;
static int64_t last_step;

void train_heartbeat_open(const char *path)
{
	if (path && *path && file < 0)
		file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void train_heartbeat_write(double done, int64_t step, const char *activity)
{
	char line[LINE + 1], text[LINE];

	last_done = done;
	last_step = step;
	if (file < 0)
		return;
	snprintf(text, sizeof text, "%.3f step %" PRId64 ", %s", done, step, activity);
	snprintf(line, sizeof line, "%-*s\n", LINE - 1, text);
	if (pwrite(file, line, LINE, 0) != LINE) {
		close(file); /* a full disk must not stop the training: go on without heartbeats */
		file = -1;
	}
}

void train_heartbeat_activity(const char *activity)
{
	train_heartbeat_write(last_done, last_step, activity);
}
