/* SPDX-License-Identifier: BSD-3-Clause */
/* A bounded queue of pieces of output with a thread that writes them, so that a stalled file system
 * or reader never blocks the thread that serves messages and deadlines. */
#ifndef BERTH_BASE_WRITE_QUEUE_H
#define BERTH_BASE_WRITE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/error.h"

struct write_queue; /* opaque; only its owner's thread calls the functions below */

/* Write a piece; called in the queue's thread, in the order of write_queue_add. May block. If no
 * thread can be created, write_queue_add itself calls it. */
typedef void write_queue_fn(void *context, unsigned target, const void *data, size_t size);

/* The thread starts with the first piece, so a process may still fork safely before that. The
 * caller bounds the queue: see write_queue_over. Return 0 or -ERR_UNAVAILABLE. */
int write_queue_new(write_queue_fn *write, void *context, struct write_queue **out,
		    struct error *err);

/* Queue the parts as one piece. target is passed on to write. Return false if memory is out; the
 * piece is lost then. */
bool write_queue_add(struct write_queue *queue, unsigned target, const struct iovec *parts,
		     size_t count);

/* Bytes that are not written yet. */
size_t write_queue_size(struct write_queue *queue);

/* Are more than size bytes unwritten? If so, write_queue_fd becomes readable once they are at most
 * half of size; the next call clears that. */
bool write_queue_over(struct write_queue *queue, size_t size);
int write_queue_fd(const struct write_queue *queue);

/* How long the current write has lasted; 0 if there is none. */
int64_t write_queue_stalled_ms(struct write_queue *queue);

/* Wait at most timeout_ms until everything is written. Return whether it is. */
bool write_queue_wait(struct write_queue *queue, int timeout_ms);

/* Wait likewise, then free the queue; NULL is allowed. Return false if the thread is still blocked
 * in a write. The queue, context and descriptors then stay in use until the process ends.
 */
bool write_queue_free(struct write_queue *queue, int timeout_ms);

#endif
