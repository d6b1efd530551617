/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside libberth.so. */
#ifndef BERTH_LIBBERTH_H
#define BERTH_LIBBERTH_H

#include <jansson.h>

#include "base/error.h"
#include "berth.h"

/* A berth.plan/1's entry for one local rank. json owns the strings. */
struct local_plan {
	json_t *json;
	struct berth_plan plan;
	struct berth_gpu *gpus;
	struct berth_nic *nics;
};

/* Read the entry for local_rank from a BERTH_PLAN_FILE. Return 0, -ERR_INPUT or -ERR_DATA. The
 * caller frees *out with local_plan_free. */
int local_plan_read(const char *path, int local_rank, struct local_plan *out, struct error *err);
void local_plan_free(struct local_plan *own); /* frees what it holds and clears it */

#endif
