/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/schedule.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {[SCHEDULE_CONSTANT] = "constant", [SCHEDULE_COSINE] = "cosine"};

int schedule_parse(const char *name, enum schedule_kind *out, struct error *err)
{
	for (int i = 0; i <= SCHEDULE_COSINE; i++)
		if (!strcmp(name, names[i])) {
			*out = (enum schedule_kind)i;
			return 0;
		}
	return error_set(err, ERR_USAGE,
			 "there is no schedule '%s'; the schedules are: constant, cosine", name);
}

const char *schedule_name(enum schedule_kind kind)
{
	return names[kind];
}

double schedule_lr(const struct schedule *schedule, int64_t epoch)
{
	if (schedule->kind == SCHEDULE_COSINE && schedule->epochs > 0)
		return schedule->lr *
		       (1 +
			cos(3.14159265358979323846 * (double)epoch / (double)schedule->epochs)) /
		       2;
	return schedule->lr;
}
