/* SPDX-License-Identifier: BSD-3-Clause */
/* Which way each pass of a convolution takes: the legacy API's algorithm, or an engine of the graph
 * API that was found to be faster and to give the same. What was found is kept on disk. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/cuda/choose.h"
#include "train/device/cuda/convolution_internal.h"
#include "train/device/cuda/element.h"
#include "train/device/cuda/plan_cache.h"

#define LEAST_WORKSPACE ((size_t)32 << 20)
#define RUNS 3
/* Numbers of a result that are compared: from its beginning, and from its end. */
#define COMPARED ((size_t)1 << 14)
/* Of the largest of them. A way that computes something else is off by as much as that; one that
 * rounds or sums in another order is not. */
#define OFF_F32 2e-3
#define OFF_16 2e-2

/* ---- memory ---- */

static struct kernel_on on_of(const struct convolution *conv, const struct tuning *tuning)
{
	return (struct kernel_on){tuning->stream, conv->rules.number, conv->cuda->multiprocessors};
}

static void tuning_end(const struct convolution *conv, struct tuning *tuning)
{
	if (tuning->stream)
		cudaStreamSynchronize(tuning->stream);
	/* Not one that is gone. */
	cudnnSetStream(conv->cuda->cudnn, tuning->before);
	cudaFree(tuning->x);
	cudaFree(tuning->y);
	cudaFree(tuning->w);
	cudaFree(tuning->norm);
	cudaFree(tuning->workspace);
	if (tuning->begin)
		cudaEventDestroy(tuning->begin);
	if (tuning->end)
		cudaEventDestroy(tuning->end);
	if (tuning->stream)
		cudaStreamDestroy(tuning->stream);
	*tuning = (struct tuning){0};
}

static size_t norm_scratch(const struct convolution *conv)
{
	size_t parts = (size_t)kernel_parts(conv->cuda->multiprocessors, conv->rows,
					    conv->shape.outputs);

	return 2 * parts * (size_t)conv->shape.outputs;
}

/* A batch norm of y in tuning->norm, [c] each: w, b, mean, variance; saved [4][c]; sums [2][c];
 * scratch. */
#define NORM_SAVED 4
#define NORM_SUMS 8
#define NORM_SCRATCH 10
static struct kernel_norm tuning_norm(const struct convolution *conv, const struct tuning *tuning,
				      bool summed)
{
	size_t c = (size_t)conv->shape.outputs;

	return (struct kernel_norm){
		.rows = conv->rows,
		.c = (int)c,
		.eps = 1e-5f,
		.momentum = 0.1f,
		.training = true,
		.x = tuning->y,
		.w = tuning->norm,
		.b = tuning->norm + c,
		.mean = tuning->norm + 2 * c,
		.variance = tuning->norm + 3 * c,
		.saved = tuning->norm + NORM_SAVED * c,
		.sums = summed ? tuning->norm + NORM_SUMS * c : NULL,
		.scratch = tuning->norm + NORM_SCRATCH * c,
	};
}

/* Not what memory held before: numbers that are none take other times, and zeros hide what is wrong. */
static bool tuning_fill(const struct convolution *conv, const struct tuning *tuning)
{
	const struct kernel_on on = on_of(conv, tuning);
	size_t size = number_size(conv->rules.number), c = (size_t)conv->shape.outputs;

	kernel_fill(&on, tuning->x, conv->x_bytes / size, 1);
	kernel_fill(&on, tuning->w, conv->w_bytes / size, 2);
	kernel_fill(&on, tuning->y, conv->y_bytes / size, 3);
	return !cudaGetLastError() &&
	       (!tuning->norm ||
		!cudaMemsetAsync(tuning->norm, 0, (NORM_SCRATCH * c + norm_scratch(conv)) * sizeof(float),
				 tuning->stream)) &&
	       !cudaStreamSynchronize(tuning->stream);
}

