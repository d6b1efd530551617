/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/train_options.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arguments.h"
#include "base/number.h"
#include "train/data/augment.h"
#include "train/model/graph.h"

enum train_key {
	KEY_DATA = 0x400,
	KEY_STEM,
	KEY_AUGMENT,
	KEY_IMAGE_SIZE,
	KEY_STRICT_DATA,
	KEY_EPOCHS,
	KEY_STEPS,
	KEY_BATCH,
	KEY_LR,
	KEY_MOMENTUM,
	KEY_WEIGHT_DECAY,
	KEY_NESTEROV,
	KEY_WEIGHT_DECAY_ON,
	KEY_LABEL_SMOOTHING,
	KEY_ACCUMULATE,
	KEY_SCHEDULE,
	KEY_STEP_SIZE,
	KEY_GAMMA,
	KEY_MILESTONES,
	KEY_WARMUP,
	KEY_WARMUP_START,
	KEY_ON_NAN,
	KEY_LOSS,
	KEY_SEED,
	KEY_CKPT,
	KEY_SAVE_EVERY,
	KEY_KEEP,
	KEY_TAKE_OVER,
	KEY_RESUME,
	KEY_INIT,
	KEY_NEW_HEAD,
	KEY_METRICS,
	KEY_LOG_EVERY,
	KEY_LOG_ORDER,
	KEY_DEVICE,
	KEY_CPU_CONV,
	KEY_AMP,
	KEY_TF32,
	KEY_NO_GRAPH,
	KEY_COMM,
	KEY_SHARED_GPU,
	KEY_TIMEOUT,
	KEY_WORKERS,
	KEY_NO_EVAL,
	KEY_DETERMINISTIC,
	KEY_PRINT_ORDER,
	KEY_EPOCH,
};

