/* SPDX-License-Identifier: BSD-3-Clause */
#include "progress.h"

#include <stdio.h>
#include <sys/ioctl.h>

size_t progress_fit(int fd, size_t size)
{
	struct winsize window;

	/* A full line would wrap, and the next line could not overwrite it. */
	if (ioctl(fd, TIOCGWINSZ, &window) || window.ws_col < 2 || size < window.ws_col)
		return size;
	return window.ws_col - 1u;
}

void progress_elapsed(const char *text, double seconds, const char *activity, char *out,
		      size_t size)
{
	long whole = (long)seconds;

	snprintf(out, size, "%s%s%ld:%02ld elapsed, %s", text, *text ? "  " : "", whole / 60,
		 whole % 60, activity);
}