/* Where memory is short by less room for algorithms, or (false) not at all. */
static bool tuning_begin(const struct convolution *conv, struct tuning *tuning)
{
	size_t norm = (NORM_SCRATCH * (size_t)conv->shape.outputs + norm_scratch(conv)) * sizeof(float);

	*tuning = (struct tuning){.workspace_bytes = conv->cuda->workspace_most};
	if (cudnnGetStream(conv->cuda->cudnn, &tuning->before) ||
	    cudaStreamCreateWithFlags(&tuning->stream, cudaStreamNonBlocking) ||
	    cudaEventCreateWithFlags(&tuning->begin, cudaEventDefault) ||
	    cudaEventCreateWithFlags(&tuning->end, cudaEventDefault) ||
	    cudnnSetStream(conv->cuda->cudnn, tuning->stream) ||
	    cudaMalloc(&tuning->x, conv->x_bytes) || cudaMalloc(&tuning->y, conv->y_bytes) ||
	    cudaMalloc(&tuning->w, conv->w_bytes) ||
	    (conv->rules.sums && cudaMalloc((void **)&tuning->norm, norm)))
		goto none;
	while (cudaMalloc(&tuning->workspace, tuning->workspace_bytes)) {
		cudaGetLastError(); /* what is launched later would be taken to have failed */
		tuning->workspace_bytes /= 2;
		if (tuning->workspace_bytes < LEAST_WORKSPACE)
			goto none;
	}
	if (tuning_fill(conv, tuning))
		return true;
none:
	tuning_end(conv, tuning);
	cudaGetLastError();
	return false;
}

/* ---- one pass ---- */

/* Results, on the host: numbers of the tensor that the pass writes, and a batch norm's statistics. */
struct sample {
	float *numbers;
	size_t count;
};

struct trial {
	struct convolution *conv;
	struct tuning *tuning;
	enum engine_pass pass;
	struct engines *engines;
	int way; /* the one that runs */
	struct sample first, other;
};

static void *result(const struct trial *trial, size_t *bytes)
{
	const struct convolution *conv = trial->conv;

	*bytes = trial->pass == ENGINE_INPUT     ? conv->x_bytes
		 : trial->pass == ENGINE_WEIGHTS ? conv->w_bytes
						 : conv->y_bytes;
	return trial->pass == ENGINE_INPUT     ? trial->tuning->x
	       : trial->pass == ENGINE_WEIGHTS ? trial->tuning->w
					       : trial->tuning->y;
}

/* Way 0 is what runs without this pass's engines; way i is engine i - 1. */
static int run_way(const struct trial *trial, int way)
{
	struct convolution *conv = trial->conv;
	const struct tuning *t = trial->tuning;
	struct kernel_norm norm;
	struct kernel_on on = on_of(conv, t);
	int rc;

	conv->engines[trial->pass] = way ? trial->engines : NULL;
	conv->engine[trial->pass] = way - 1;
	if (trial->pass == ENGINE_INPUT)
		rc = convolution_back_input(conv, t->stream, t->w, t->y, t->x, conv->rules.add_dx,
					    t->workspace, NULL);
	else if (trial->pass == ENGINE_WEIGHTS)
		rc = convolution_back_weights(conv, t->stream, t->x, t->y, t->w, false,
					      t->workspace, NULL);
	else
		rc = convolution_forward(conv, t->stream, t->x, t->w, t->y,
					 way && trial->pass == ENGINE_SUMS
						 ? t->norm + NORM_SUMS * (size_t)conv->shape.outputs
						 : NULL,
					 t->workspace, NULL);
	conv->engines[trial->pass] = NULL;
	if (rc || trial->pass != ENGINE_SUMS)
		return rc;
	/* What is compared is all that is needed until the batch norm knows its statistics. */
	norm = tuning_norm(conv, t, way > 0);
	kernel_norm_moments(&on, &norm);
	return cudaGetLastError() ? -1 : 0;
}

static bool trial_build(void *context, int way)
{
	const struct trial *trial = context;

	return !way || engines_build(trial->engines, way - 1, trial->tuning->workspace_bytes);
}

static void trial_drop(void *context, int way)
{
	const struct trial *trial = context;

	engines_drop(trial->engines, way - 1);
}

static double trial_time(void *context, int way)
{
	const struct trial *trial = context;
	const struct tuning *t = trial->tuning;
	float ms = -1;

	/* Libraries load their code at the first run. */
	if (run_way(trial, way) || cudaEventRecord(t->begin, t->stream))
		goto failed;
	for (int i = 0; i < RUNS; i++)
		if (run_way(trial, way))
			goto failed;
	if (!cudaEventRecord(t->end, t->stream) && !cudaEventSynchronize(t->end) &&
	    !cudaEventElapsedTime(&ms, t->begin, t->end))
		return (double)ms / RUNS;
failed:
	cudaGetLastError();
	return -1;
}

/* ---- is it right? ---- */

static void as_f32(const void *raw, enum number number, size_t count, float *to)
{
	for (size_t i = 0; i < count; i++)
		to[i] = number == NUMBER_F32   ? ((const float *)raw)[i]
			: number == NUMBER_F16 ? f32_of_f16(((const struct f16 *)raw)[i])
					       : f32_of_bf16(((const struct bf16 *)raw)[i]);
}

