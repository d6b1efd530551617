/* SPDX-License-Identifier: BSD-3-Clause */
/* Keeps the owner's file of a folder of checkpoints fresh in a thread of its own: also while a
 * write takes longer than others watch for a sign of life. */
#ifndef BERTH_TRAIN_CHECKPOINT_RENEWER_H
#define BERTH_TRAIN_CHECKPOINT_RENEWER_H

#include <stdbool.h>

#include "base/error.h"
#include "train/checkpoint/owner.h"

struct renewer; /* opaque */

/* owner: borrowed until renewer_free has returned true. period_ms: 0 is OWNER_PERIOD_MS.
 * -ERR_UNAVAILABLE. */
int renewer_new(struct owner *owner, int period_ms, struct renewer **out, struct error *err);
/* Ends the thread; waits at most timeout_ms for a renewal that is under way. False where a file
 * system holds it for longer: what it uses must stay until the process ends. NULL: true. */
bool renewer_free(struct renewer *renewer, int timeout_ms);

/* Renew now. The error only of a folder that is no longer ours: a file system that fails now may be
 * well again at the next time. From any thread. NULL: 0. */
int renewer_renew(struct renewer *renewer, struct error *err);
/* 0, or why the folder is no longer ours. Never blocks. NULL: 0. */
int renewer_lost(struct renewer *renewer, struct error *err);

#endif
