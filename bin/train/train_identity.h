/* SPDX-License-Identifier: BSD-3-Clause */
/* Which job a trainer is of, from the environment; and asking schedulers about others. */
#ifndef BERTH_BIN_TRAIN_TRAIN_IDENTITY_H
#define BERTH_BIN_TRAIN_TRAIN_IDENTITY_H

#include "base/env.h"
#include "train/checkpoint/owner.h"

/* BERTH_JOB_ID, BERTH_ATTEMPT and BERTH_JOB_BEFORE (ids between commas: the jobs that this one goes
 * on for), or what the scheduler alone says. Strings are env's, which is also what squeue and qstat
 * are asked with: it must outlive out. */
void train_identity_read(const struct env *env, struct owner_identity *out);

#endif