static bool read_part(const struct trial *trial, const char *from, enum number number,
		      size_t count, float *to)
{
	void *raw = malloc(count * number_size(number));
	bool good = raw && !cudaMemcpyAsync(raw, from, count * number_size(number),
					    cudaMemcpyDeviceToHost, trial->tuning->stream) &&
		    !cudaStreamSynchronize(trial->tuning->stream);

	if (good)
		as_f32(raw, number, count, to);
	free(raw);
	return good;
}

/* Run way on a result that holds the same each time, and read some of what comes of it. */
static bool take_sample(const struct trial *trial, int way, struct sample *out)
{
	const struct convolution *conv = trial->conv;
	const struct kernel_on on = on_of(conv, trial->tuning);
	enum number number = conv->rules.number;
	size_t bytes, size = number_size(number), c = (size_t)conv->shape.outputs, count, some;
	char *at = result(trial, &bytes);
	bool add = trial->pass == ENGINE_INPUT && conv->rules.add_dx;

	count = bytes / size;
	some = count < COMPARED ? count : COMPARED;
	out->count = 2 * some + (trial->pass == ENGINE_SUMS ? 2 * c : 0);
	out->numbers = malloc(out->count * sizeof *out->numbers);
	if (!out->numbers)
		return false;
	if (add)
		kernel_fill(&on, at, count, 4);
	else if (cudaMemsetAsync(at, 0xff, bytes, trial->tuning->stream)) /* NaNs */
		return false;
	return !run_way(trial, way) && read_part(trial, at, number, some, out->numbers) &&
	       read_part(trial, at + (count - some) * size, number, some, out->numbers + some) &&
	       (trial->pass != ENGINE_SUMS ||
		read_part(trial, (char *)(trial->tuning->norm + NORM_SAVED * c), NUMBER_F32, 2 * c,
			  out->numbers + 2 * some));
}

static bool near(const float *a, const float *b, size_t count, double bound)
{
	double most = 0, off = 0;

	for (size_t i = 0; i < count; i++) {
		double difference = fabs((double)a[i] - (double)b[i]);

		most = fmax(most, fabs((double)a[i]));
		if (!isfinite(difference))
			return false;
		off = fmax(off, difference);
	}
	return off <= bound * most;
}

/* Means and 1/deviations [2][c] of c channels: squares are summed, so what they may be off by is
 * relative to the mean of the squares. */
static bool near_moments(const float *a, const float *b, size_t c, double bound)
{
	for (size_t i = 0; i < c; i++) {
		double mean = (double)a[i], variance = pow((double)a[c + i], -2);
		double square = mean * mean + variance;

		if (!(fabs((double)b[i] - mean) <= bound * sqrt(square)) ||
		    !(fabs(pow((double)b[c + i], -2) - variance) <= bound * square))
			return false;
	}
	return true;
}

static bool same(const struct trial *trial)
{
	const float *a = trial->first.numbers, *b = trial->other.numbers;
	size_t c = (size_t)trial->conv->shape.outputs, count = trial->first.count;
	double bound = trial->conv->rules.number == NUMBER_F32 ? OFF_F32 : OFF_16;

	if (trial->pass == ENGINE_SUMS) {
		count -= 2 * c;
		if (!near_moments(a + count, b + count, c, bound))
			return false;
	}
	return near(a, b, count, bound);
}

static bool trial_right(void *context, int way)
{
	struct trial *trial = context;
	bool good = trial->first.numbers || take_sample(trial, 0, &trial->first);

	good = good && take_sample(trial, way, &trial->other) && same(trial);
	free(trial->other.numbers);
	trial->other.numbers = NULL;
	if (!good)
		cudaGetLastError();
	return good;
}

/* An engine for pass, where one is better than what runs without. */
static void choose_engine(struct convolution *conv, enum engine_pass pass, struct tuning *tuning)
{
	struct trial trial = {.conv = conv,
			      .tuning = tuning,
			      .pass = pass,
			      .engines = engines_new(conv->cuda, pass, &conv->shape, &conv->rules,
						     pass == ENGINE_INPUT && conv->rules.add_dx)};
	const struct choose_ways ways = {&trial,     1 + engines_count(trial.engines), trial_build,
					 trial_time, trial_right,		       trial_drop};
	int way;

	if (!trial.engines)
		return;
	way = choose_way(&ways, NULL);
	free(trial.first.numbers);
	if (way < 1) {
		engines_free(trial.engines);
		return;
	}
	conv->engines[pass] = trial.engines;
	conv->engine[pass] = way - 1;
}

/* ---- what is kept ---- */

