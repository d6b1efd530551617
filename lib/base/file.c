/* SPDX-License-Identifier: BSD-3-Clause */
/* Other users may be able to write in the same directory (/tmp). So a check applies to the file or
 * directory that was opened, not to its name, and temporary files are created with O_EXCL. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/number.h"

#define TEMP_TRIES 1000 /* temporary files left by killed processes with this pid */

/* Read the non-blocking fd to its end. /proc and /sys report no size, so the buffer grows. A
 * regular file is always ready, but a FIFO only once it has had a writer. */
static int read_all(int fd, const char *path, size_t limit, int timeout_ms, struct bytes *out,
		    struct error *err)
{
	for (;;) {
		struct pollfd wait = {fd, POLLIN, 0};
		size_t need = out->size + 2; /* one more byte, and the NUL */

		if (bytes_reserve(out, need > 4096 ? need : 4096))
			return error_memory(err, path);
		if (timeout_ms && !poll(&wait, 1, timeout_ms))
			return error_set(err, ERR_INPUT,
					 "cannot read %s: no data for %d s; check that something "
					 "writes to it",
					 path, (timeout_ms + 999) / 1000);
		ssize_t n = read(fd, out->data + out->size, out->room - out->size - 1);

		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n < 0)
			return error_set(err, ERR_INPUT, "cannot read %s: %m", path);
		if (n == 0)
			return 0;
		out->size += (size_t)n;
		if (out->size > limit)
			return error_set(
				err, ERR_DATA,
				"%s is larger than %zu bytes; check that it is the right file",
				path, limit);
	}
}

int file_read_input(const char *path, size_t limit, int timeout_ms, char **out, size_t *size,
		    struct error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc = 0;
	struct bytes bytes = {0};
	struct stat status;

	if (fd < 0)
		return error_set(err, ERR_INPUT, "cannot open %s: %m", path);
	if (!timeout_ms && !fstat(fd, &status) && !S_ISREG(status.st_mode))
		rc = error_set(err, ERR_INPUT, "cannot read %s: not a regular file", path);
	if (!rc)
		rc = read_all(fd, path, limit, timeout_ms, &bytes, err);
	close(fd);
	if (rc) {
		bytes_free(&bytes);
		return rc;
	}
	bytes.data[bytes.size] = '\0';
	*out = (char *)bytes.block; /* nothing was dropped: the data begin there */
	*size = bytes.size;
	return 0;
}

int file_read(const char *path, size_t limit, char **out, size_t *size, struct error *err)
{
	return file_read_input(path, limit, 0, out, size, err);
}

int file_read_line(const char *path, char *out, size_t size)
{
	char *text = NULL;
	size_t length;

	*out = '\0';
	if (access(path, F_OK) || file_read(path, 65536, &text, &length, NULL))
		return -1;
	snprintf(out, size, "%.*s", (int)strcspn(text, "\n"), text);
	free(text);
	return 0;
}

int file_read_number(const char *path, int64_t min, int64_t max, int64_t *out)
{
	char text[64];

	return file_read_line(path, text, sizeof text) ||
			       number_int64(path, text, min, max, out, NULL)
		       ? -1
		       : 0;
}

bool file_wait_writable(int fd, int timeout_ms)
{
	struct pollfd wait = {.fd = fd, .events = POLLOUT};

	return poll(&wait, 1, timeout_ms) > 0;
}

int file_write_all(int fd, const void *data, size_t size)
{
	const char *p = data;

	while (size) {
		ssize_t n = write(fd, p, size);

		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return -1;
		if (n < 0 && errno == EAGAIN)
			file_wait_writable(fd, 1000);
		if (n < 0)
			continue;
		p += n;
		size -= (size_t)n;
	}
	return 0;
}

/* The directory that holds path, malloced; NULL if memory is out. */
static char *parent_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

/* Where a path leads. */
struct place {
	int dir;		 /* descriptor of the directory that holds name */
	int flags;		 /* O_NOFOLLOW; 0 for an open file in /proc, which has no path */
	char name[NAME_MAX + 1]; /* not a link, and perhaps missing */
	char path[2 * PATH_MAX]; /* of the last entry that was looked up */
};

/* Apply file_check_path's rule to an entry of dir. Root is who owns /proc: in a container, root of
 * the host may have another number. */
static int check_entry(const char *path, const struct stat *entry, const struct stat *dir,
		       struct error *err)
{
	const mode_t shared = S_ISVTX | S_IWOTH;
	bool link = S_ISLNK(entry->st_mode);
	struct stat root;

