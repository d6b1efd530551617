/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/tmpdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "berth-"
#define PARENT_MAX 60 /* of a socket's 107 bytes */
#define LOCK "lock"   /* locked as long as the agent lives */

/* Lock the directory for this process. The file is locked before it gets its name, because
 * remove_stale takes an unlocked one for an agent that has ended. */
static int lock(const char *path)
{
	char first[PARENT_MAX + 64], last[PARENT_MAX + 64];
	int fd;

	snprintf(first, sizeof first, "%s/." LOCK, path);
	snprintf(last, sizeof last, "%s/" LOCK, path);
	fd = open(first, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB) && !rename(first, last))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Remove what agents have left that were killed together with their guardians (scancel of a step
 * does that). */
static void remove_stale(const char *parent)
{
	DIR *dir = opendir(parent);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		char path[PARENT_MAX + 300], file[PARENT_MAX + 320];
		int fd;

		if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)))
			continue;
		snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
		snprintf(file, sizeof file, "%s/" LOCK, path);
		fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd < 0)
			continue;
		if (!flock(fd, LOCK_EX | LOCK_NB))
			tmpdir_remove(path);
		close(fd);
	}
	if (dir)
		closedir(dir);
}

int tmpdir_create(const char *parent, char *out, size_t size, struct error *err)
{
	char path[PARENT_MAX + 32];

	if (!parent || parent[0] != '/' || strlen(parent) > PARENT_MAX)
		parent = "/tmp";
	remove_stale(parent);
	snprintf(path, sizeof path, "%s/" PREFIX "XXXXXX", parent);
	if (!mkdtemp(path)) {
		snprintf(path, sizeof path, "/tmp/" PREFIX "XXXXXX");
		if (!mkdtemp(path))
			return error_set(err, ERR_OUTPUT,
					 "cannot create a directory for sockets in %s or /tmp: %m; "
					 "set TMPDIR to a writable directory",
					 parent);
	}
	(void)lock(path); /* held until this process ends; without it the directory may stay */
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
