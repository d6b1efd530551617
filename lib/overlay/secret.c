/* SPDX-License-Identifier: BSD-3-Clause */
#include "overlay/secret.h"

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

int secret_generate(struct secret *out, struct error *err)
{
	int rc = sodium_start(err);

	if (!rc)
		randombytes_buf(out->bytes, sizeof out->bytes);
	return rc;
}

int secret_parse(const char *text, struct secret *out, struct error *err)
{
	struct secret secret;
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
			SECRET_BYTES * 2, strlen(text));
	*out = secret;
	secret_wipe(&secret);
	return 0;
}

#define COOKIE_MIN 16 /* OpenPBS's has 32 hexadecimal digits */
#define COOKIE_MAX 4096

int secret_derive(const char *cookie, const char *job, const char *nonce, struct secret *out,
		  struct error *err)
{
	static const char what[] = "berth secret of a PBS cookie 1";
	crypto_generichash_state state;
	int rc = sodium_start(err);

	if (rc)
		return rc;
	if (!cookie)
		return error_set(err, ERR_UNAVAILABLE,
				 "PBS_JOBCOOKIE is not set: the agents' secret is made of it; is "
				 "this a task of PBS's?");
	if (strlen(cookie) < COOKIE_MIN || strlen(cookie) > COOKIE_MAX)
		return error_set(err, ERR_DATA,
				 "PBS_JOBCOOKIE has %zu characters; expected %d or "
				 "more",
				 strlen(cookie), COOKIE_MIN);
	crypto_generichash_init(&state, NULL, 0, sizeof out->bytes);
	/* Each with its terminating NUL, so that no two triples yield the same bytes. */
	crypto_generichash_update(&state, (const unsigned char *)what, sizeof what);
	crypto_generichash_update(&state, (const unsigned char *)cookie, strlen(cookie) + 1);
	crypto_generichash_update(&state, (const unsigned char *)job, strlen(job) + 1);
	crypto_generichash_update(&state, (const unsigned char *)nonce, strlen(nonce) + 1);
	crypto_generichash_final(&state, out->bytes, sizeof out->bytes);
	sodium_memzero(&state, sizeof state);
	return 0;
}

void secret_format(const struct secret *secret, char text[65])
{
	sodium_bin2hex(text, 65, secret->bytes, sizeof secret->bytes);
}

void secret_fingerprint_bytes(const struct secret *secret, unsigned char out[8])
{
	static const char what[] = "berth fingerprint 1";
	unsigned char hash[32];

	crypto_generichash(hash, sizeof hash, (const unsigned char *)what, sizeof what,
			   secret->bytes, sizeof secret->bytes);
	memcpy(out, hash, 8);
}

void secret_fingerprint(const struct secret *secret, char text[17])
{
	unsigned char bytes[8];

	secret_fingerprint_bytes(secret, bytes);
	sodium_bin2hex(text, 17, bytes, sizeof bytes);
}

void secret_wipe(struct secret *secret)
{
	sodium_memzero(secret, sizeof *secret);
}
