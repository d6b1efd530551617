/* SPDX-License-Identifier: BSD-3-Clause */
/* Renews the owner file of a checkpoint directory in a thread of its own, even while a write takes
 * longer than other jobs watch for a sign of life. */
#ifndef BERTH_TRAIN_CHECKPOINT_RENEWER_H
#define BERTH_TRAIN_CHECKPOINT_RENEWER_H

#include <stdbool.h>

#include "base/error.h"
#include "train/checkpoint/owner.h"

struct renewer; /* opaque */

/* owner is borrowed until renewer_free has returned true. period_ms: 0 is OWNER_PERIOD_MS. Return 0
 * or -ERR_UNAVAILABLE. */
int renewer_new(struct owner *owner, int period_ms, struct renewer **out, struct error *err);
/* End the thread; wait at most timeout_ms for a renewal in progress. Return false if a file system
 * blocks it for longer: what it uses must then stay until the process ends. NULL: true. */
bool renewer_free(struct renewer *renewer, int timeout_ms);

/* Renew now, from any thread. Returns an error only if the directory is no longer ours: a failing
 * file system may work again the next time. NULL: 0. */
int renewer_renew(struct renewer *renewer, struct error *err);
/* Return 0, or an error if the directory is no longer ours. Never blocks. NULL: 0. */
int renewer_lost(struct renewer *renewer, struct error *err);

#endif