static void make_key(const struct convolution *conv, char *key)
{
	static const char *const types[] = {
		[NUMBER_F32] = "f32", [NUMBER_F16] = "f16", [NUMBER_BF16] = "bf16"};
	const struct conv_shape *s = &conv->shape;
	const struct layer_rules *rules = &conv->rules;

	snprintf(key, CHOICE_KEY, "conv nhwc %s%s%s %dx%dx%dx%d o%d k%d s%d p%d%s%s%s%s sm%d%d",
		 types[rules->number], rules->tf32 ? " tf32" : "", rules->direct ? " direct" : "",
		 s->n, s->c, s->h, s->w, s->outputs, s->kernel, s->stride, s->pad,
		 rules->train ? " train" : "", rules->dx ? " dx" : "", rules->add_dx ? " add" : "",
		 rules->sums ? " sums" : "", conv->cuda->major, conv->cuda->minor);
}

static bool wanted(const struct convolution *conv, enum engine_pass pass)
{
	switch (pass) {
	case ENGINE_SUMS:
		return conv->rules.sums;
	case ENGINE_INPUT:
		return conv->used[PASS_INPUT];
	case ENGINE_WEIGHTS:
		return conv->used[PASS_WEIGHTS];
	default:
		return true;
	}
}

static bool take_engine(struct convolution *conv, enum engine_pass pass, int index, int name)
{
	struct engines *engines;

	if (index < 0)
		return true;
	engines = engines_new(conv->cuda, pass, &conv->shape, &conv->rules,
			      pass == ENGINE_INPUT && conv->rules.add_dx);
	/* Another driver, or another berth, may list others: nobody has found those to be right. */
	if (!engines || engines_name(engines, index) != name ||
	    !engines_build(engines, index, conv->cuda->workspace_most)) {
		engines_free(engines);
		return false;
	}
	conv->engines[pass] = engines;
	conv->engine[pass] = index;
	return true;
}

static void drop_engines(struct convolution *conv)
{
	for (int i = 0; i < WAYS; i++) {
		engines_free(conv->engines[i]);
		conv->engines[i] = NULL;
	}
}

/* The choice of an earlier run: [PASSES][2] algorithm and mathematics, [WAYS] engine or -1, [WAYS]
 * those engines' names. */
static bool take_known(struct convolution *conv, const char *key)
{
	int numbers[CHOICE_NUMBERS];
	bool good = choices_find(conv->cuda->choices, key, numbers);

	for (int i = 0; good && i < PASSES; i++)
		if (conv->used[i])
			good = algorithm_take(conv, (enum pass)i, numbers[2 * i],
					      numbers[2 * i + 1]);
	for (int i = 0; good && i < WAYS; i++)
		if (wanted(conv, (enum engine_pass)i))
			good = take_engine(conv, (enum engine_pass)i, numbers[2 * PASSES + i],
					   numbers[2 * PASSES + WAYS + i]);
	if (!good)
		drop_engines(conv);
	return good;
}

int convolution_choose(struct convolution *conv, struct error *err)
{
	const struct layer_rules *rules = &conv->rules;
	bool timed = rules->tune && !rules->deterministic;
	int numbers[CHOICE_NUMBERS] = {0};
	struct tuning tuning, *try = NULL;
	char key[CHOICE_KEY];
	int rc = 0;

	make_key(conv, key);
	if (timed && take_known(conv, key))
		return 0;
	if (timed && tuning_begin(conv, &tuning))
		try = &tuning;
	for (int i = 0; !rc && i < PASSES; i++) {
		enum pass pass = (enum pass)i;

		if (!conv->used[i])
			continue;
		if (!(try && algorithm_best(conv, pass, try, &numbers[2 * i + 1])) &&
		    !algorithm_best(conv, pass, NULL, &numbers[2 * i + 1]))
			rc = error_set(err, ERR_UNAVAILABLE,
				       "cuDNN %zu has no algorithm for convolution %s on %s (%s)%s",
				       cudnnGetVersion(), conv->name, conv->cuda->name, key,
				       rules->deterministic ? " that is deterministic" : "");
		numbers[2 * i] = conv->algorithm[i];
	}
	/* The search has written where it likes. */
	for (int i = 0; !rc && try && i < WAYS; i++) {
		if (wanted(conv, (enum engine_pass)i) && tuning_fill(conv, try))
			choose_engine(conv, (enum engine_pass)i, try);
		numbers[2 * PASSES + i] = conv->engines[i] ? conv->engine[i] : -1;
		numbers[2 * PASSES + WAYS + i] =
			conv->engines[i] ? engines_name(conv->engines[i], conv->engine[i]) : -1;
	}
	if (try) {
		tuning_end(conv, try);
		if (!rc)
			choices_add(conv->cuda->choices, key, numbers);
	}
	return rc;
}
