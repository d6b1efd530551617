/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret as a file, where nobody starts agents for us (by hand, OpenPAI), and where who does
 * can carry no secret. */
#ifndef BERTH_OVERLAY_SECRET_FILE_H
#define BERTH_OVERLAY_SECRET_FILE_H

#include <stdbool.h>

#include "base/env.h"
#include "base/error.h"
#include "overlay/secret.h"

/* Read BERTH_SECRET_FILE, or ~/.config/berth/secret: 64 hexadecimal digits and a newline, a file
 * that nobody else can read. make: where the default one is not there, make it (random, 0600, the
 * folder 0700), and *made says so. path (size bytes) is filled in also on failure.
 * -ERR_INPUT: missing, with the line that makes one; -ERR_DATA: others can read it, or no secret.
 */
int secret_file_read(const struct env *env, bool make, struct secret *out, bool *made, char *path,
		     int size, struct error *err);

/* A new file with it in ~/.config/berth, 0600 from its first moment, for the agents of one run on
 * nodes that share the home; path is filled in, and the caller unlinks it. -ERR_INPUT: no HOME. */
int secret_file_create(const struct env *env, const struct secret *secret, char *path, size_t size,
		       struct error *err);
/* What an agent does with such a path. Errors as above. */
int secret_file_load(const char *path, struct secret *out, struct error *err);

#endif
