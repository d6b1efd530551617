/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret that the controller and the agents of a job share, and its files. A file serves jobs
 * whose agents the user or OpenPAI starts, and launchers that cannot pass a secret on. */
#ifndef BERTH_OVERLAY_SECRET_H
#define BERTH_OVERLAY_SECRET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"

#define SECRET_BYTES 32
struct secret {
	unsigned char bytes[SECRET_BYTES];
};

/* Generate 32 random bytes. Initialises libsodium. */
int secret_generate(struct secret *out, struct error *err);
/* Parse exactly 64 hexadecimal digits. Return 0, or -ERR_DATA; err does not show the text. */
int secret_parse(const char *text, struct secret *out, struct error *err);
/* Derive the secret from PBS's job cookie, the job's name and a nonce. Name and nonce are not
 * secret. It serves launchers that cannot hand an agent a secret: both sides have the cookie.
 * Return 0, -ERR_UNAVAILABLE without a cookie, or -ERR_DATA if the cookie is too short. */
int secret_derive(const char *cookie, const char *job, const char *nonce, struct secret *out,
		  struct error *err);
void secret_format(const struct secret *secret, char text[65]);
/* Derive one of the ranks' secrets, as text, from the job's. The job's cannot be computed from it.
 */
enum secret_use { SECRET_FOR_STORE = 1, SECRET_FOR_PMIX };
void secret_for_ranks(const struct secret *secret, const char *job, enum secret_use use,
		      char text[65]);
/* 16 hexadecimal digits that identify a secret without revealing anything about it. */
void secret_fingerprint(const struct secret *secret, char text[17]);
/* The same as 8 bytes. */
void secret_fingerprint_bytes(const struct secret *secret, unsigned char out[8]);
void secret_wipe(struct secret *secret);

/* Make this process and those it forks undumpable: they write no core file, and no other process of
 * the user (such as a rank in a container) may trace them or read their memory and environment.
 * execve makes a program dumpable again. Without effect in builds with LeakSanitizer, which traces
 * the process. */
void secret_protect_process(void);

/* Read BERTH_SECRET_FILE, or ~/.config/berth/secret: 64 hexadecimal digits and a newline, readable
 * by the owner only. If make is set and the default file is missing, create it (random, mode 0600,
 * directory 0700) and set *made; if another machine creates it first, read that one instead. path
 * (size bytes) is filled in even on failure. Return 0; -ERR_INPUT if the file is missing (err shows
 * the command that creates one); -ERR_DATA if others can read it or it holds no secret. */
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
