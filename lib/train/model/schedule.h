/* SPDX-License-Identifier: BSD-3-Clause */
/* The learning rate of each step: closed forms, so that a resumed run needs no history. */
#ifndef BERTH_TRAIN_MODEL_SCHEDULE_H
#define BERTH_TRAIN_MODEL_SCHEDULE_H

#include <stdint.h>

#include "base/error.h"

enum schedule_kind { SCHEDULE_CONSTANT, SCHEDULE_STEP, SCHEDULE_MULTISTEP, SCHEDULE_COSINE };
#define SCHEDULE_KINDS 4
enum warmup_unit { WARMUP_NONE, WARMUP_EPOCHS, WARMUP_STEPS };
#define SCHEDULE_MILESTONES 32

/* clang-format off */
/* What each equals in torch.optim.lr_scheduler, to rounding (PyTorch multiplies step by step), for
 * a user who calls step() of it after each epoch e = 0, 1, ...:
 *   constant   no scheduler                      lr
 *   step       StepLR(step_size, gamma)          lr gamma^floor(e / step_size)
 *   multistep  MultiStepLR(milestones, gamma)    lr gamma^(how many milestones <= e)
 *   cosine     CosineAnnealingLR(T, eta_min=0)   lr (1 + cos(pi e / T)) / 2
 * T: the run's epochs, less those of a warm-up by epochs.
 *
 * Warm-up by W epochs, as torchvision's reference for classification has it:
 * SequentialLR([LinearLR(start_factor, total_iters=W), the above], milestones=[W]): that is
 * lr (start + (1 - start) e / W) while e < W, then the above with e - W for e.
 *
 * Warm-up by W steps, as torchvision's reference for detection has it: LinearLR(start_factor,
 * total_iters=W), whose step() is called after each update. After s updates it multiplies the rate
 * above by start + (1 - start) min(s, W) / W. */
/* clang-format on */
struct schedule {
	enum schedule_kind kind;
	double lr;
	int64_t epochs; /* of the run */
	int64_t step_size;
	double gamma;
	int64_t milestones[SCHEDULE_MILESTONES]; /* ascending */
	int milestone_count;
	enum warmup_unit warmup_unit;
	int64_t warmup; /* W */
	double warmup_start;
};

/* Parse "constant", "step", "multistep" or "cosine". Return 0, or -ERR_USAGE listing them. */
int schedule_parse(const char *name, enum schedule_kind *out, struct error *err);
const char *schedule_name(enum schedule_kind kind);
/* Parse "30,60,80": ascending integers from 1. Return 0, or -ERR_USAGE, which leaves *out's
 * milestones untouched. */
int schedule_parse_milestones(const char *text, struct schedule *out, struct error *err);
/* Parse "5e" (epochs) or "500" (steps). Return 0 or -ERR_USAGE. */
int schedule_parse_warmup(const char *text, struct schedule *out, struct error *err);
/* The learning rate of an update in epoch (from 0), after steps updates of the run. */
double schedule_lr(const struct schedule *schedule, int64_t epoch, int64_t steps);

#endif
