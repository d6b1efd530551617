/* SPDX-License-Identifier: BSD-3-Clause */
/* Other users may be able to write in the same directory (/tmp). So a check applies to the file
 * that was opened, not to its name, and temporary files are created with O_EXCL. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

/* Is path, with this status, another user's whom berth must not trust (file_check_path)? Root is
 * who owns /proc: in a container, root of the host may have another number. */
static int check_entry(const char *path, const struct stat *entry, struct error *err)
{
	const mode_t shared = S_ISVTX | S_IWOTH;
	bool link = S_ISLNK(entry->st_mode);
	char *dir = parent_of(path);
	struct stat parent, root;
	int rc = 0;

	if (!dir)
		return error_memory(err, path);
	if (entry->st_uid && entry->st_uid != geteuid() &&
	    (link || (!stat(dir, &parent) && (parent.st_mode & shared) == shared &&
		      entry->st_uid != parent.st_uid)) &&
	    (stat("/proc", &root) || entry->st_uid != root.st_uid))
		rc = error_set(err, ERR_OUTPUT,
			       link ? "%s is a symbolic link of user %u; name its target instead"
				    : "%s belongs to user %u, in a directory that everyone can "
				      "write; choose another directory",
			       path, (unsigned)entry->st_uid);
	free(dir);
	return rc;
}

/* links: how many the path so far has led through. */
static int check_path(const char *path, int links, struct error *err)
{
	int rc = 0;

	for (const char *at = path; !rc && *at;) {
		const char *begin = at + strspn(at, "/");
		char *part, *target, link[PATH_MAX];
		struct stat entry;
		ssize_t size = -1;

		at = begin + strcspn(begin, "/");
		part = strndup(path, (size_t)(at - path));
		if (!part)
			return error_memory(err, path);
		rc = lstat(part, &entry) ? 1 : check_entry(part, &entry, err);
		if (!rc && S_ISLNK(entry.st_mode) && links < MAXSYMLINKS)
			size = readlink(part, link, sizeof link);
		free(part);
		if (size < 0)
			continue;
		target = text_format("%.*s%.*s", *link == '/' ? 0 : (int)(begin - path), path,
				     (int)size, link);
		rc = target ? check_path(target, links + 1, err) : error_memory(err, path);
		free(target);
	}
	return rc < 0 ? rc : 0; /* what does not exist has no owner */
}

int file_check_path(const char *path, struct error *err)
{
	return check_path(path, 0, err);
}

int file_open_append(const char *path, struct error *err)
{
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW;
	struct stat entry;

	if (file_check_path(path, err))
		goto refused;
	if (!lstat(path, &entry) && S_ISLNK(entry.st_mode))
		flags &= ~O_NOFOLLOW; /* other users cannot replace this link */

	int fd = open(path, flags, 0666);

	if (fd < 0) {
		int why = errno;

		error_set(err, ERR_OUTPUT, "cannot open %s: %m", path);
		errno = why;
		return -1;
	}
	/* The name may belong to another file than a moment ago. */
	if (flags & O_NOFOLLOW && !fstat(fd, &entry) && check_entry(path, &entry, err)) {
		close(fd);
		goto refused;
	}
	/* O_NONBLOCK was for the open only: writes wait. */
	fcntl(fd, F_SETFL, O_APPEND);
	return fd;
refused:
	errno = EACCES;
	return -1;
}

int file_sync_dir(const char *path)
{
	char *dir = parent_of(path);
	int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	int rc = fd >= 0 && fsync(fd) && errno != EINVAL ? -1 : 0;

	if (fd >= 0)
		close(fd);
	free(dir);
	return rc;
}

static int write_in_place(const char *path, const void *data, size_t size, struct error *err)
{
	/* A FIFO without a reader is an error, not a wait. */
	int rc = 0, fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);

	if (fd < 0)
		return error_set(err, ERR_OUTPUT, "cannot open %s: %m", path);
	fcntl(fd, F_SETFL, O_APPEND);
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

int file_create_temp(const char *path, mode_t mode, char **temp_path)
{
	for (int i = 0; i < TEMP_TRIES; i++) {
		int fd;

		if (asprintf(temp_path, "%s.%ld.%d", path, (long)getpid(), i) < 0) {
			*temp_path = NULL;
			errno = ENOMEM;
			return -1;
		}
		fd = open(*temp_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, mode);
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

static int replace(const char *path, const void *data, size_t size, mode_t mode, bool sync,
		   struct error *err)
{
	char *temp_path;
	int rc = 0, fd = file_create_temp(path, mode, &temp_path);

	if (fd < 0)
		return error_set(err, ERR_OUTPUT, "cannot create %s: %m", path);
	if (file_write_all(fd, data, size) || (sync && fsync(fd)))
		rc = error_set(err, ERR_IO, "cannot write %s: %m", path);
	/* close reports errors that network file systems delay */
	if (close(fd) && !rc)
		rc = error_set(err, ERR_IO, "cannot write %s: %m", path);
	if (!rc && rename(temp_path, path))
		rc = error_set(err, ERR_OUTPUT, "cannot replace %s: %m", path);
	if (rc)
		unlink(temp_path);
	else if (sync && file_sync_dir(path))
		rc = error_set(err, ERR_IO, "cannot sync the directory of %s: %m", path);
	free(temp_path);
	return rc;
}

int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode,
		      struct error *err)
{
	struct stat status;
	char *target = NULL;
	int rc = file_check_path(path, err);

	if (rc)
		return rc;
	if (is_special(path))
		return write_in_place(path, data, size, err);
	if (!lstat(path, &status) && S_ISLNK(status.st_mode))
		/* Keep the link and replace its target; replace a dangling link. */
		target = realpath(path, NULL);
	rc = replace(target ? target : path, data, size, mode, true, err);
	free(target);
	return rc;
}

int file_write_temporary(const char *path, const void *data, size_t size, mode_t mode,
			 struct error *err)
{
	return replace(path, data, size, mode, false, err);
}

int file_make_dirs(const char *path, struct error *err)
{
	char *part = strdup(path);
	int rc = 0;

	if (!part)
		return error_memory(err, path);
	for (char *p = part; !rc && *p;) {
		p += strspn(p, "/");
		p += strcspn(p, "/");
		char end = *p;

		*p = '\0';
		/* mkdir first: avoids a race after stat with another rank that creates the same
		 * directory */
		if (*part && mkdir(part, 0777)) {
			int why = errno;
			struct stat st;

			if (stat(part, &st))
				rc = error_set(err, ERR_OUTPUT, "cannot create directory %s: %s",
					       part, strerror(why));
			else if (!S_ISDIR(st.st_mode))
				rc = error_set(err, ERR_OUTPUT,
					       "cannot create directory %s: %s is not a directory",
					       path, part);
			else
				rc = file_check_path(part, err);
		}
		*p = end;
	}
	free(part);
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

int file_find_self(char *out, size_t size, struct error *err)
{
	ssize_t n = readlink("/proc/self/exe", out, size - 1);

	if (n <= 0)
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot read /proc/self/exe: %s; check that /proc is mounted",
				 strerror(errno));
	out[n] = 0;
	return 0;
}
