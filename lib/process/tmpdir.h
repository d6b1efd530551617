/* SPDX-License-Identifier: BSD-3-Clause */
/* A private directory for the sockets and files of one job on one node. */
#ifndef BERTH_PROCESS_TMPDIR_H
#define BERTH_PROCESS_TMPDIR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Create "PARENT/berth-XXXXXX" with mode 0700. /tmp replaces parent if it is NULL or too long for a
 * socket's name; PMIx puts sockets there. It stays locked until *lock_fd is closed here and in
 * processes forked from here (-1: it cannot be locked). First remove this user's directories in
 * parent whose processes have ended. Return 0 or -ERR_OUTPUT; a parent of another user's in /tmp is
 * refused (file_check_path). */
int tmpdir_create(const char *parent, char *out, size_t size, int *lock_fd, struct error *err);
/* Make such a directory of this process's again if somebody has removed it, and return true.
 * *lock_fd, of one made earlier in this way, or -1, is closed and replaced. */
bool tmpdir_restore(const char *path, int *lock_fd);
/* Call use for each such directory of this user in parent, read as above, that contains a file of
 * that name. live: it is still locked. */
void tmpdir_each(const char *parent, const char *file,
		 void (*use)(void *context, const char *path, bool live), void *context);
/* Is such a directory still locked? */
bool tmpdir_is_live(const char *path);
/* Remove the directory and its contents without following links. Names that tmpdir_create does not
 * make are left alone. */
void tmpdir_remove(const char *path);

#endif
