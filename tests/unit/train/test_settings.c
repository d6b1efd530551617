/* SPDX-License-Identifier: BSD-3-Clause */
/* The defaults of the options, and that each option on which ranks must agree is compared. */
#include "../rows.h"

#include <stddef.h>

#include "train/run/setup.h"

/* ---- defaults ---- */

static struct train_options said(const char *model)
{
	return (struct train_options){
		.model = model,
		.data = "synthetic",
		.device = "auto",
		.comm = "auto",
		.checkpoint.resume = "auto",
		.lr = -1,
		.momentum = -1,
		.weight_decay = -1,
		.schedule = {.gamma = -1, .warmup_start = -1},
	};
}

static void defaults(void **state)
{
	struct train_options options = said("convnet");
	struct error err = {0};

	options.schedule.warmup_unit = WARMUP_STEPS;
	assert_int_equal(train_defaults(&options, &err), 0);
	assert_int_equal(options.batch, model_find("convnet", NULL)->batch);
	assert_int_equal(options.epochs, model_find("convnet", NULL)->epochs);
	assert_int_equal(options.accumulate, 1);
	assert_true(options.lr == model_find("convnet", NULL)->lr);
	assert_true(options.momentum == 0.9 && options.weight_decay == 5e-4);
	assert_int_equal(options.schedule.kind, SCHEDULE_COSINE);
	assert_int_equal(options.schedule.step_size, 30);
	assert_true(options.schedule.gamma == 0.1 && options.schedule.warmup_start == 0.01);

	/* Values that were set stay, even zeros. */
	options = said("convnet");
	options.lr = options.momentum = options.weight_decay = 0;
	options.batch = 3;
	options.epochs = 2;
	options.schedule_set = true;
	assert_int_equal(train_defaults(&options, &err), 0);
	assert_true(!options.lr && !options.momentum && !options.weight_decay);
	assert_int_equal(options.batch, 3);
	assert_int_equal(options.epochs, 2);
	assert_int_equal(options.schedule.kind, SCHEDULE_CONSTANT);
}

/* ---- the same on all ranks ---- */

static struct train_options agreed(void)
{
	struct train_options options = said("linear");

	options.evaluate = true;
	options.schedule.kind = SCHEDULE_MULTISTEP;
	options.schedule.milestone_count = 2;
	options.schedule.milestones[0] = 3;
	options.schedule.milestones[1] = 5;
	return options;
}

static bool differs(const struct train_setup *setup, const struct meeting_setting *same)
{
	struct meeting_setting now[MEETING_SETTINGS];
	size_t count = train_settings(setup, now);
	bool any = false;

	for (size_t i = 0; i < count; i++)
		any |= now[i].value != same[i].value;
	return any;
}

#define FIELD(NAME) offsetof(struct train_options, NAME)

/* Change each option alone, in its first byte, which changes integers, booleans and floats alike.
 */
static void all_compared(void **state)
{
	static const struct {
		const char *name;
		size_t at;
	} rows[] = {
		{"batch", FIELD(batch)},
		{"accumulate", FIELD(accumulate)},
		{"epochs", FIELD(epochs)},
		{"steps", FIELD(steps)},
		{"log-every", FIELD(log_every)},
		{"save-every", FIELD(save_every)},
		{"save-every's unit", FIELD(save_unit)},
		{"no-eval", FIELD(evaluate)},
		{"on-nan", FIELD(nan_continues)},
		{"image-size", FIELD(image_size)},
		{"strict-data", FIELD(strict_data)},
		{"seed", FIELD(seed)},
		{"lr", FIELD(lr)},
		{"momentum", FIELD(momentum)},
		{"weight-decay", FIELD(weight_decay)},
		{"weight-decay-on", FIELD(decay_vectors)},
		{"nesterov", FIELD(nesterov)},
		{"label-smoothing", FIELD(smoothing)},
		{"cpu-conv", FIELD(direct)},
		{"schedule", FIELD(schedule.kind)},
		{"step-size", FIELD(schedule.step_size)},
		{"gamma", FIELD(schedule.gamma)},
		{"milestones", FIELD(schedule.milestones[1])},
		{"how many milestones", FIELD(schedule.milestone_count)},
		{"warmup", FIELD(schedule.warmup)},
		{"warmup's unit", FIELD(schedule.warmup_unit)},
		{"warmup-start", FIELD(schedule.warmup_start)},
	};
	const struct shape shape = {3, 4, 4};
	struct dataset data = {.count = 10}, val = {.count = 5};
	struct train_options options = agreed();
	struct train_setup setup = {
		.options = &options, .data = &data, .val = &val, .loss_kind = LOSS_CROSS_ENTROPY};
	struct meeting_setting same[MEETING_SETTINGS];
	struct error err = {0};

	assert_int_equal(model_build("linear", &shape, 4, STEM_DEFAULT, &setup.graph, &err), 0);
	train_settings(&setup, same);
	for (size_t i = 0; i < ROWS(rows); i++) {
		options = agreed();
		((unsigned char *)&options)[rows[i].at] ^= 1;
		if (!differs(&setup, same))
			fail_msg("--%s is not compared", rows[i].name);
	}
	options = agreed();
	for (int i = 0; i < 5; i++) {
		const char *const changed[] = {"augment", "ckpt", "count", "val's count", "loss"};

		options.augment = i == 0 ? "flip" : NULL;
		options.checkpoint.directory = i == 1 ? "c" : NULL;
		data.count = 10 + (i == 2);
		val.count = 5 + (i == 3);
		setup.loss_kind = i == 4 ? LOSS_MSE : LOSS_CROSS_ENTROPY;
		if (!differs(&setup, same))
			fail_msg("%s is not compared", changed[i]);
	}
	graph_free(setup.graph);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults),
		cmocka_unit_test(all_compared),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
