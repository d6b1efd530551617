/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/train_options.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "train/data/augment.h"
#include "train/model/graph.h"

#define ARGUMENT(member) offsetof(struct train_arguments, member)
#define TRAIN(member) ARGUMENT(options.member)

static int read_save_time(struct train_options *options, const char *text, struct error *err)
{
	int rc = number_duration_ms("--save-every", text, &options->save_every, err);

	options->save_unit = SAVE_TIME;
	if (!rc && options->save_every < 1)
		return error_set(err, ERR_USAGE, "--save-every is \"%s\": expected a time above 0",
				 text);
	return rc;
}

static int read_save_every(const char *text, void *out, struct error *err)
{
	struct train_options *options = out;
	char number[32];
	size_t size = strlen(text);
	bool epochs = size && text[size - 1] == 'e';

	if (size >= sizeof number)
		return error_set(err, ERR_USAGE, "--save-every is too long");
	if (size && strchr("smhd", text[size - 1]))
		return read_save_time(options, text, err);
	memcpy(number, text, size - epochs);
	number[size - epochs] = 0;
	options->save_unit = epochs ? SAVE_EPOCHS : SAVE_STEPS;
	return number_int64("--save-every (N steps, Ne epochs, or a time such as 10m)", number, 1,
			    INT64_C(1) << 40, &options->save_every, err);
}

static int refuse_removed(const char *text, void *out, struct error *err)
{
	return error_set(err, ERR_USAGE,
			 "--explain-step was removed: berth's developers see the plan of a step "
			 "with layer-times of tests/gpu");
}

static int read_augment(const char *text, void *out, struct error *err)
{
	struct augment check;

	*(const char **)out = text;
	return strcmp(text, "auto") ? augment_parse(text, &check, err) : 0;
}

static int read_schedule(const char *text, void *out, struct error *err)
{
	return schedule_parse(text, out, err);
}

static int read_milestones(const char *text, void *out, struct error *err)
{
	return schedule_parse_milestones(text, out, err);
}

static int read_warmup(const char *text, void *out, struct error *err)
{
	return schedule_parse_warmup(text, out, err);
}

static int clear_flag(const char *text, void *out, struct error *err)
{
	*(bool *)out = false;
	return 0;
}

static int read_keep(const char *text, void *out, struct error *err)
{
	*(int64_t *)out = 0;
	return strcmp(text, "all") ? number_int64("--keep (N or all)", text, 1, 1000000, out, err)
				   : 0;
}

static int read_cpu_conv(const char *text, void *out, struct error *err)
{
	*(bool *)out = !strcmp(text, "direct");
	return *(bool *)out || !strcmp(text, "auto")
		       ? 0
		       : error_set(err, ERR_USAGE, "--cpu-conv is \"%s\": expected auto or direct",
				   text);
}

static int read_timeout(const char *text, void *out, struct error *err)
{
	int64_t ms = 0;
	int rc = number_duration_ms("--comm-timeout", text, &ms, err);

	if (!rc && (ms < 100 || ms > INT_MAX / 2))
		return error_set(err, ERR_USAGE,
				 "--comm-timeout is \"%s\": expected a time from 0.1s to 12d",
				 text);
	*(int *)out = (int)ms;
	return rc;
}

/* Paths have an expected text, so that an empty path is refused: it may come from an unset shell
 * variable and would put files into the root directory. */
