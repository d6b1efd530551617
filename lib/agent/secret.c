/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/secret.h"

#include <sodium.h>
#include <string.h>

static int sodium_start(struct error *err)
{
	if (sodium_init() < 0)
		return error_set(err, ERR_UNAVAILABLE,
				 "libsodium cannot start: no random numbers "
				 "from the kernel");
	return 0;
}

int wire_secret_make(struct wire_secret *out, struct error *err)
{
	int rc = sodium_start(err);

	if (!rc)
		randombytes_buf(out->bytes, sizeof out->bytes);
	return rc;
}

int wire_secret_parse(const char *text, struct wire_secret *out, struct error *err)
{
	struct wire_secret secret;
	size_t size = 0;
	const char *end = NULL;
	int rc = sodium_start(err);

	if (rc)
		return rc;
	if (sodium_hex2bin(secret.bytes, sizeof secret.bytes, text, strlen(text), NULL, &size,
			   &end) ||
	    *end || size != sizeof secret.bytes)
		return error_set(
			err, ERR_DATA,
			"the secret must be %d hexadecimal digits and nothing else; it has "
			"%zu characters",
			WIRE_SECRET_BYTES * 2, strlen(text));
	*out = secret;
	wire_secret_forget(&secret);
	return 0;
}

void wire_secret_format(const struct wire_secret *secret, char text[65])
{
	sodium_bin2hex(text, 65, secret->bytes, sizeof secret->bytes);
}

void wire_secret_fingerprint_bytes(const struct wire_secret *secret, unsigned char out[8])
{
	static const char what[] = "berth fingerprint 1";
	unsigned char hash[32];

	crypto_generichash(hash, sizeof hash, (const unsigned char *)what, sizeof what,
			   secret->bytes, sizeof secret->bytes);
	memcpy(out, hash, 8);
}

void wire_secret_fingerprint(const struct wire_secret *secret, char text[17])
{
	unsigned char bytes[8];

	wire_secret_fingerprint_bytes(secret, bytes);
	sodium_bin2hex(text, 17, bytes, sizeof bytes);
}

void wire_secret_forget(struct wire_secret *secret)
{
	sodium_memzero(secret, sizeof *secret);
}
