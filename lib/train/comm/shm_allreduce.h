/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that the ranks of one node share, and sums in it without a copy.
 *
 * Every rank has a part of its own, all of one size, and sees those of the others. A sum adds the
 * same stretch of all parts in rank order and writes the result into each: it is cut into chunks,
 * and whichever rank has nothing else to do takes the next one that all ranks have begun. So the
 * bits do not depend on who did the work.
 * Floor for 2 ranks: each byte is read once and written once; a message passing library in shared
 * memory copies it twice more. No function waits. */
#ifndef BERTH_TRAIN_COMM_SHM_ALLREDUCE_H
#define BERTH_TRAIN_COMM_SHM_ALLREDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct shm_allreduce;

/* What another process needs to map it: the maker's pid and descriptor, and what the memory must
 * begin with, so that nobody maps something else. A plain value, to be sent. */
struct shm_handle {
	int64_t pid, fd;
	uint64_t nonce;
};

/* Make the memory of ranks parts of size_bytes each and map it. The descriptor stays open until
 * shm_allreduce_seal. nonce: any number that differs between jobs. It has no file: it is gone with
 * the last process. -ERR_UNAVAILABLE: no memory. */
int shm_allreduce_create(int rank, int ranks, size_t size_bytes, uint64_t nonce,
			 struct shm_allreduce **out, struct shm_handle *name, struct error *err);
/* Map what another process of this machine made with the same ranks and size_bytes.
 * -ERR_UNAVAILABLE: it can't be seen from here (another user, another PID namespace). */
int shm_allreduce_attach(int rank, int ranks, size_t size_bytes, const struct shm_handle *name,
			 struct shm_allreduce **out, struct error *err);
/* All have mapped it: nobody can any more. */
void shm_allreduce_seal(struct shm_allreduce *shm);
void shm_allreduce_free(struct shm_allreduce *shm); /* NULL is fine; others keep theirs */

/* This rank's part, 64-byte aligned, zeros at first. */
void *shm_allreduce_buffer(const struct shm_allreduce *shm);
/* Do these floats lie in this rank's part? */
bool shm_allreduce_contains(const struct shm_allreduce *shm, const void *data, size_t count);

/* Begin the sum of count floats at data (shm_allreduce_contains): all ranks begin the same sums in
 * the same order. They may be read or written again when shm_allreduce_done says so.
 * -ERR_UNAVAILABLE: memory. */
int shm_allreduce_start(struct shm_allreduce *shm, float *data, size_t count, struct error *err);
/* Do one chunk of what all ranks have begun; false where there is none now. */
bool shm_allreduce_progress(struct shm_allreduce *shm);
/* Is all that this rank has begun done? */
bool shm_allreduce_done(struct shm_allreduce *shm);
/* Has rank begun all that this one has? Those who have not are waited for. */
bool shm_allreduce_has_arrived(const struct shm_allreduce *shm, int rank);

#endif