	if (!entry->st_uid || entry->st_uid == geteuid() ||
	    (!link && ((dir->st_mode & shared) != shared || entry->st_uid == dir->st_uid)) ||
	    (!stat("/proc", &root) && entry->st_uid == root.st_uid))
		return 0;
	return error_set(err, ERR_OUTPUT,
			 link ? "%s is a symbolic link of user %u; name its target instead"
			      : "%s belongs to user %u, in a directory that everyone can write; "
				"choose another directory",
			 path, (unsigned)entry->st_uid);
}

/* Look up place->name; with make, create that directory if it is missing. Return 0, *fd and *entry;
 * -ERR_OUTPUT; or 1 with errno, and *fd is -1 if there is no such entry. */
static int look_up(const struct place *place, const struct stat *dir, bool make, int *fd,
		   struct stat *entry, struct error *err)
{
	const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
	/* mkdir first: another rank may create the same directory */
	int why = make && mkdirat(place->dir, place->name, 0777) ? errno : ENOENT;

	/* O_DIRECTORY lets the kernel mount what autofs offers. */
	*fd = openat(place->dir, place->name, flags | O_DIRECTORY);
	if (*fd < 0)
		*fd = openat(place->dir, place->name, flags);
	if (*fd < 0 && errno == ENOENT)
		errno = why;
	if (*fd < 0 || fstat(*fd, entry))
		return 1;
	return strcmp(place->name, "..") ? check_entry(place->path, entry, dir, err) : 0;
}

/* Follow path as the kernel does, but hold each directory open, and apply file_check_path's rule.
 * make: create missing directories. Return 0 and place, of which the caller closes dir;
 * -ERR_OUTPUT; or 1 with errno, and place->path names the entry. */
static int walk(const char *path, bool make, struct place *place, struct error *err)
{
	const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
	char rest[2 * PATH_MAX];
	const char *at = rest, *next, *into;
	struct stat dir, entry;
	struct statfs fs;
	int fd = -1, links = 0, rc = 1;

	*place = (struct place){open(*path == '/' ? "/" : ".", flags), O_NOFOLLOW, ".", ""};
	snprintf(rest, sizeof rest, "%s", path);
	strcpy(place->path, *path == '/' ? "/" : "");
	if (place->dir < 0 || fstat(place->dir, &dir))
		goto failed;
	for (; *(at += strspn(at, "/")); at = next) {
		size_t size = strcspn(at, "/"), parent = strlen(place->path), left;

		next = at + size + strspn(at + size, "/");
		left = strlen(next) + 1;
		errno = ENAMETOOLONG;
		if (size > NAME_MAX || left + size >= PATH_MAX || parent + size >= PATH_MAX)
			goto failed;
		snprintf(place->name, sizeof place->name, "%.*s", (int)size, at);
		sprintf(place->path + parent, "%s%s",
			parent && place->path[parent - 1] != '/' ? "/" : "", place->name);
		rc = look_up(place, &dir, make, &fd, &entry, err);
		if (fd < 0 && !*next && !make)
			return 0; /* the caller may create it */
		if (rc)
			goto failed;
		rc = 1;
		if (S_ISLNK(entry.st_mode)) {
			into = place->name;
			if (fstatfs(fd, &fs) || fs.f_type != PROC_SUPER_MAGIC) {
				memmove(rest + PATH_MAX, next, left);
				ssize_t length = readlinkat(fd, "", rest, PATH_MAX - 1);

				errno = length < 0 ? errno : ELOOP;
				if (length < 0 || ++links > MAXSYMLINKS)
					goto failed;
				rest[length] = '/';
				memmove(rest + length + 1, rest + PATH_MAX, left);
				next = rest;
				into = *rest == '/' ? "/" : ".";
				strcpy(place->path + (*into == '/' ? 0 : parent),
				       *into == '/' ? into : "");
			} else if (!*next) {
				place->flags = 0;
				break;
			}
			close(fd);
			fd = openat(place->dir, into, flags);
			if (fd < 0 || fstat(fd, &entry))
				goto failed;
		}
		errno = ENOTDIR;
		if ((*next || make) && !S_ISDIR(entry.st_mode))
			goto failed;
		if (!*next)
			break;
		close(place->dir);
		place->dir = fd;
		fd = -1;
		dir = entry;
	}
	rc = 0;
failed:
	if (fd >= 0)
		close(fd);
	if (rc && place->dir >= 0)
		close(place->dir);
	return rc;
}

int file_check_path(const char *path, struct error *err)
{
	struct place place;
	int rc = walk(path, false, &place, err);

	if (!rc)
		close(place.dir);
	return rc < 0 ? rc : 0;
}

