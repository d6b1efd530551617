/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret that the controller and the agents of a job share. */
#ifndef BERTH_OVERLAY_SECRET_H
#define BERTH_OVERLAY_SECRET_H

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
/* 16 hexadecimal digits that identify a secret without revealing anything about it. */
void secret_fingerprint(const struct secret *secret, char text[17]);
/* The same as 8 bytes. */
void secret_fingerprint_bytes(const struct secret *secret, unsigned char out[8]);
void secret_wipe(struct secret *secret);

#endif
