/* SPDX-License-Identifier: BSD-3-Clause */
/* A private directory for the sockets and files of one job on one node. */
#ifndef BERTH_PROCESS_TMPDIR_H
#define BERTH_PROCESS_TMPDIR_H

#include <stddef.h>

#include "base/error.h"

/* Create "PARENT/berth-XXXXXX" with mode 0700. /tmp replaces parent if it is NULL or too long for a
 * socket's name; PMIx puts sockets there. It stays locked until this process ends. First remove
 * this user's directories in parent whose processes have ended. Return 0 or -ERR_OUTPUT. */
int tmpdir_create(const char *parent, char *out, size_t size, struct error *err);
/* Remove the directory and its contents without following links. Names that tmpdir_create does not
 * make are left alone. */
void tmpdir_remove(const char *path);

#endif
