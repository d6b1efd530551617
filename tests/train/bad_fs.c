/* SPDX-License-Identifier: BSD-3-Clause */
/* Preloaded into the trainer: simulates a failing file system for each path that contains
 * BERTH_BAD_FS_FOLDER. If BERTH_BAD_FS_FLAG names a file, it fails only once that file exists.
 * BERTH_BAD_FS is one of:
 *   full       the disk is full after 20000 bytes of a file, without warning
 *   space      the disk reports 1000 free bytes
 *   read-only  nothing can be created, renamed or removed
 *   eio        every write fails
 *   eio-sync   every sync fails
 *   eio-close  every close reports a failed write
 *   rename     every rename fails
 *   slow       each write takes 20 ms
 *   stall-sync a sync blocks until a FIFO, BERTH_BAD_FS_FLAG, is removed and then opened for
 *              writing; FLAG.stalled exists once it blocks
 *   stall-open likewise, an open for reading
 *   no-locks   there are no locks
 *   short      a write takes at most 100 bytes
 *   kill-N     the process is killed at the N-th call that changes the directory */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define FILES 1024

static bool ours[FILES];
static size_t written[FILES];

static void *real(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

static bool bad(const char *kind)
{
	const char *wanted = getenv("BERTH_BAD_FS"), *flag = getenv("BERTH_BAD_FS_FLAG");

	return wanted && !strcmp(wanted, kind) && (!flag || !access(flag, F_OK));
}

static bool is_there(const char *path)
{
	const char *directory = getenv("BERTH_BAD_FS_FOLDER");

	return directory && path && strstr(path, directory);
}

static void stall(const char *kind)
{
	char path[4096];

	if (!bad(kind))
		return;
	snprintf(path, sizeof path, "%s.stalled", getenv("BERTH_BAD_FS_FLAG"));
	close(creat(path, 0666));
	while (bad(kind))
		close(((int (*)(const char *, int, ...))real("open64"))(getenv("BERTH_BAD_FS_FLAG"),
									O_RDONLY));
}

/* Calls that change the directory, counted over all threads. */
static void count(void)
{
	static int calls;
	const char *wanted = getenv("BERTH_BAD_FS");

	if (wanted && !strncmp(wanted, "kill-", 5) &&
	    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) == atoi(wanted + 5))
		raise(SIGKILL);
}

EXPORT int open(const char *path, int flags, ...)
{
	int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))real("open64");
	bool writes = is_there(path) && (flags & O_ACCMODE) != O_RDONLY;
	mode_t mode = 0;
	va_list ap;

	if (flags & O_CREAT) {
		va_start(ap, flags);
		mode = va_arg(ap, mode_t);
		va_end(ap);
	}
	if (writes)
		count();
	else if (is_there(path))
		stall("stall-open");
	if (writes && bad("read-only")) {
		errno = EROFS;
		return -1;
	}
	int fd = next(path, flags, mode);

	if (fd >= 0 && fd < FILES) {
		ours[fd] = writes;
		written[fd] = 0;
	}
	return fd;
}

EXPORT ssize_t write(int fd, const void *data, size_t size)
{
	ssize_t (*next)(int, const void *, size_t) =
		(ssize_t(*)(int, const void *, size_t))real("write");

	if (fd < 0 || fd >= FILES || !ours[fd])
		return next(fd, data, size);
	count();
	if (bad("slow"))
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
	if (bad("eio")) {
		errno = EIO;
		return -1;
	}
	if (bad("full") && written[fd] + size > 20000)
		size = written[fd] < 20000 ? 20000 - written[fd] : 0;
	if (bad("full") && !size) {
		errno = ENOSPC;
		return -1;
	}
	if (bad("short") && size > 100)
		size = 100;
	ssize_t n = next(fd, data, size);

	written[fd] += n > 0 ? (size_t)n : 0;
	return n;
}

EXPORT int fsync(int fd)
{
	int (*next)(int) = (int (*)(int))real("fsync");

	if (fd >= 0 && fd < FILES && ours[fd]) {
		count();
		stall("stall-sync");
		if (bad("eio-sync")) {
			errno = EIO;
			return -1;
		}
	}
	return next(fd);
}

EXPORT int flock(int fd, int operation)
{
	if (!bad("no-locks"))
		return ((int (*)(int, int))real("flock"))(fd, operation);
	errno = ENOLCK;
	return -1;
}

EXPORT int close(int fd)
{
	int (*next)(int) = (int (*)(int))real("close");
	bool fails = fd >= 0 && fd < FILES && ours[fd] && bad("eio-close");
	int rc = next(fd);

	if (fd >= 0 && fd < FILES)
		ours[fd] = false;
	if (!fails)
		return rc;
	errno = EIO;
	return -1;
}

EXPORT int rename(const char *from, const char *to)
{
	int (*next)(const char *, const char *) =
		(int (*)(const char *, const char *))real("rename");

	if (is_there(to)) {
		count();
		if (bad("rename") || bad("read-only")) {
			errno = bad("rename") ? EIO : EROFS;
			return -1;
		}
	}
	return next(from, to);
}

EXPORT int link(const char *from, const char *to)
{
	if (is_there(to))
		count();
	return ((int (*)(const char *, const char *))real("link"))(from, to);
}

EXPORT int unlink(const char *path)
{
	int (*next)(const char *) = (int (*)(const char *))real("unlink");

	if (is_there(path)) {
		count();
		if (bad("read-only")) {
			errno = EROFS;
			return -1;
		}
	}
	return next(path);
}

EXPORT int statvfs(const char *restrict path, struct statvfs *restrict out)
{
	int (*next)(const char *, struct statvfs *) =
		(int (*)(const char *, struct statvfs *))real("statvfs64");
	int rc = next(path, out);

	if (!rc && is_there(path) && bad("space")) {
		out->f_frsize = 1000;
		out->f_bavail = 1;
	}
	return rc;
}
