/* SPDX-License-Identifier: BSD-3-Clause */
/* Small reads below /sys. */
#include "inventory/sys.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"

int sys_text(char *out, size_t size, const char *format, ...)
{
	char path[PATH_MAX];
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(path, sizeof path, format, ap);
	va_end(ap);
	return n < 0 || (size_t)n >= sizeof path ? -1 : file_read_line(path, out, size);
}

long sys_number(long otherwise, const char *format, ...)
{
	char path[PATH_MAX], text[64], *end;
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(path, sizeof path, format, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= sizeof path || sys_text(text, sizeof text, "%s", path) != 0)
		return otherwise;

	long value = strtol(text, &end, 0);

	return end == text || *end ? otherwise : value;
}

static int not_dot(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

int sys_list(const char *path, struct dirent ***out)
{
	int count = scandir(path, out, not_dot, alphasort);

	if (count >= 0)
		return count;
	*out = NULL;
	return errno == ENOMEM ? -1 : 0;
}

void sys_list_free(struct dirent **list, int count)
{
	for (int i = 0; i < count; i++)
		free(list[i]);
	free(list);
}

bool sys_has(const char *format, ...)
{
	char path[PATH_MAX];
	struct stat st;
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(path, sizeof path, format, ap);
	va_end(ap);
	return n >= 0 && (size_t)n < sizeof path && stat(path, &st) == 0;
}

int64_t sys_net_speed(const char *sys_root, const char *name)
{
	long speed = sys_number(-1, "%s/sys/class/net/%s/speed", sys_root, name);

	/* Some drivers report 4294967295 for "unknown". */
	return speed > 0 && speed < 100000000 ? speed : -1;
}
