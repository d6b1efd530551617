/* SPDX-License-Identifier: BSD-3-Clause */
/* The learning rate of each step: a closed form, so that a resumed run needs no history. */
#ifndef BERTH_TRAIN_SCHEDULE_H
#define BERTH_TRAIN_SCHEDULE_H

#include <stdint.h>

#include "base/error.h"

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_COSINE };

/* cosine: PyTorch's CosineAnnealingLR with eta_min 0, by epochs: lr (1 + cos(pi epoch / epochs))
 * / 2. */
struct schedule {
	enum schedule_kind kind;
	double lr;
	int64_t epochs; /* T_max */
};

/* "constant" or "cosine". -ERR_USAGE names the others. */
int schedule_parse(const char *name, enum schedule_kind *out, struct error *err);
const char *schedule_name(enum schedule_kind kind);
/* Of a step in epoch (from 0). */
double schedule_lr(const struct schedule *schedule, int64_t epoch);

#endif
