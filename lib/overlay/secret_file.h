/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret as a file. It serves jobs whose agents the user or OpenPAI starts, and launchers that
 * cannot pass a secret on. */
#ifndef BERTH_OVERLAY_SECRET_FILE_H
#define BERTH_OVERLAY_SECRET_FILE_H

#include <stdbool.h>

#include "base/env.h"
#include "base/error.h"
#include "overlay/secret.h"

/* Read BERTH_SECRET_FILE, or ~/.config/berth/secret: 64 hexadecimal digits and a newline, readable
 * by the owner only. If make is set and the default file is missing, create it (random, mode 0600,
 * directory 0700) and set *made. path (size bytes) is filled in even on failure. Return 0;
 * -ERR_INPUT if the file is missing (err shows the command that creates one); -ERR_DATA if others
 * can read it or it holds no secret. */
int secret_file_read(const struct env *env, bool make, struct secret *out, bool *made, char *path,
		     int size, struct error *err);

/* Write the secret to a new file in ~/.config/berth, created with mode 0600. It serves the agents
 * of one run on nodes that share the home directory. path is filled in; the caller unlinks the
 * file. Return 0, or -ERR_INPUT without HOME. */
int secret_file_create(const struct env *env, const struct secret *secret, char *path, size_t size,
		       struct error *err);
/* Read such a file in an agent. Errors as above. */
int secret_file_load(const char *path, struct secret *out, struct error *err);

#endif
