/* SPDX-License-Identifier: BSD-3-Clause */
/* The proofs with which rank 0's store and a rank show each other that they know the job's secret.
 */
#include <stdlib.h>
#include <string.h>
#ifdef BERTH_SODIUM
#include <sodium.h>
#endif

#include "base/bytes.h"
#include "rendezvous/store.h"

#ifdef BERTH_SODIUM

int store_job_set_secret(struct store_job *job, const char *text, struct error *err)
{
	size_t size = 0;

	if (sodium_init() < 0 || (text && (sodium_hex2bin(job->secret, sizeof job->secret, text,
							  strlen(text), NULL, &size, NULL) ||
					   size != sizeof job->secret || strlen(text) != 2 * size)))
		return error_set(err, ERR_DATA,
				 "BERTH_STORE_SECRET: expected 64 hexadecimal digits, the same on "
				 "all ranks");
	return 0;
}

void store_proof(const struct store_job *job, const char *who, const struct store_nonces *nonces,
		 int rank, uint64_t size, unsigned char proof[STORE_PROOF_BYTES])
{
	crypto_generichash_state state;
	unsigned char numbers[12];

	bytes_put_u32(numbers, (uint32_t)rank);
	bytes_put_u64(numbers + 4, size);
	crypto_generichash_init(&state, job->secret, sizeof job->secret, STORE_PROOF_BYTES);
	crypto_generichash_update(&state, (const unsigned char *)who, strlen(who) + 1);
	crypto_generichash_update(&state, (const unsigned char *)nonces, sizeof *nonces);
	crypto_generichash_update(&state, numbers, sizeof numbers);
	crypto_generichash_update(&state, (const unsigned char *)job->label, strlen(job->label));
	crypto_generichash_final(&state, proof, STORE_PROOF_BYTES);
}

#else /* the trainer alone, without berth run: no secret, so a proof shows only the label */

int store_job_set_secret(struct store_job *job, const char *text, struct error *err)
{
	(void)job;
	return text ? error_set(err, ERR_UNAVAILABLE,
				"BERTH_STORE_SECRET is set, but this berth-train was built without "
				"libsodium")
		    : 0;
}

void store_proof(const struct store_job *job, const char *who, const struct store_nonces *nonces,
		 int rank, uint64_t size, unsigned char proof[STORE_PROOF_BYTES])
{
	memset(proof, 0, STORE_PROOF_BYTES);
	memcpy(proof, job->label, strnlen(job->label, STORE_PROOF_BYTES));
}

#endif
