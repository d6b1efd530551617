/* SPDX-License-Identifier: BSD-3-Clause */
/* Files read whole, and written so that nothing that matters is ever half there. */
#ifndef BERTH_BASE_FILE_H
#define BERTH_BASE_FILE_H

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Read at most limit bytes of path into a malloced, NUL-terminated buffer (size excludes the
 * NUL). Works on /proc and /sys. -ERR_INPUT, or -ERR_DATA when the file is larger. */
int file_read(const char *path, size_t limit, char **out, size_t *size, struct error *err);

/* Create a file of a new name beside path, to be renamed over it: *aside, malloced (NULL on
 * failure). mode: permission bits, less the umask. A descriptor, or -1 with errno. */
int file_create_temp(const char *path, mode_t mode, char **temp_path);

/* Write aside, fsync, rename over path, fsync the folder. mode: permission bits, less the umask. A
 * symbolic link stays and its target is replaced; a device, a pipe and what is in /dev or /proc
 * (/dev/stdout) is written to as it is, never replaced.
 * -ERR_OUTPUT when it cannot be created, -ERR_IO when writing failed (the old file stays). */
int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode,
		      struct error *err);

/* fsync the folder that path lies in, so that a rename in it survives a power cut. File systems
 * that cannot (EINVAL), and a folder that may be written and not read, have nothing to lose: 0.
 * Else -1 with errno. */
int file_sync_dir(const char *path);

/* All bytes, EINTR and short writes handled. 0 or -1 with errno. */
int file_write_all(int fd, const void *data, size_t size);

/* Make the folder and its parents (0777 less umask). -ERR_OUTPUT names the part. */
int file_make_dirs(const char *path, struct error *err);

#endif
