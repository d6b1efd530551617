/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/heartbeat.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/number.h"

#define MOST_STEPS 1e15

double heartbeat_parse(const char *text, char status_text[HEARTBEAT_STATUS_BYTES])
{
	char number[32];
	size_t length = strcspn(text, " \t\r\n"), at = 0;
	double steps = -1;

	if (length && length < sizeof number) {
		snprintf(number, sizeof number, "%.*s", (int)length, text);
		if (number_double("steps", number, 0, MOST_STEPS, &steps, NULL))
			steps = -1;
	}
	if (steps >= 0)
		text += length;
	text += strspn(text, " \t");
	for (; text[at] && text[at] != '\n' && at + 1 < HEARTBEAT_STATUS_BYTES; at++)
		status_text[at] = (unsigned char)text[at] < ' ' || text[at] == 127 ? '?' : text[at];
	while (at && status_text[at - 1] == ' ')
		at--;
	status_text[at] = '\0';
	return steps;
}

bool heartbeat_poll(const char *path, struct heartbeat *heartbeat)
{
	/* Never block on a pipe without a writer, nor read another user's file behind a link. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	char text[256];
	struct stat info = {0};
	double steps;
	ssize_t n;

	if (fd < 0)
		return false;
	n = fstat(fd, &info) || !S_ISREG(info.st_mode) ? -1 : read(fd, text, sizeof text - 1);
	close(fd);
	int64_t changed_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;

	if (n < 0 || (heartbeat->seen && changed_ns == heartbeat->changed_ns &&
		      info.st_size == heartbeat->size))
		return false;
	text[n] = '\0';
	steps = heartbeat_parse(text, heartbeat->status_text);
	if (steps >= 0)
		heartbeat->steps = steps;
	else if (!heartbeat->numbered)
		heartbeat->steps = heartbeat->seen ? heartbeat->steps + 1 : 0;
	heartbeat->numbered |= steps >= 0;
	heartbeat->seen = true;
	heartbeat->changed_ns = changed_ns;
	heartbeat->size = info.st_size;
	return true;
}
