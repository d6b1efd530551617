/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared memory for the ranks of one node, and all-reduce in it without a copy.
 *
 * Each rank has its own part; all parts have one size, and every rank sees all of them. A sum adds
 * the same range of all parts in rank order and writes the result into each. It is cut into chunks,
 * and any idle rank takes the next chunk that all ranks have begun. The order makes the bits
 * independent of which rank did the work.
 *
 * Cost for 2 ranks: each byte is read once and written once. A message passing library in shared
 * memory copies it twice more. No function waits. */
#ifndef BERTH_TRAIN_COMM_SHM_ALLREDUCE_H
#define BERTH_TRAIN_COMM_SHM_ALLREDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "train/comm/comm.h"

struct shm_allreduce;

/* What another process needs to map the memory: the creator's pid and descriptor, and the nonce
 * that the memory must begin with, so that no process maps something else. A plain value that can
 * be sent. */
struct shm_handle {
	int64_t pid, fd;
	uint64_t nonce;
};

/* Create memory with ranks parts of size_bytes each, and map it. The descriptor stays open until
 * shm_allreduce_seal. nonce is any number that differs between jobs. The memory has no file and
 * disappears with the last process. Return 0, or -ERR_UNAVAILABLE if memory is out. */
int shm_allreduce_create(int rank, int ranks, size_t size_bytes, uint64_t nonce,
			 struct shm_allreduce **out, struct shm_handle *name, struct error *err);
/* Map memory that another process of this machine created with the same ranks and size_bytes.
 * Return 0, or -ERR_UNAVAILABLE if it is inaccessible (another user, another PID namespace). */
int shm_allreduce_attach(int rank, int ranks, size_t size_bytes, const struct shm_handle *name,
			 struct shm_allreduce **out, struct error *err);
/* The memory op of a comm (comm.h) that reduces by shared memory. *out stays NULL, with *buffer, if
 * the device has its own memory or some rank cannot map it (ranks in separate containers); that is
 * not an error. Collective. */
int shm_allreduce_open(struct comm *comm, struct device_queue *queue, size_t size_bytes,
		       struct shm_allreduce **out, void **buffer, struct error *err);
/* Close the descriptor once all ranks have mapped the memory; no process can map it afterwards. */
void shm_allreduce_seal(struct shm_allreduce *shm);
/* NULL is allowed; other ranks keep their mapping. */
void shm_allreduce_free(struct shm_allreduce *shm);

/* This rank's part, 64-byte aligned, zeros at first. */
void *shm_allreduce_buffer(const struct shm_allreduce *shm);
/* Do these floats lie within this rank's part? */
bool shm_allreduce_contains(const struct shm_allreduce *shm, const void *data, size_t count);

/* Begin the sum of count floats at data (see shm_allreduce_contains). All ranks begin the same sums
 * in the same order. The floats must not be read or written until shm_allreduce_done returns true.
 * Return 0, or -ERR_UNAVAILABLE if memory is out. */
int shm_allreduce_start(struct shm_allreduce *shm, float *data, size_t count, struct error *err);
/* Process one chunk of what all ranks have begun; false if there is none now. */
bool shm_allreduce_progress(struct shm_allreduce *shm);
/* Is everything that this rank has begun complete? */
bool shm_allreduce_done(struct shm_allreduce *shm);
/* Has rank begun everything that this rank has? Otherwise this rank waits for it. */
bool shm_allreduce_has_arrived(const struct shm_allreduce *shm, int rank);

#endif