int file_open_append(const char *path, struct error *err)
{
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	struct stat entry, dir;
	struct place place;
	int rc = walk(path, false, &place, err), fd = -1, why;

	if (!rc)
		fd = openat(place.dir, place.name, flags | place.flags, 0666);
	why = rc < 0 ? EACCES : errno;
	if (fd < 0 && rc >= 0)
		error_set(err, ERR_OUTPUT, "cannot open %s: %m", path);
	/* The name may belong to another file than a moment ago. */
	if (fd >= 0 && place.flags && !fstat(fd, &entry) && !fstat(place.dir, &dir) &&
	    check_entry(path, &entry, &dir, err)) {
		close(fd);
		fd = -1;
		why = EACCES;
	}
	if (!rc)
		close(place.dir);
	/* O_NONBLOCK was for the open only: writes wait. */
	if (fd >= 0)
		fcntl(fd, F_SETFL, O_APPEND);
	errno = why;
	return fd;
}

int file_sync_dir(int at, const char *path)
{
	char *dir = parent_of(path);
	int fd = dir ? openat(at, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	int rc = fd >= 0 && fsync(fd) && errno != EINVAL ? -1 : 0;

	if (fd >= 0)
		close(fd);
	free(dir);
	return rc;
}

static int write_in_place(const char *path, const void *data, size_t size, struct error *err)
{
	int rc = 0, fd = file_open_append(path, err);

	if (fd < 0)
		return -ERR_OUTPUT;
	if (file_write_all(fd, data, size))
		rc = error_set(err, ERR_IO, "cannot write %s: %m", path);
	if (close(fd) && !rc)
		rc = error_set(err, ERR_IO, "cannot write %s: %m", path);
	return rc;
}

/* Must path not be replaced? That is true of devices, pipes and entries in /dev and /proc for an
 * open file (/dev/stdout). As root, the rename would take it away from the whole machine. */
static bool is_special(const char *path)
{
	struct stat status;

	if (stat(path, &status))
		return false;
	return (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) ||
	       (!strncmp(path, "/dev/", 5) && strncmp(path, "/dev/shm/", 9)) ||
	       !strncmp(path, "/proc/", 6);
}

int file_create_temp(int dir, const char *path, mode_t mode, char **temp_path)
{
	for (int i = 0; i < TEMP_TRIES; i++) {
		int fd;

		if (asprintf(temp_path, "%s.%ld.%d", path, (long)getpid(), i) < 0) {
			*temp_path = NULL;
			errno = ENOMEM;
			return -1;
		}
		fd = openat(dir, *temp_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY,
			    mode);
		if (fd >= 0)
			return fd;

		int why = errno;

		free(*temp_path);
		*temp_path = NULL;
		errno = why;
		if (why != EEXIST)
			break;
	}
	return -1;
}

/* path: for messages; name is relative to the directory dir. */
static int replace(const char *path, int dir, const char *name, const void *data, size_t size,
		   mode_t mode, bool sync, struct error *err)
{
	char *temp_path;
	int rc = 0, fd = file_create_temp(dir, name, mode, &temp_path);

	if (fd < 0)
		return error_set(err, ERR_OUTPUT, "cannot create %s: %m", path);
	if (file_write_all(fd, data, size) || (sync && fsync(fd)))
		rc = error_set(err, ERR_IO, "cannot write %s: %m", path);
	/* close reports errors that network file systems delay */
	if (close(fd) && !rc)
		rc = error_set(err, ERR_IO, "cannot write %s: %m", path);
	if (!rc && renameat(dir, temp_path, dir, name))
		rc = error_set(err, ERR_OUTPUT, "cannot replace %s: %m", path);
	if (rc)
		unlinkat(dir, temp_path, 0);
	else if (sync && file_sync_dir(dir, name))
		rc = error_set(err, ERR_IO, "cannot sync the directory of %s: %m", path);
	free(temp_path);
	return rc;
}

int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode,
		      struct error *err)
{
	struct place place;
	int rc = walk(path, false, &place, err);

	if (rc)
		return rc < 0 ? rc : error_set(err, ERR_OUTPUT, "cannot create %s: %m", path);
	rc = is_special(path) || !place.flags
		     ? write_in_place(path, data, size, err)
		     : replace(path, place.dir, place.name, data, size, mode, true, err);
	close(place.dir);
	return rc;
}

int file_write_temporary(const char *path, const void *data, size_t size, mode_t mode,
			 struct error *err)
{
	return replace(path, AT_FDCWD, path, data, size, mode, false, err);
}

int file_make_dirs(const char *path, struct error *err)
{
	struct place place;
	int rc = walk(path, true, &place, err);

	if (rc > 0)
		return error_set(err, ERR_OUTPUT, "cannot create directory %s: %m", place.path);
	if (!rc)
		close(place.dir);
	return rc;
}

void file_close_range(int first, int last)
{
#ifdef SYS_close_range
	if (first > last || !syscall(SYS_close_range, first, last, 0))
		return;
#endif
	for (int fd = first; fd <= last && fd < 65536; fd++)
		close(fd);
}
