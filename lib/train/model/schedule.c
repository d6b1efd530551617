/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/model/schedule.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"

#define MOST (INT64_C(1) << 36)

static const char *const names[SCHEDULE_KINDS] = {
	[SCHEDULE_CONSTANT] = "constant",
	[SCHEDULE_STEP] = "step",
	[SCHEDULE_MULTISTEP] = "multistep",
	[SCHEDULE_COSINE] = "cosine",
};

int schedule_parse(const char *name, enum schedule_kind *out, struct error *err)
{
	for (int i = 0; i < SCHEDULE_KINDS; i++)
		if (!strcmp(name, names[i])) {
			*out = (enum schedule_kind)i;
			return 0;
		}
	return error_set(err, ERR_USAGE,
			 "unknown schedule '%.100s'; expected constant, step, multistep or cosine",
			 name);
}

const char *schedule_name(enum schedule_kind kind)
{
	return names[kind];
}

int schedule_parse_milestones(const char *text, struct schedule *out, struct error *err)
{
	int64_t milestones[SCHEDULE_MILESTONES], last = 0;
	int count = 0;

	for (const char *at = text;; at++) {
		size_t size = strcspn(at, ",");
		char number[24];

		if (count == SCHEDULE_MILESTONES)
			return error_set(err, ERR_USAGE, "--milestones: expected at most %d epochs",
					 SCHEDULE_MILESTONES);
		snprintf(number, sizeof number, "%.*s", (int)(size < 23 ? size : 23), at);
		if (number_int64("--milestones", number, 1, MOST, &milestones[count], NULL) ||
		    milestones[count] <= last)
			return error_set(err, ERR_USAGE,
					 "--milestones is \"%.100s\": expected ascending epochs, "
					 "for example 30,60,80",
					 text);
		last = milestones[count++];
		at += size;
		if (!*at)
			break;
	}
	memcpy(out->milestones, milestones, sizeof milestones);
	out->milestone_count = count;
	return 0;
}

int schedule_parse_warmup(const char *text, struct schedule *out, struct error *err)
{
	char number[24];
	size_t size = strlen(text);
	bool epochs = size && text[size - 1] == 'e';

	snprintf(number, sizeof number, "%.*s", (int)(size - epochs < 23 ? size - epochs : 23),
		 text);
	if (number_int64("--warmup", number, 0, MOST, &out->warmup, NULL))
		return error_set(err, ERR_USAGE,
				 "--warmup is \"%.100s\": expected a number of epochs (5e) or of "
				 "steps (500)",
				 text);
	out->warmup_unit = !out->warmup ? WARMUP_NONE : epochs ? WARMUP_EPOCHS : WARMUP_STEPS;
	return 0;
}

/* The factor on the learning rate that depends on epochs alone. */
static double factor(const struct schedule *schedule, int64_t epoch, int64_t epochs)
{
	int64_t passed = 0;

	switch (schedule->kind) {
	case SCHEDULE_STEP:
		passed = epoch / schedule->step_size;
		return pow(schedule->gamma, (double)passed);
	case SCHEDULE_MULTISTEP:
		while (passed < schedule->milestone_count && schedule->milestones[passed] <= epoch)
			passed++;
		return pow(schedule->gamma, (double)passed);
	case SCHEDULE_COSINE:
		if (epochs <= 0)
			return 1;
		return (1 + cos(3.14159265358979323846 * (double)epoch / (double)epochs)) / 2;
	case SCHEDULE_CONSTANT:
		break;
	}
	return 1;
}

/* LinearLR's factor after done of schedule->warmup epochs or steps. */
static double warm(const struct schedule *schedule, int64_t done)
{
	double start = schedule->warmup_start;

	if (done >= schedule->warmup)
		return 1;
	return start + (1 - start) * (double)done / (double)schedule->warmup;
}

double schedule_lr(const struct schedule *schedule, int64_t epoch, int64_t steps)
{
	int64_t before = schedule->warmup_unit == WARMUP_EPOCHS ? schedule->warmup : 0;
	double lr = schedule->lr;

	if (epoch < before)
		return lr * warm(schedule, epoch);
	if (schedule->warmup_unit == WARMUP_STEPS)
		lr *= warm(schedule, steps);
	return lr * factor(schedule, epoch - before, schedule->epochs - before);
}