static const struct argp_option table[] = {
	{NULL, 0, NULL, 0, "What is trained", 31},
	{"data", KEY_DATA, "SPEC", 0,
	 "fashion-mnist[:DIR] (default), mnist:DIR, cifar10:DIR, cifar100:DIR, imagefolder:DIR, or "
	 "synthetic[:SHAPE][,n=SAMPLES][,classes=K]",
	 31},
	{"augment", KEY_AUGMENT, "auto|none|LIST", 0,
	 "Of training samples: a list of flip, crop=PAD and resized-crop (default auto: "
	 "flip,crop=4 "
	 "for CIFAR, resized-crop,flip for imagefolder, else none)",
	 31},
	{"image-size", KEY_IMAGE_SIZE, "N", 0, "Of imagefolder: NxN pixels (default 224)", 31},
	{"strict-data", KEY_STRICT_DATA, NULL, 0,
	 "Of imagefolder: a file that cannot be decoded ends the run, instead of being passed "
	 "over; "
	 "a damaged one of the other formats always does",
	 31},
	{"stem", KEY_STEM, "default|cifar", 0,
	 "Of a resnet: cifar has a 3x3 convolution and no pooling, for images of 32x32", 31},
	{"epochs", KEY_EPOCHS, "N", 0,
	 "Epochs in all, those of a checkpoint included; also what the schedule spans (default: "
	 "the "
	 "model's)",
	 31},
	{"steps", KEY_STEPS, "N", 0, "Stop after step N", 31},
	{"batch", KEY_BATCH, "N", 0, "Samples of a batch on each rank (default: the model's)", 31},
	{"accumulate", KEY_ACCUMULATE, "K", 0,
	 "Batches of each rank that make one update, which is a step (default 1)", 31},
	{"lr", KEY_LR, "X", 0, "Learning rate (default: the model's)", 31},
	{"momentum", KEY_MOMENTUM, "X", 0, "Momentum of SGD (default: the model's)", 31},
	{"weight-decay", KEY_WEIGHT_DECAY, "X", 0, "Weight decay (default: the model's)", 31},
	{"weight-decay-on", KEY_WEIGHT_DECAY_ON, "all|weights", 0,
	 "weights: not on biases and batch norm (default all)", 31},
	{"nesterov", KEY_NESTEROV, NULL, 0, "Nesterov's momentum", 31},
	{"schedule", KEY_SCHEDULE, "constant|step|multistep|cosine", 0,
	 "constant, step, multistep or cosine, by epochs (default: the model's)", 31},
	{"step-size", KEY_STEP_SIZE, "N", 0, "Of step: epochs between its steps (default 30)", 31},
	{"gamma", KEY_GAMMA, "X", 0, "Of step and multistep: times X at each (default 0.1)", 31},
	{"milestones", KEY_MILESTONES, "N,N...", 0, "Of multistep: epochs", 31},
	{"warmup", KEY_WARMUP, "Ne|N", 0, "Linear warm-up over N epochs or N steps", 31},
	{"warmup-start", KEY_WARMUP_START, "X", 0, "It begins at X times --lr (default 0.01)", 31},
	{"loss", KEY_LOSS, "ce|mse", 0, "Default: what fits the data", 31},
	{"label-smoothing", KEY_LABEL_SMOOTHING, "X", 0,
	 "Of cross-entropy in training, 0 to 1 (default 0)", 31},
	{"on-nan", KEY_ON_NAN, "stop|continue", 0,
	 "Where a loss is not finite: name the step and end with 65 (default), or go on", 31},
	{"seed", KEY_SEED, "N", 0, "Of initial weights, orders and made data (default 0)", 31},
	{"no-eval", KEY_NO_EVAL, NULL, 0, "No evaluation after each epoch", 31},
	{NULL, 0, NULL, 0, "Checkpoints and metrics", 32},
	{"ckpt", KEY_CKPT, "DIR", 0, "Save checkpoints in DIR, at the end at least", 32},
	{"save-every", KEY_SAVE_EVERY, "N|Ne|TIME", 0,
	 "And every N steps, N epochs, or time as 10m, 90s or 2h (default 1e)", 32},
	{"keep", KEY_KEEP, "N|all", 0,
	 "Keep the newest N checkpoints and the one of the best Acc@1 (default all)", 32},
	{"take-over", KEY_TAKE_OVER, NULL, 0,
	 "Take --ckpt over from a job that left it behind, which you know to be gone", 32},
	{"resume", KEY_RESUME, "auto|never|FILE", 0,
	 "Go on from the newest checkpoint of --ckpt (auto, default) or from FILE", 32},
	{"init", KEY_INIT, "FILE", 0,
	 "Begin with the weights of a safetensors file in PyTorch's names, where no checkpoint is "
	 "resumed from",
	 32},
	{"new-head", KEY_NEW_HEAD, NULL, 0,
	 "With --init: begin the last layer anew, for other classes", 32},
	{"metrics", KEY_METRICS, "DIR", 0,
	 "Write DIR/metrics.jsonl, and DIR/train and DIR/val for TensorBoard", 32},
	{"log-every", KEY_LOG_EVERY, "N", 0, "Report every N steps (default 100)", 32},
	{"log-order", KEY_LOG_ORDER, "DIR", 0,
	 "Each rank appends to DIR/rank-N.txt which samples it takes", 32},
	{NULL, 0, NULL, 0, "How it is computed", 33},
	{"device", KEY_DEVICE, "auto|cuda|cpu", 0,
	 "Where (default auto: on a GPU where there is one)", 33},
	{"amp", KEY_AMP, "off|bf16|fp16", 0,
	 "On a GPU: layers in numbers of 16 bits, weights and sums in float32 (default off)", 33},
	{"tf32", KEY_TF32, NULL, 0, "On a GPU: float32 products may be TF32's", 33},
	{"no-graph", KEY_NO_GRAPH, NULL, 0,
	 "On a GPU: launch each kernel by itself, without a CUDA graph", 33},
	{"cpu-conv", KEY_CPU_CONV, "auto|direct", 0,
	 "Convolutions on the CPU: the fastest (auto, default), or the most exact", 33},
	{"comm", KEY_COMM, "auto|nccl|mpi|self", 0,
	 "By what ranks reduce gradients (default auto: nccl between GPUs, else mpi)", 33},
	{"allow-shared-gpu", KEY_SHARED_GPU, NULL, 0,
	 "Try several ranks on one GPU with NCCL: slow, for tests", 33},
	{"comm-timeout", KEY_TIMEOUT, "TIME", 0, "Of each wait for other ranks (default 10m)", 33},
	{"workers", KEY_WORKERS, "N", 0,
	 "Threads of each rank that make the next batches; 0: none, the rank itself makes each "
	 "when it "
	 "wants it (default: what fits the data)",
	 33},
	{"deterministic", KEY_DETERMINISTIC, NULL, 0,
	 "The same bits for the same seed, ranks and threads (the CPU always gives them; a GPU "
	 "then takes algorithms for it)",
	 33},
	{"print-order", KEY_PRINT_ORDER, "N", 0,
	 "Print the first N sample numbers of each rank, and end", 33},
	{"epoch", KEY_EPOCH, "E", 0, "With --print-order: of epoch E, from 0", 33},
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

static int save_every_time(struct train_options *options, const char *text, struct error *err)
{
	int rc = number_duration_ms("--save-every", text, &options->save_every, err);

	options->save_unit = SAVE_TIME;
	if (!rc && options->save_every < 1)
		return error_set(err, ERR_USAGE, "--save-every is \"%s\": expected a time above 0",
				 text);
	return rc;
}

static int save_every(struct train_options *options, const char *text, struct error *err)
{
	char number[32];
	size_t size = strlen(text);
	bool epochs = size && text[size - 1] == 'e';

	if (size >= sizeof number)
		return error_set(err, ERR_USAGE, "--save-every is too long");
	options->save_set = true;
	if (size && strchr("smhd", text[size - 1]))
		return save_every_time(options, text, err);
	memcpy(number, text, size - epochs);
	number[size - epochs] = 0;
	options->save_unit = epochs ? SAVE_EPOCHS : SAVE_STEPS;
	return number_int64("--save-every (N steps, Ne epochs, or a time as 10m)", number, 1,
			    INT64_C(1) << 40, &options->save_every, err);
}

static int parse_choice(int key, const char *text, const struct argp_state *state,
			struct train_options *options)
{
	static const char *const losses[] = {"ce", "mse", NULL};
	static const char *const decayed[] = {"weights", "all", NULL};
	static const char *const stems[] = {"default", "cifar", NULL};
	static const char *const nans[] = {"stop", "continue", NULL};
	static const char *const amps[] = {"off", "bf16", "fp16", NULL};
	static const enum precision precisions[] = {PRECISION_F32, PRECISION_BF16, PRECISION_F16};

	switch (key) {
	case KEY_LOSS:
		options->loss_set = true;
		options->loss = arguments_choice(state, "--loss", text, losses, "ce or mse")
					? LOSS_MSE
					: LOSS_CROSS_ENTROPY;
		return 0;
	case KEY_WEIGHT_DECAY_ON:
		options->decay_vectors = arguments_choice(state, "--weight-decay-on", text, decayed,
							  "all or weights");
		return 0;
	case KEY_STEM:
		options->stem = arguments_choice(state, "--stem", text, stems, "default or cifar")
					? STEM_CIFAR
					: STEM_DEFAULT;
		return 0;
	case KEY_AMP:
		options->precision = precisions[arguments_choice(state, "--amp", text, amps,
								 "off, bf16 or fp16")];
		return 0;
	case KEY_ON_NAN:
		options->nan_continues =
			arguments_choice(state, "--on-nan", text, nans, "stop or continue");
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int parse_rate(int key, const char *text, struct train_options *options, struct error *err)
{
	struct schedule *schedule = &options->schedule;

	switch (key) {
	case KEY_SCHEDULE:
		options->schedule_set = true;
		return schedule_parse(text, &schedule->kind, err);
	case KEY_STEP_SIZE:
		return number_int64("--step-size", text, 1, 1000000, &schedule->step_size, err);
	case KEY_GAMMA:
		return number_double("--gamma", text, 0, 1e6, &schedule->gamma, err);
	case KEY_MILESTONES:
		return schedule_parse_milestones(text, schedule, err);
	case KEY_WARMUP:
		return schedule_parse_warmup(text, schedule, err);
	case KEY_WARMUP_START:
		return number_double("--warmup-start", text, 0, 1, &schedule->warmup_start, err);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static int parse_run_option(int key, char *text, struct train_options *options, struct error *err)
{
	int64_t seed;

	switch (key) {
	case KEY_DATA:
		options->data = text;
		return 0;
	case KEY_AUGMENT: {
		struct augment check;

		options->augment = text;
		return strcmp(text, "auto") ? augment_parse(text, &check, err) : 0;
	}
	case KEY_IMAGE_SIZE:
		return number_int("--image-size", text, 8, 4096, &options->image_size, err);
	case KEY_STRICT_DATA:
		options->strict_data = true;
		return 0;
	case KEY_EPOCHS:
		return number_int64("--epochs", text, 1, 1000000, &options->epochs, err);
	case KEY_STEPS:
		return number_int64("--steps", text, 1, INT64_C(1) << 36, &options->steps, err);
	case KEY_BATCH:
		return number_int("--batch", text, 1, 1 << 20, &options->batch, err);
	case KEY_LR:
		return number_double("--lr", text, 0, 1e6, &options->lr, err);
	case KEY_MOMENTUM:
		return number_double("--momentum", text, 0, 1, &options->momentum, err);
	case KEY_WEIGHT_DECAY:
		return number_double("--weight-decay", text, 0, 1e6, &options->weight_decay, err);
	case KEY_NESTEROV:
		options->nesterov = true;
		return 0;
	case KEY_ACCUMULATE:
		return number_int("--accumulate", text, 1, 1 << 20, &options->accumulate, err);
	case KEY_LABEL_SMOOTHING:
		return number_double("--label-smoothing", text, 0, 1, &options->smoothing, err);
	case KEY_SEED: {
		int rc = number_int64("--seed", text, 0, INT64_MAX, &seed, err);

		options->seed = rc ? 0 : (uint64_t)seed;
		return rc;
	}
	default:
		return parse_rate(key, text, options, err);
	}
}

/* An empty name would put files into the root folder; a shell's unset variable gives one. */
static int path(const char *name, const char *what, const char *text, const char **out,
		struct error *err)
{
	if (!*text)
		return error_set(err, ERR_USAGE, "%s is empty: expected %s", name, what);
	*out = text;
	return 0;
}

static int parse_training_option(int key, char *text, struct train_arguments *arguments,
				 struct error *err)
{
	struct train_options *options = &arguments->options;
	int64_t timeout_ms;
	int rc;

	switch (key) {
	case KEY_NO_EVAL:
		options->evaluate = false;
		return 0;
	case KEY_CKPT:
		return path("--ckpt", "a folder", text, &options->checkpoint.directory, err);
	case KEY_SAVE_EVERY:
		return save_every(options, text, err);
	case KEY_KEEP:
		options->keep_set = true;
		options->checkpoint.keep = 0;
		return strcmp(text, "all") ? number_int64("--keep (N or all)", text, 1, 1000000,
							  &options->checkpoint.keep, err)
					   : 0;
	case KEY_TAKE_OVER:
		options->checkpoint.take_over = true;
		return 0;
	case KEY_LOG_ORDER:
		return path("--log-order", "a folder", text, &options->log_order, err);
	case KEY_RESUME:
		return path("--resume", "auto, never or a file", text, &options->checkpoint.resume,
			    err);
	case KEY_INIT:
		return path("--init", "a file", text, &options->init, err);
	case KEY_NEW_HEAD:
		options->new_head = true;
		return 0;
	case KEY_METRICS:
		return path("--metrics", "a folder", text, &options->metrics, err);
	case KEY_LOG_EVERY:
		return number_int64("--log-every", text, 1, INT64_C(1) << 36, &options->log_every,
				    err);
	case KEY_DEVICE:
		options->device = text;
		return 0;
	case KEY_CPU_CONV:
		options->direct = !strcmp(text, "direct");
		return strcmp(text, "auto") && !options->direct
			       ? error_set(err, ERR_USAGE,
					   "--cpu-conv is \"%s\": expected auto or direct", text)
			       : 0;
	case KEY_COMM:
		options->comm = text;
		return 0;
	case KEY_SHARED_GPU:
		options->allow_shared_gpu = true;
		return 0;
	case KEY_TIMEOUT:
		rc = number_duration_ms("--comm-timeout", text, &timeout_ms, err);
		if (!rc && (timeout_ms < 100 || timeout_ms > INT_MAX / 2))
			return error_set(err, ERR_USAGE,
					 "--comm-timeout is \"%s\": expected 100 ms to "
					 "12 days",
					 text);
		options->timeout_ms = rc ? 0 : (int)timeout_ms;
		return rc;
	case KEY_WORKERS:
		return number_int("--workers", text, 0, 256, &options->workers, err);
	case KEY_DETERMINISTIC:
		options->deterministic = true;
		return 0;
	case KEY_TF32:
		options->tf32 = true;
		return 0;
	case KEY_NO_GRAPH:
		options->no_graph = true;
		return 0;
	case KEY_PRINT_ORDER:
		return number_int64("--print-order", text, 1, INT32_MAX, &arguments->print_order,
				    err);
	case KEY_EPOCH:
		arguments->epoch_set = true;
		return number_int64("--epoch", text, 0, INT32_MAX, &arguments->epoch, err);
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static void __attribute__((format(printf, 2, 3), noreturn))
refuse(const struct argp_state *state, const char *format, ...)
{
	struct error err = {.code = ERR_USAGE};
	va_list ap;

	va_start(ap, format);
	vsnprintf(err.text, sizeof err.text, format, ap);
	va_end(ap);
	arguments_refuse(state, &err);
}

static int set_value(struct train_arguments *arguments, int key, const char *text)
{
	for (const struct argp_option *option = table; option->name || option->doc; option++) {
		if (option->key != key)
			continue;
		if (arguments->given_count == TRAIN_MAX_ARGUMENTS)
			return -1;
		char **out = &arguments->given[arguments->given_count];
		int n = text ? asprintf(out, "--%s=%s", option->name, text)
			     : asprintf(out, "--%s", option->name);

		arguments->given_count += n >= 0;
		return n < 0 ? -1 : 0;
	}
	return 0;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
	struct train_arguments *arguments = state->input;
	struct error err = {0};
	char models[256];
	int rc;

	if (key == ARGP_KEY_ARG) {
		if (arguments->options.model)
			refuse(state, "one MODEL only; '%s' is too much", text);
		arguments->options.model = text;
		return 0;
	}
	if (key == ARGP_KEY_END) {
		if (!arguments->options.model)
			refuse(state, "which MODEL is to be trained? The models are: %s",
			       model_names(models, sizeof models));
		if (arguments->options.new_head && !arguments->options.init)
			refuse(state, "--new-head is for --init: there is no file to begin from");
		if (arguments->epoch_set && !arguments->print_order)
			refuse(state, "--epoch is for --print-order; --epochs says how many");
		return 0;
	}
	rc = parse_choice(key, text, state, &arguments->options);
	if (rc == ARGP_ERR_UNKNOWN)
		rc = parse_run_option(key, text, &arguments->options, &err);
	if (rc == ARGP_ERR_UNKNOWN)
		rc = parse_training_option(key, text, arguments, &err);
	if (rc == ARGP_ERR_UNKNOWN)
		return ARGP_ERR_UNKNOWN;
	if (rc)
		refuse(state, "%s", err.text);
	if (set_value(arguments, key, text))
		refuse(state, "more than %d options", TRAIN_MAX_ARGUMENTS);
	return 0;
}

const struct argp train_argp = {.options = table, .parser = parse};
