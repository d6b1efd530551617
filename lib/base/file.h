/* SPDX-License-Identifier: BSD-3-Clause */
/* Reading whole files, and writing them so that a reader never sees half a file. */
#ifndef BERTH_BASE_FILE_H
#define BERTH_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Read at most limit bytes of a regular file into a malloced, NUL-terminated buffer (size excludes
 * the NUL). Works on /proc and /sys. Anything else, such as a FIFO, is refused without waiting.
 * -ERR_INPUT, or -ERR_DATA when the file is larger. */
int file_read(const char *path, size_t limit, char **out, size_t *size, struct error *err);

/* The same for a file that the user names, which may be a pipe, a FIFO or a terminal: <(COMMAND),
 * /dev/stdin. -ERR_INPUT if no data arrive for timeout_ms; err names the path. */
int file_read_input(const char *path, size_t limit, int timeout_ms, char **out, size_t *size,
		    struct error *err);
#define FILE_INPUT_MS 30000 /* timeout_ms for the user's files */
/* Read the first line of a small file, cut to size - 1 bytes. Return 0; or -1 with "" in out if
 * there is no such file. */
int file_read_line(const char *path, char *out, size_t size);
/* Read a file that holds one number from min to max, and perhaps a newline. Return 0, or -1 if
 * there is no such file or number; *out is untouched then. */
int file_read_number(const char *path, int64_t min, int64_t max, int64_t *out);

/* Can another user redirect what berth writes to path? Refuse a symbolic link of another user (not
 * this one, not root) anywhere on the path, and each other entry of another user that lies directly
 * in a sticky directory that everyone can write (/tmp), unless it belongs to that directory's
 * owner. Return 0, also if path does not exist, or -ERR_OUTPUT naming the entry and its owner. */
int file_check_path(const char *path, struct error *err);

/* Open a file for appending, or create it (0666 less the umask), under the rule of
 * file_check_path, even if someone replaces path between check and open. Never waits for a FIFO's
 * reader. Return the descriptor, which blocks, or -1 with errno and err (-ERR_OUTPUT). */
int file_open_append(const char *path, struct error *err);

/* Create a file with a new name beside path, for renaming over path later. *temp_path is malloced,
 * NULL on failure. mode holds the permission bits, less the umask. Return a descriptor, or -1 with
 * errno. */
int file_create_temp(const char *path, mode_t mode, char **temp_path);

/* Replace path atomically: write a temporary file, fsync it, rename it over path, fsync the
 * directory. mode holds the permission bits, less the umask. A symbolic link stays and its target
 * is replaced, if file_check_path allows it. A device, a pipe with a reader or a path in /dev or
 * /proc (such as /dev/stdout) is written directly. Return 0, -ERR_OUTPUT if the file cannot be
 * created, or -ERR_IO if writing failed (the old file stays). */
int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode,
		      struct error *err);
/* The same for a regular file that need not survive a crash of the machine: nothing is synced,
 * which can take seconds on a busy disk. */
int file_write_temporary(const char *path, const void *data, size_t size, mode_t mode,
			 struct error *err);

/* fsync the directory that holds path, so that a rename in it survives a power failure. Return 0,
 * or -1 with errno. It also returns 0 if the file system cannot sync a directory (EINVAL), or if
 * the directory cannot be opened for reading. */
int file_sync_dir(const char *path);

/* Write all bytes; handles EINTR, short writes, and a descriptor that another process has made
 * non-blocking. Return 0, or -1 with errno. */
int file_write_all(int fd, const void *data, size_t size);

/* Wait until a write of PIPE_BUF bytes would not block (an error counts). Return false after
 * timeout_ms. */
bool file_wait_writable(int fd, int timeout_ms);

/* Create the directory and its parents (0777 less the umask), under the rule of file_check_path.
 * Return 0 or -ERR_OUTPUT; err names the component. */
int file_make_dirs(const char *path, struct error *err);

/* Close the descriptors from first to last; none if first > last. Safe after fork. Before
 * Linux 5.9, which has no close_range, those above 65535 stay open. */
void file_close_range(int first, int last);

/* The path of this executable. Return 0, or -ERR_UNAVAILABLE without /proc. */
int file_find_self(char *out, size_t size, struct error *err);

#endif