const struct arguments_option train_options_table[] = {
	{.type = ARGUMENTS_GROUP, .group = 31, .doc = "Model, data and optimizer"},
	{"data", "SPEC",
	 "Train on fashion-mnist[:DIR] (default), mnist:DIR, cifar10:DIR, cifar100:DIR, "
	 "imagefolder:DIR, synthetic[:SHAPE][,n=SAMPLES][,classes=K], or DIR, whose files show "
	 "which of these it is (IDX files: mnist)",
	 ARGUMENTS_TEXT, TRAIN(data)},
	{"augment", "auto|none|LIST",
	 "Augment training samples with a list of flip, crop=PAD and resized-crop (default: auto, "
	 "which is flip,crop=4 for CIFAR, resized-crop,flip for imagefolder, else none)",
	 ARGUMENTS_READ, TRAIN(augment), .read = read_augment},
	{"image-size", "N", "Use images of NxN pixels with imagefolder (default: 224)",
	 ARGUMENTS_INT, TRAIN(image_size), 8, 4096},
	{"strict-data", NULL,
	 "With imagefolder, exit with code 65 at a file that cannot be decoded instead of skipping "
	 "it; the other formats always do",
	 ARGUMENTS_FLAG, TRAIN(strict_data)},
	{"stem", "default|cifar",
	 "First layers of a resnet: cifar has a 3x3 convolution of stride 1 and no pooling, for "
	 "images of 32x32; default is torchvision's",
	 ARGUMENTS_CHOICE, TRAIN(stem)},
	{"epochs", "N",
	 "Train for N epochs in all, including those of a checkpoint; the schedule spans them "
	 "(default: the model's)",
	 ARGUMENTS_INT64, TRAIN(epochs), 1, 1000000},
	{"steps", "N", "Stop after step N", ARGUMENTS_INT64, TRAIN(steps), 1, INT64_C(1) << 36},
	{"batch", "N", "Use batches of N samples on each rank (default: the model's)",
	 ARGUMENTS_INT, TRAIN(batch), 1, 1 << 20},
	{"accumulate", "K",
	 "Sum the gradients of K batches on each rank for one update (default: 1)", ARGUMENTS_INT,
	 TRAIN(accumulate), 1, 1 << 20},
	{"lr", "X", "Learning rate; not scaled by the number of ranks (default: the model's)",
	 ARGUMENTS_DOUBLE, TRAIN(lr), 0, 1000000},
	{"momentum", "X", "Momentum of SGD (default: the model's)", ARGUMENTS_DOUBLE,
	 TRAIN(momentum), 0, 1},
	{"weight-decay", "X", "Weight decay (default: the model's)", ARGUMENTS_DOUBLE,
	 TRAIN(weight_decay), 0, 1000000},
	{"weight-decay-on", "all|weights",
	 "Apply weight decay to all parameters (default), or to weights only, not to biases and "
	 "batch norm",
	 ARGUMENTS_BOOL, TRAIN(decay_vectors), 0},
	{"nesterov", NULL, "Use Nesterov's momentum", ARGUMENTS_FLAG, TRAIN(nesterov)},
	{"schedule", "constant|step|multistep|cosine",
	 "Schedule of the learning rate, by epochs (default: the model's)", ARGUMENTS_READ,
	 TRAIN(schedule.kind), .given = TRAIN(schedule_set), .read = read_schedule},
	{"step-size", "N", "Number of epochs between the steps of schedule step (default: 30)",
	 ARGUMENTS_INT64, TRAIN(schedule.step_size), 1, 1000000},
	{"gamma", "X", "Learning-rate factor for schedules step and multistep (default: 0.1)",
	 ARGUMENTS_DOUBLE, TRAIN(schedule.gamma), 0, 1000000},
	{"milestones", "N,N...",
	 "Epochs at which schedule multistep applies --gamma, ascending: 30,60,80", ARGUMENTS_READ,
	 TRAIN(schedule), .read = read_milestones},
	{"warmup", "Ne|N",
	 "Warm up linearly over N epochs (5e) before the schedule, or over N steps (500) on top of "
	 "it",
	 ARGUMENTS_READ, TRAIN(schedule), .read = read_warmup},
	{"warmup-start", "X", "Start the warm-up at X times --lr (default: 0.01)", ARGUMENTS_DOUBLE,
	 TRAIN(schedule.warmup_start), 0, 1},
	{"loss", "ce|mse",
	 "Loss: cross-entropy, or mean square for data with one target per sample (default: what "
	 "fits the data)",
	 ARGUMENTS_CHOICE, TRAIN(loss), .given = TRAIN(loss_set)},
	{"label-smoothing", "X",
	 "Label smoothing of cross-entropy in training, 0 to 1 (default: 0)", ARGUMENTS_DOUBLE,
	 TRAIN(smoothing), 0, 1},
	{"on-nan", "stop|continue",
	 "If a loss is not finite, name the step and exit with code 65 (default), or continue",
	 ARGUMENTS_BOOL, TRAIN(nan_continues), 1},
	{"seed", "N", "Seed for initial weights, shuffling and synthetic data (default: 0)",
	 ARGUMENTS_INT64, TRAIN(seed), 0, INT64_MAX},
	{"no-eval", NULL, "Skip the evaluation after each epoch", ARGUMENTS_READ, TRAIN(evaluate),
	 .read = clear_flag},
	{.type = ARGUMENTS_GROUP, .group = 32, .doc = "Checkpoints and metrics"},
	{"ckpt", "DIR", "Save checkpoints in DIR, at least at the end, and resume from there",
	 ARGUMENTS_TEXT, TRAIN(checkpoint.directory), .expected = "a directory"},
	{"save-every", "N|Ne|TIME",
	 "Save a checkpoint every N steps, every N epochs (2e), or by time: 10m, 90s, 2h (default: "
	 "1e)",
	 ARGUMENTS_READ, ARGUMENT(options), .given = TRAIN(save_set), .read = read_save_every},
	{"keep", "N|all",
	 "Keep the newest N checkpoints and the one with the best Acc@1 (default: all)",
	 ARGUMENTS_READ, TRAIN(checkpoint.keep), .given = TRAIN(keep_set), .read = read_keep},
	{"take-over", NULL,
	 "Take over the directory of --ckpt although another job seems to write there; make sure "
	 "that it has ended",
	 ARGUMENTS_FLAG, TRAIN(checkpoint.take_over)},
	{"resume", "auto|never|FILE",
	 "Resume from the newest whole checkpoint in --ckpt (auto, default), never, or from FILE",
	 ARGUMENTS_TEXT, TRAIN(checkpoint.resume), .expected = "auto, never or a file"},
	{"init", "FILE",
	 "Start from the weights in a safetensors file with torchvision's names, unless a "
	 "checkpoint is resumed",
	 ARGUMENTS_TEXT, TRAIN(init), .expected = "a file"},
	{"new-head", NULL, "With --init: initialize the last layer anew, for other classes",
	 ARGUMENTS_FLAG, TRAIN(new_head)},
	{"metrics", "DIR",
	 "Write DIR/metrics.jsonl, and event files for TensorBoard in DIR/train and DIR/val",
	 ARGUMENTS_TEXT, TRAIN(metrics), .expected = "a directory"},
	{"log-every", "N", "Report progress every N steps (default: 100)", ARGUMENTS_INT64,
	 TRAIN(log_every), 1, INT64_C(1) << 36},
	{"log-order", "DIR",
	 "Append to DIR/rank-N.txt one line per sample that rank N takes: epoch, step, position in "
	 "the order, sample",
	 ARGUMENTS_TEXT, TRAIN(log_order), .expected = "a directory"},
	{.type = ARGUMENTS_GROUP, .group = 33, .doc = "Computation"},
	{"device", "auto|cuda|cpu", "Compute here (default: auto, a GPU if there is one)",
	 ARGUMENTS_TEXT, TRAIN(device)},
	{"amp", "off|bf16|fp16",
	 "On a GPU: compute layers in 16 bits, with weights and sums in float32 (default: off)",
	 ARGUMENTS_CHOICE, TRAIN(precision)},
	{"tf32", NULL, "On a GPU: allow TF32 in float32 products", ARGUMENTS_FLAG, TRAIN(tf32)},
	{"no-graph", NULL, "On a GPU: launch each kernel separately, without CUDA graphs",
	 ARGUMENTS_FLAG, TRAIN(no_graph)},
	{"cpu-conv", "auto|direct",
	 "Algorithm of convolutions on the CPU: the fastest (auto, default) or the most exact",
	 ARGUMENTS_READ, TRAIN(direct), .read = read_cpu_conv},
	{"comm", "auto|nccl|mpi|gloo|self",
	 "Library that sums gradients across ranks (default: auto, which is nccl between GPUs, "
	 "else mpi under a launcher that serves MPI, else gloo)",
	 ARGUMENTS_TEXT, TRAIN(comm)},
	{"allow-shared-gpu", NULL, "Allow several ranks on one GPU with NCCL; slow, for tests",
	 ARGUMENTS_FLAG, TRAIN(allow_shared_gpu)},
	{"comm-timeout", "TIME", "Deadline of each wait for other ranks (default: 10m)",
	 ARGUMENTS_READ, TRAIN(timeout_ms), .read = read_timeout},
	{"workers", "N",
	 "Threads per rank that prepare the next batches; 0: the rank prepares each itself "
	 "(default: the rank's cores for files, 0 for data in memory)",
	 ARGUMENTS_INT, TRAIN(workers), 0, 256},
	{"deterministic", NULL,
	 "Give the same bits for the same seed, ranks and threads; the CPU always does",
	 ARGUMENTS_FLAG, TRAIN(deterministic)},
	{"explain-step", NULL, NULL, ARGUMENTS_READ, .read = refuse_removed, .hidden = true},
	{"print-order", "N", "Print the first N sample numbers of each rank, and exit",
	 ARGUMENTS_INT64, ARGUMENT(print_order), 1, INT32_MAX},
	{"epoch", "E", "With --print-order: use epoch E, from 0", ARGUMENTS_INT64, ARGUMENT(epoch),
	 0, INT32_MAX, .given = ARGUMENT(epoch_set)},
	{0},
};

