/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/run/settings.h"

#include <inttypes.h>
#include <string.h>

#include "base/crc32c.h"
#include "train/run/setup.h"

/* Defaults of torchvision's reference scripts. */
#define STEP_SIZE 30
#define GAMMA 0.1
#define WARMUP_START 0.01

/* ---- defaults ---- */

static int schedule_defaults(struct train_options *options, struct error *err)
{
	struct schedule *schedule = &options->schedule;
	enum schedule_kind kind = schedule->kind;

	if (schedule->step_size > 0 && kind != SCHEDULE_STEP)
		return error_set(err, ERR_USAGE,
				 "--step-size requires --schedule step; the schedule is %s",
				 schedule_name(kind));
	if (schedule->milestone_count && kind != SCHEDULE_MULTISTEP)
		return error_set(err, ERR_USAGE,
				 "--milestones requires --schedule multistep; the schedule is %s",
				 schedule_name(kind));
	if (!schedule->milestone_count && kind == SCHEDULE_MULTISTEP)
		return error_set(
			err, ERR_USAGE,
			"--schedule multistep requires --milestones, for example 30,60,80");
	if (schedule->gamma >= 0 && kind != SCHEDULE_STEP && kind != SCHEDULE_MULTISTEP)
		return error_set(
			err, ERR_USAGE,
			"--gamma requires --schedule step or multistep; the schedule is %s",
			schedule_name(kind));
	if (schedule->warmup_start >= 0 && schedule->warmup_unit == WARMUP_NONE)
		return error_set(err, ERR_USAGE,
				 "--warmup-start requires --warmup, for example 5e or 500");
	if (!schedule->step_size)
		schedule->step_size = STEP_SIZE;
	if (schedule->gamma < 0)
		schedule->gamma = GAMMA;
	if (schedule->warmup_start < 0)
		schedule->warmup_start = WARMUP_START;
	return 0;
}

/* Check the names that can be checked without loading or reading anything. */
static int check_names(const struct train_options *options, struct error *err)
{
	int rc = device_check_name(options->device, err);

	if (!rc)
		rc = comm_check_name(options->comm, err);
	return rc ? rc : dataset_check_name(options->data, err);
}

static int check_options(const struct train_options *options, struct error *err)
{
	if (options->nesterov && options->momentum <= 0)
		return error_set(err, ERR_USAGE, "--nesterov requires --momentum above 0");
	if ((int64_t)options->batch * options->accumulate > INT32_MAX)
		return error_set(
			err, ERR_USAGE,
			"--batch %d times --accumulate %d is too large: expected at most %" PRId32
			" samples per update on each rank",
			options->batch, options->accumulate, INT32_MAX);
	if (options->save_set && !options->checkpoint.directory)
		return error_set(
			err, ERR_USAGE,
			"--save-every requires --ckpt, the directory to save checkpoints in");
	if (options->keep_set && !options->checkpoint.directory)
		return error_set(err, ERR_USAGE,
				 "--keep requires --ckpt, the directory to save checkpoints in");
	if (options->checkpoint.take_over && !options->checkpoint.directory)
		return error_set(err, ERR_USAGE,
				 "--take-over requires --ckpt, the directory to take over");
	return 0;
}

int train_defaults(struct train_options *options, struct error *err)
{
	const struct model *model = model_find(options->model, err);

	if (!model)
		return -ERR_USAGE;
	if (options->tf32 && options->precision != PRECISION_F32)
		return error_set(err, ERR_USAGE,
				 "--tf32 has no effect with --amp %s, which multiplies in 16 bits: "
				 "remove one of them",
				 options->precision == PRECISION_BF16 ? "bf16" : "fp16");
	if (options->batch <= 0)
		options->batch = model->batch;
	if (options->accumulate <= 0)
		options->accumulate = 1;
	if (options->epochs <= 0)
		options->epochs = options->steps > 0 ? INT32_MAX : model->epochs;
	if (options->lr < 0)
		options->lr = model->lr;
	if (options->momentum < 0)
		options->momentum = model->momentum;
	if (options->weight_decay < 0)
		options->weight_decay = model->weight_decay;
	if (!options->schedule_set)
		options->schedule.kind = model->schedule;

	int rc = schedule_defaults(options, err);

	if (!rc)
		rc = check_options(options, err);
	return rc ? rc : check_names(options, err);
}

/* ---- the same on all ranks ---- */

static double fingerprint(const void *data, size_t size)
{
	return crc32c(0, data, size);
}

static double graph_fingerprint(const struct graph *graph)
{
	uint32_t mark = crc32c(0, graph->model, strlen(graph->model));

	mark = crc32c(mark, &graph->values[0], sizeof graph->values[0]);
	for (int i = 0; i < graph->param_count; i++)
		mark = crc32c(mark, graph->params[i].shape, sizeof graph->params[i].shape);
	return mark;
}

size_t train_settings(const struct train_setup *setup, struct meeting_setting out[MEETING_SETTINGS])
{
	const struct train_options *options = setup->options;
	const struct schedule *schedule = &options->schedule;
	const struct meeting_setting settings[] = {
		{"the network", graph_fingerprint(setup->graph), true},
		{"--batch", options->batch, false},
		{"the number of training samples (--data)", (double)setup->data->count, false},
		{"--no-eval", !options->evaluate, true},
		{"the number of validation samples (--data)",
		 setup->val ? (double)setup->val->count : 0, false},
		{"--accumulate", options->accumulate, false},
		{"--epochs", (double)options->epochs, false},
		{"--steps", (double)options->steps, false},
		{"--log-every", (double)options->log_every, false},
		{"--ckpt", !!options->checkpoint.directory, true},
		{"--save-every", (double)options->save_every, false},
		{"--save-every", options->save_unit, true},
		{"--keep", (double)options->checkpoint.keep, false},
		{"--on-nan", options->nan_continues, true},
		{"--augment",
		 options->augment ? fingerprint(options->augment, strlen(options->augment)) : 0,
		 true},
		{"--image-size", options->image_size, false},
		{"--strict-data", options->strict_data, true},
		{"--loss", setup->loss_kind, true},
		{"--seed", fingerprint(&options->seed, sizeof options->seed), true},
		{"--lr", options->lr, false},
		{"--momentum", options->momentum, false},
		{"--weight-decay", options->weight_decay, false},
		{"--weight-decay-on", options->decay_vectors, true},
		{"--nesterov", options->nesterov, true},
		{"--label-smoothing", options->smoothing, false},
		{"--cpu-conv", options->direct, true},
		{"--amp", options->precision, true},
		{"--tf32", options->tf32, true},
		{"--no-graph", options->no_graph, true},
		{"--schedule", schedule->kind, true},
		{"--step-size", (double)schedule->step_size, false},
		{"--gamma", schedule->gamma, false},
		{"--milestones",
		 fingerprint(schedule->milestones,
			     (size_t)schedule->milestone_count * sizeof *schedule->milestones),
		 true},
		{"--warmup", (double)schedule->warmup, false},
		{"--warmup", schedule->warmup_unit, true},
		{"--warmup-start", schedule->warmup_start, false},
	};

	_Static_assert(sizeof settings / sizeof *settings <= MEETING_SETTINGS, "all settings");
	memcpy(out, settings, sizeof settings);
	return sizeof settings / sizeof *settings;
}
