/* SPDX-License-Identifier: BSD-3-Clause */
/* A private folder for sockets and files of one job on one node. */
#ifndef BERTH_PROCESS_TMPDIR_H
#define BERTH_PROCESS_TMPDIR_H

#include <stddef.h>

#include "base/error.h"

/* Make "PARENT/berth-XXXXXX", 0700 and ours; parent NULL or too long for a socket's name (PMIx
 * puts sockets there): /tmp. -ERR_OUTPUT. */
int tmpdir_create(const char *parent, char *out, size_t size, struct error *err);
/* Remove it and what is in it, links not followed. Only what tmpdir_create made: other names are
 * left alone. */
void tmpdir_remove(const char *path);

#endif
