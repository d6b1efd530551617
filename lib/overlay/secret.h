/* SPDX-License-Identifier: BSD-3-Clause */
/* The secret that head and agents of a job share. */
#ifndef BERTH_OVERLAY_SECRET_H
#define BERTH_OVERLAY_SECRET_H

#include "base/error.h"

#define WIRE_SECRET_BYTES 32
struct wire_secret {
	unsigned char bytes[WIRE_SECRET_BYTES];
};

/* 32 random bytes. Starts libsodium. */
int wire_secret_make(struct wire_secret *out, struct error *err);
/* 64 hexadecimal digits, nothing else; -ERR_DATA (the text is not shown). */
int wire_secret_parse(const char *text, struct wire_secret *out, struct error *err);
/* Where nothing secret can be handed to an agent: of what both have, PBS's job cookie, and the job's
 * name and a nonce, which are no secrets. -ERR_UNAVAILABLE: no cookie; -ERR_DATA: one that is too
 * short to be of use. */
int wire_secret_derive(const char *cookie, const char *job, const char *nonce,
		       struct wire_secret *out, struct error *err);
void wire_secret_format(const struct wire_secret *secret, char text[65]);
/* 16 digits that name a secret without telling anything of it. */
void wire_secret_fingerprint(const struct wire_secret *secret, char text[17]);
/* The same as 8 bytes. */
void wire_secret_fingerprint_bytes(const struct wire_secret *secret, unsigned char out[8]);
void wire_secret_forget(struct wire_secret *secret);

#endif
