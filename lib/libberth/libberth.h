/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside libberth.so. */
#ifndef BERTH_LIBBERTH_H
#define BERTH_LIBBERTH_H

#include <jansson.h>

#include "base/env.h"
#include "base/error.h"
#include "berth.h"

/* What a berth.plan/1 says of one local rank. The strings live in json. */
struct local_plan {
	json_t *json;
	struct berth_plan plan;
	struct berth_gpu *gpus;
	struct berth_nic *nics;
};

/* Read BERTH_PLAN_FILE's entry for local_rank. -ERR_INPUT, -ERR_DATA. local_plan_free it. */
int local_plan_read(const char *path, int local_rank, struct local_plan *out, struct error *err);
void local_plan_free(struct local_plan *own); /* and clears it */

#endif
