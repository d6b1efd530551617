/* SPDX-License-Identifier: BSD-3-Clause */
#include "process/tmpdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

#define PREFIX "berth-"
#define PARENT_MAX 60 /* of a socket's 107 bytes */
#define LOCK_MAX 64

/* The name of the lock in a directory: it holds the kernel's boot id. In a TMPDIR that machines
 * share, a lock of another machine may look free (Lustre's localflock, NFS's local_lock). False if
 * /proc is missing. */
static bool lock_name(char *out)
{
	char id[LOCK_MAX - 5];
	bool found = !file_read_line("/proc/sys/kernel/random/boot_id", id, sizeof id);

	snprintf(out, LOCK_MAX, "lock-%s", id);
	return found;
}

/* Lock the directory as long as the descriptor is open, which is returned; -1: it cannot be locked.
 * The file is locked before it gets its name, because remove_stale takes an unlocked one for an
 * agent that has ended. */
static int lock(const char *path, const char *name)
{
	char first[PARENT_MAX + 2 * LOCK_MAX], last[PARENT_MAX + 2 * LOCK_MAX];
	int fd;

	snprintf(first, sizeof first, "%s/.%s", path, name);
	snprintf(last, sizeof last, "%s/%s", path, name);
	fd = open(first, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0 || (!flock(fd, LOCK_EX | LOCK_NB) && !rename(first, last)))
		return fd;
	close(fd);
	return -1;
}

/* Open a directory that this process's user has made with mkdtemp, and that no other user can
 * write: in a TMPDIR of several users, others may rename any directory to what looks like berth's.
 * Return -1 for others. */
static int open_own(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat status;

	if (fd < 0 ||
	    (!fstat(fd, &status) && status.st_uid == geteuid() && !(status.st_mode & 077)))
		return fd;
	close(fd);
	return -1;
}

/* Is the directory's lock of that name held? -1: there is none. Others may probe at the same time:
 * a shared lock conflicts with the owner's exclusive one, but not with theirs. */
static int is_locked(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK), locked = -1;
	struct stat status;

	if (fd < 0)
		return -1;
	if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
	    !(status.st_mode & 022))
		locked = flock(fd, LOCK_SH | LOCK_NB) != 0;
	close(fd);
	return locked;
}

/* Call use for each directory in parent that this user has made on this machine, and that contains
 * the file; live: its lock is still held. */
static void each(const char *parent, const char *name, const char *file,
		 void (*use)(void *context, const char *path, bool live), void *context)
{
	DIR *dir = opendir(parent);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		char path[PARENT_MAX + 300];
		int fd, locked;

		if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)))
			continue;
		snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
		fd = open_own(path);
		locked = fd < 0 || faccessat(fd, file, F_OK, 0) ? -1 : is_locked(fd, name);
		if (locked >= 0)
			use(context, path, locked);
		if (fd >= 0)
			close(fd);
	}
	if (dir)
		closedir(dir);
}

/* Agents that were killed together with their guardians leave theirs (scancel of a step does
 * that). */
static void remove_stale(void *context, const char *path, bool live)
{
	(void)context;
	if (!live)
		tmpdir_remove(path);
}

static const char *usable_parent(const char *parent)
{
	return parent && parent[0] == '/' && strlen(parent) <= PARENT_MAX ? parent : "/tmp";
}

void tmpdir_each(const char *parent, const char *file,
		 void (*use)(void *context, const char *path, bool live), void *context)
{
	char name[LOCK_MAX];

	if (lock_name(name))
		each(usable_parent(parent), name, file, use, context);
}

bool tmpdir_is_live(const char *path)
{
	char name[LOCK_MAX];
	int fd = open_own(path);
	bool live = fd >= 0 && lock_name(name) && is_locked(fd, name) > 0;

	if (fd >= 0)
		close(fd);
	return live;
}

int tmpdir_create(const char *parent, char *out, size_t size, int *lock_fd, struct error *err)
{
	char path[PARENT_MAX + 32], name[LOCK_MAX];
	bool locks = lock_name(name);

	parent = usable_parent(parent);
	/* Another user could replace what is in a directory of theirs. */
	if (file_check_path(parent, err))
		return error_prefix(err, "TMPDIR");
	if (locks)
		each(parent, name, name, remove_stale, NULL);
	snprintf(path, sizeof path, "%s/" PREFIX "XXXXXX", parent);
	if (!mkdtemp(path)) {
		snprintf(path, sizeof path, "/tmp/" PREFIX "XXXXXX");
		if (!mkdtemp(path))
			return error_set(err, ERR_OUTPUT,
					 "cannot create a directory for sockets in %s%s: %m; "
					 "set TMPDIR to a writable directory whose path has at "
					 "most %d characters",
					 parent, strcmp(parent, "/tmp") ? " or /tmp" : "",
					 PARENT_MAX);
	}
	*lock_fd = locks ? lock(path, name) : -1;
	snprintf(out, size, "%s", path);
	return 0;
}

bool tmpdir_restore(const char *path, int *lock_fd)
{
	char name[LOCK_MAX];

	if (!access(path, F_OK) || errno != ENOENT || mkdir(path, 0700))
		return false;
	if (*lock_fd >= 0)
		close(*lock_fd);
	*lock_fd = lock_name(name) ? lock(path, name) : -1;
	return true;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
	remove(path);
	return 0;
}

void tmpdir_remove(const char *path)
{
	const char *name = strrchr(path, '/');
	int fd = name && !strncmp(name + 1, PREFIX, strlen(PREFIX)) ? open_own(path) : -1;
	char inside[64];

	if (fd < 0)
		return;
	/* Not by its name, which may be another directory's by now. */
	snprintf(inside, sizeof inside, "/proc/self/fd/%d/.", fd);
	nftw(inside, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	rmdir(path);
	close(fd);
}
