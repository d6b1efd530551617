/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/heartbeat.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define LINE 64 /* bytes, always: what a longer line has left behind would be read with a shorter one */

static int file = -1;
static double last_done;
static int64_t last_step;

void beat_open(const char *path)
{
	if (path && *path && file < 0)
		file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static void put(double done, int64_t step, const char *doing)
{
	char line[LINE + 1], text[LINE];

	snprintf(text, sizeof text, "%.3f step %" PRId64 ", %s", done, step, doing);
	snprintf(line, sizeof line, "%-*s\n", LINE - 1, text);
	if (pwrite(file, line, LINE, 0) != LINE) {
		close(file); /* a full disk: no heartbeats, but no fault of the training's */
		file = -1;
	}
}

void beat(double done, int64_t step, const char *doing)
{
	last_done = done;
	last_step = step;
	if (file >= 0)
		put(done, step, doing);
}

void beat_on(double part, const char *doing)
{
	if (file >= 0)
		put(last_done + part, last_step, doing);
}