void train_arguments_default(struct train_arguments *arguments)
{
	*arguments = (struct train_arguments){0};
	arguments->options = (struct train_options){
		.data = "fashion-mnist",
		.device = "auto",
		.comm = "auto",
		.checkpoint.resume = "auto",
		.lr = -1,
		.momentum = -1,
		.weight_decay = -1,
		.decay_vectors = true,
		.schedule = {.gamma = -1, .warmup_start = -1},
		.log_every = 100,
		.save_unit = SAVE_EPOCHS,
		.save_every = 1,
		.timeout_ms = 600000,
		.workers = -1,
		.evaluate = true,
	};
}

void train_arguments_free(struct train_arguments *arguments)
{
	for (int i = 0; i < arguments->given_count; i++)
		free(arguments->given[i]);
	arguments->given_count = 0;
}

int train_arguments_add_model(const char *text, void *out, struct error *err)
{
	struct train_arguments *arguments = out;

	if (arguments->options.model)
		return error_set(err, ERR_USAGE, "expected one MODEL; '%s' is superfluous", text);
	arguments->options.model = text;
	return 0;
}

int train_arguments_check(void *input, struct error *err)
{
	const struct train_arguments *arguments = input;
	char models[256];

	if (!arguments->options.model)
		return error_set(err, ERR_USAGE, "MODEL is missing; expected one of: %s",
				 model_names(models, sizeof models));
	if (arguments->options.new_head && !arguments->options.init)
		return error_set(err, ERR_USAGE, "--new-head requires --init FILE");
	if (arguments->epoch_set && !arguments->print_order)
		return error_set(
			err, ERR_USAGE,
			"--epoch requires --print-order; --epochs sets the number of epochs");
	return 0;
}

int train_arguments_add_given(void *filled, const char *name, const char *text, struct error *err)
{
	struct train_arguments *arguments = filled;
	char **out = &arguments->given[arguments->given_count];

	if (arguments->given_count == TRAIN_MAX_ARGUMENTS ||
	    asprintf(out, "--%s%s%s", name, text ? "=" : "", text ? text : "") < 0)
		return error_set(err, ERR_USAGE, "more than %d options", TRAIN_MAX_ARGUMENTS);
	arguments->given_count++;
	return 0;
}
