/* SPDX-License-Identifier: BSD-3-Clause */
/* --log-order: which samples a rank took, in the order in which it took them. */
#ifndef BERTH_TRAIN_DATA_SAMPLE_LOG_H
#define BERTH_TRAIN_DATA_SAMPLE_LOG_H

#include <stdint.h>

#include "base/error.h"

struct sample_log; /* opaque; NULL: no log was requested, and all calls do nothing */

/* Open DIR/rank-RANK.txt for appending, and make directory if it is missing. -ERR_OUTPUT. */
int sample_log_open(const char *directory, int rank, int world, struct sample_log **out,
		    struct error *err);
/* Write this rank's count samples of the batch at position of epoch's order, for step. -ERR_IO. */
int sample_log_write(struct sample_log *log, int64_t epoch, int64_t step, int64_t position,
		     const uint32_t *indices, int count, struct error *err);
void sample_log_close(struct sample_log *log);

#endif
