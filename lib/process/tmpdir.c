/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/tmpdir.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "berth-"
#define PARENT_MAX 60 /* of a socket's 107 bytes */

int tmpdir_create(const char *parent, char *out, size_t size, struct error *err)
{
	char path[PARENT_MAX + 32];

	if (!parent || parent[0] != '/' || strlen(parent) > PARENT_MAX)
		parent = "/tmp";
	snprintf(path, sizeof path, "%s/" PREFIX "XXXXXX", parent);
	if (!mkdtemp(path)) {
		snprintf(path, sizeof path, "/tmp/" PREFIX "XXXXXX");
		if (!mkdtemp(path))
			return error_set(err, ERR_OUTPUT,
					 "cannot create a directory for sockets in %s or /tmp: %m; "
					 "set TMPDIR to a writable directory",
					 parent);
	}
	snprintf(out, size, "%s", path);
	return 0;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
	remove(path);
	return 0;
}

void tmpdir_remove(const char *path)
{
	const char *name = strrchr(path, '/');
	struct stat status;

	if (!name || strncmp(name + 1, PREFIX, strlen(PREFIX)) || lstat(path, &status) ||
	    !S_ISDIR(status.st_mode) || status.st_uid != geteuid())
		return;
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}
