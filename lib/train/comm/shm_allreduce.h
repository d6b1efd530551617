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

struct window;

/* What another process needs to map it: the maker's pid and descriptor, and what the memory must
 * begin with, so that nobody maps something else. A plain value, to be sent. */
struct window_name {
	int64_t pid, fd;
	uint64_t nonce;
};

/* Make the memory of ranks parts of size_bytes each and map it. The descriptor stays open until
 * window_seal. nonce: any number that differs between jobs. It has no file: it is gone with the
 * last process. -ERR_UNAVAILABLE: no memory. */
int window_make(int rank, int ranks, size_t size_bytes, uint64_t nonce, struct window **out,
		struct window_name *name, struct error *err);
/* Map what another process of this machine made with the same ranks and size_bytes.
 * -ERR_UNAVAILABLE: it can't be seen from here (another user, another PID namespace). */
int window_map(int rank, int ranks, size_t size_bytes, const struct window_name *name,
	       struct window **out, struct error *err);
/* All have mapped it: nobody can any more. */
void window_seal(struct window *window);
void window_free(struct window *window); /* NULL is fine; others keep theirs */

/* This rank's part, 64-byte aligned, zeros at first. */
void *window_memory(const struct window *window);
/* Do these floats lie in this rank's part? */
bool window_holds(const struct window *window, const void *data, size_t count);

/* Begin the sum of count floats at data (window_holds): all ranks begin the same sums in the same
 * order. They may be read or written again when window_done says so. -ERR_UNAVAILABLE: memory. */
int window_begin(struct window *window, float *data, size_t count, struct error *err);
/* Do one chunk of what all ranks have begun; false where there is none now. */
bool window_work(struct window *window);
/* Is all that this rank has begun done? */
bool window_done(struct window *window);
/* Has rank begun all that this one has? Those who have not are waited for. */
bool window_here(const struct window *window, int rank);

#endif
