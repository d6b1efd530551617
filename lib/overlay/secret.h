/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret that head and agents of a job share. */
#ifndef BERTH_OVERLAY_SECRET_H
#define BERTH_OVERLAY_SECRET_H

#include "base/error.h"

#define SECRET_BYTES 32
struct secret {
	unsigned char bytes[SECRET_BYTES];
};

/* 32 random bytes. Starts libsodium. */
int secret_generate(struct secret *out, struct error *err);
/* 64 hexadecimal digits, nothing else; -ERR_DATA (the text is not shown). */
int secret_parse(const char *text, struct secret *out, struct error *err);
/* Where nothing secret can be handed to an agent: of what both have, PBS's job cookie, and the
 * job's name and a nonce, which are no secrets. -ERR_UNAVAILABLE: no cookie; -ERR_DATA: one that is
 * too short to be of use. */
int secret_derive(const char *cookie, const char *job, const char *nonce, struct secret *out,
		  struct error *err);
void secret_format(const struct secret *secret, char text[65]);
/* 16 digits that name a secret without telling anything of it. */
void secret_fingerprint(const struct secret *secret, char text[17]);
/* The same as 8 bytes. */
void secret_fingerprint_bytes(const struct secret *secret, unsigned char out[8]);
void secret_wipe(struct secret *secret);

#endif
