/* SPDX-License-Identifier: BSD-3-Clause */
/* Each way of a pass tried out: in memory of its own, timed, and compared with what the legacy API
 * makes of the same. */
#include <math.h>
#include <stdlib.h>

#include "train/device/cuda/convolution_internal.h"
#include "train/device/cuda/kernels/element.h"
#include "train/device/cuda/lowered_graph.h"
#include "train/device/cuda/tuning/candidates.h"

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

void tuning_end(const struct convolution *conv, struct tuning *tuning)
{
	if (tuning->stream)
		cudaStreamSynchronize(tuning->stream);
	/* Not one that is gone. */
	cudnnSetStream(conv->cuda->cudnn, tuning->before);
	cudaFree(tuning->x);
	cudaFree(tuning->y);
	cudaFree(tuning->w);
	cudaFree(tuning->norm);
	cudaFree(tuning->source);
	cudaFree(tuning->source_norm);
	cudaFree(tuning->workspace);
	if (tuning->begin)
		cudaEventDestroy(tuning->begin);
	if (tuning->end)
		cudaEventDestroy(tuning->end);
	if (tuning->stream)
		cudaStreamDestroy(tuning->stream);
	*tuning = (struct tuning){0};
}

static size_t norm_scratch(const struct convolution *conv, int64_t rows, int c)
{
	return 2 * (size_t)kernel_parts(conv->cuda->multiprocessors, rows, c) * (size_t)c;
}

/* A batch norm in float rows of c: w, b, mean, variance; saved [SAVED_ROWS][c]; dw, db; scratch. */
#define NORM_SAVED 4
#define NORM_BACK (NORM_SAVED + SAVED_ROWS)
#define NORM_SCRATCH (NORM_BACK + 2)
static struct kernel_norm norm_in(float *rows, int64_t count, int c)
{
	size_t row = (size_t)c;

	return (struct kernel_norm){
		.rows = count,
		.c = c,
		.eps = 1e-5f,
		.momentum = 0.1f,
		.training = true,
		.w = rows,
		.b = rows + row,
		.mean = rows + 2 * row,
		.variance = rows + 3 * row,
		.saved = rows + NORM_SAVED * row,
		.scratch = rows + NORM_SCRATCH * row,
	};
}

static size_t norm_floats(const struct convolution *conv, int64_t rows, int c)
{
	return NORM_SCRATCH * (size_t)c + norm_scratch(conv, rows, c);
}

/* Of y. */
static struct kernel_norm norm_after(const struct convolution *conv, const struct tuning *tuning,
				     bool summed)
{
	struct kernel_norm norm = norm_in(tuning->norm, conv->rows, conv->shape.outputs);

	norm.x = tuning->y;
	norm.sums = summed ? norm.saved + SAVED_SUMS * (size_t)norm.c : NULL;
	return norm;
}

static int64_t source_rows(const struct convolution *conv)
{
	return (int64_t)conv->shape.n * conv->shape.h * conv->shape.w;
}

/* Of source, with its ReLU, whose result is x and the gradient of that there too. */
static struct kernel_norm norm_before(const struct convolution *conv, const struct tuning *tuning,
				      bool summed)
{
	struct kernel_norm norm = norm_in(tuning->source_norm, source_rows(conv), conv->shape.c);
	size_t c = (size_t)norm.c;

	norm.relu = true;
	norm.x = tuning->source;
	norm.y = norm.dx = tuning->x;
	norm.dy = tuning->x;
	norm.dw = tuning->source_norm + NORM_BACK * c;
	norm.db = norm.dw + c;
	norm.taken = norm.saved + SAVED_TAKEN * c;
	norm.back_sums = summed ? norm.saved + SAVED_SUMS * c : NULL;
	return norm;
}

static struct conv_source source_of(const struct convolution *conv, const struct tuning *tuning)
{
	return (struct conv_source){tuning->source, norm_before(conv, tuning, false).saved};
}

/* Its statistics, and x from it. */
static bool fill_source(const struct convolution *conv, const struct tuning *tuning)
{
	const struct kernel_on on = on_of(conv, tuning);
	const struct kernel_on floats = {tuning->stream, NUMBER_F32, conv->cuda->multiprocessors};
	const struct kernel_norm norm = norm_before(conv, tuning, false);

	kernel_fill(&on, tuning->source, conv->x_bytes / number_size(conv->rules.number), 5);
	kernel_fill(&floats, tuning->source_norm, norm_floats(conv, norm.rows, norm.c), 6);
	kernel_norm(&on, &norm);
	return !cudaGetLastError();
}

bool tuning_fill(const struct convolution *conv, const struct tuning *tuning)
{
	const struct kernel_on on = on_of(conv, tuning);
	size_t size = number_size(conv->rules.number);

	kernel_fill(&on, tuning->x, conv->x_bytes / size, 1);
	kernel_fill(&on, tuning->w, conv->w_bytes / size, 2);
	kernel_fill(&on, tuning->y, conv->y_bytes / size, 3);
	return !cudaGetLastError() &&
	       (!tuning->norm ||
		!cudaMemsetAsync(tuning->norm, 0,
				 norm_floats(conv, conv->rows, conv->shape.outputs) * sizeof(float),
				 tuning->stream)) &&
	       (!tuning->source || fill_source(conv, tuning)) &&
	       !cudaStreamSynchronize(tuning->stream);
}

/* Where there is no room for it the rest is tried without. */
static void source_begin(const struct convolution *conv, struct tuning *tuning)
{
	size_t floats = norm_floats(conv, source_rows(conv), conv->shape.c);

	if (!conv->rules.through)
		return;
	if (!cudaMalloc(&tuning->source, conv->x_bytes) &&
	    !cudaMalloc((void **)&tuning->source_norm, floats * sizeof(float)))
		return;
	cudaGetLastError();
	cudaFree(tuning->source);
	tuning->source = NULL;
	tuning->source_norm = NULL;
}

bool tuning_begin(const struct convolution *conv, struct tuning *tuning)
{
	const struct layer_rules *rules = &conv->rules;
	size_t norm = norm_floats(conv, conv->rows, conv->shape.outputs) * sizeof(float);

	*tuning = (struct tuning){.workspace_bytes = conv->cuda->workspace_most};
	if (cudnnGetStream(conv->cuda->cudnn, &tuning->before) ||
	    cudaStreamCreateWithFlags(&tuning->stream, cudaStreamNonBlocking) ||
	    cudaEventCreateWithFlags(&tuning->begin, cudaEventDefault) ||
	    cudaEventCreateWithFlags(&tuning->end, cudaEventDefault) ||
	    cudnnSetStream(conv->cuda->cudnn, tuning->stream) ||
	    cudaMalloc(&tuning->x, conv->x_bytes) || cudaMalloc(&tuning->y, conv->y_bytes) ||
	    cudaMalloc(&tuning->w, conv->w_bytes) ||
	    (rules->sums && cudaMalloc((void **)&tuning->norm, norm)))
		goto none;
	while (cudaMalloc(&tuning->workspace, tuning->workspace_bytes)) {
		cudaGetLastError(); /* what is launched later would be taken to have failed */
		tuning->workspace_bytes /= 2;
		if (tuning->workspace_bytes < LEAST_WORKSPACE)
			goto none;
	}
	source_begin(conv, tuning);
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
	double handicap_ms; /* of all ways but way 0; below 0: of that */
	struct sample first, other;
};

static bool makes_y(enum engine_pass pass)
{
	return pass == ENGINE_FORWARD || pass == ENGINE_SUMS || pass == ENGINE_NORM_SUMS;
}

static bool makes_dw(enum engine_pass pass)
{
	return pass == ENGINE_WEIGHTS || pass == ENGINE_NORM_WEIGHTS;
}

static void *result(const struct trial *trial, size_t *bytes)
{
	const struct convolution *conv = trial->conv;
	const struct tuning *t = trial->tuning;

	*bytes = makes_y(trial->pass)	 ? conv->y_bytes
		 : makes_dw(trial->pass) ? conv->w_bytes
					 : conv->x_bytes;
	return makes_y(trial->pass) ? t->y : makes_dw(trial->pass) ? t->w : t->x;
}

/* What is compared is all that is needed until the batch norm after it knows its statistics. */
static int run_forward(const struct trial *trial, bool engine)
{
	const struct tuning *t = trial->tuning;
	const struct kernel_on on = on_of(trial->conv, t);
	bool sums = trial->pass != ENGINE_FORWARD;
	bool summed = sums && (engine || trial->conv->engines[ENGINE_SUMS]);
	struct conv_source source;
	struct kernel_norm norm;
	int rc;

	if (trial->pass == ENGINE_NORM_SUMS && !engine) {
		norm = norm_before(trial->conv, t, false);
		kernel_norm_apply(&on, &norm);
	} else if (trial->pass == ENGINE_NORM_SUMS) {
		source = source_of(trial->conv, t);
	}
	if (sums)
		norm = norm_after(trial->conv, t, summed);
	rc = convolution_forward(trial->conv, t->stream, t->x, t->w, t->y,
				 summed ? norm.saved + SAVED_SUMS * (size_t)norm.c : NULL,
				 engine && trial->pass == ENGINE_NORM_SUMS ? &source : NULL,
				 t->workspace, NULL);
	if (!rc && sums)
		kernel_norm_moments(&on, &norm);
	return rc;
}

/* With the batch norm's whole way back, where that is in it. */
static int run_input(const struct trial *trial, bool engine)
{
	const struct tuning *t = trial->tuning;
	const struct kernel_on on = on_of(trial->conv, t);
	bool norm_too = trial->pass == ENGINE_INPUT_NORM;
	struct conv_source source;
	struct kernel_norm norm;
	int rc;

	if (norm_too) {
		source = source_of(trial->conv, t);
		norm = norm_before(trial->conv, t, engine);
	}
	rc = convolution_back_input(trial->conv, t->stream, t->w, t->y, t->x,
				    trial->conv->rules.add_dx, engine && norm_too ? &source : NULL,
				    t->workspace, NULL);
	if (!rc && norm_too)
		kernel_norm_back(&on, &norm);
	return rc;
}

/* Way 0 is what runs without this pass's engines; way i is engine i - 1. */
static int run_way(const struct trial *trial, int way)
{
	struct convolution *conv = trial->conv;
	const struct tuning *t = trial->tuning;
	struct conv_source source;
	bool through = trial->pass == ENGINE_NORM_WEIGHTS;
	int rc;

	conv->engines[trial->pass] = way ? trial->engines : NULL;
	conv->engine[trial->pass] = way - 1;
	if (makes_y(trial->pass)) {
		rc = run_forward(trial, way);
	} else if (!makes_dw(trial->pass)) {
		rc = run_input(trial, way);
	} else {
		if (through)
			source = source_of(conv, t);
		rc = convolution_back_weights(conv, t->stream, t->x, t->y, t->w, false,
					      through && way ? &source : NULL, t->workspace, NULL);
	}
	conv->engines[trial->pass] = NULL;
	return rc || cudaGetLastError() ? -1 : 0;
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
		return (double)ms / RUNS + fmax(way ? trial->handicap_ms : -trial->handicap_ms, 0);
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

/* Behind the numbers of the result: the statistics or the gradients of the batch norm's parameters. */
static float *besides(const struct trial *trial, size_t *count)
{
	const struct conv_shape *shape = &trial->conv->shape;

	if (trial->pass == ENGINE_INPUT_NORM) {
		*count = 2 * (size_t)shape->c;
		return trial->tuning->source_norm + NORM_BACK * (size_t)shape->c;
	}
	*count = makes_y(trial->pass) && trial->pass != ENGINE_FORWARD ? 2 * (size_t)shape->outputs
								       : 0;
	return *count ? trial->tuning->norm + NORM_SAVED * (size_t)shape->outputs : NULL;
}

/* Run way on a result that holds the same each time, and read some of what comes of it. */
static bool take_sample(const struct trial *trial, int way, struct sample *out)
{
	const struct convolution *conv = trial->conv;
	const struct kernel_on on = on_of(conv, trial->tuning);
	enum number number = conv->rules.number;
	size_t bytes, size = number_size(number), count, some, more;
	float *beside = besides(trial, &more);
	char *at = result(trial, &bytes);
	bool add = trial->pass == ENGINE_INPUT && conv->rules.add_dx;

	count = bytes / size;
	some = count < COMPARED ? count : COMPARED;
	out->count = 2 * some + more;
	out->numbers = malloc(out->count * sizeof *out->numbers);
	if (!out->numbers)
		return false;
	if (add)
		kernel_fill(&on, at, count, 4);
	else if (cudaMemsetAsync(at, 0xff, bytes, trial->tuning->stream)) /* NaNs */
		return false;
	return !run_way(trial, way) && read_part(trial, at, number, some, out->numbers) &&
	       read_part(trial, at + (count - some) * size, number, some, out->numbers + some) &&
	       (!more || read_part(trial, (char *)beside, NUMBER_F32, more, out->numbers + 2 * some));
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
	double bound = trial->conv->rules.number == NUMBER_F32 ? OFF_F32 : OFF_16;
	size_t more, count;

	besides(trial, &more);
	count = trial->first.count - more;
	if (more && trial->pass == ENGINE_INPUT_NORM) {
		if (!near(a + count, b + count, more / 2, bound) ||
		    !near(a + count + more / 2, b + count + more / 2, more / 2, bound))
			return false;
	} else if (more && !near_moments(a + count, b + count, more / 2, bound)) {
		return false;
	}
	return near(a, b, count, bound);
}

static bool trial_right(void *context, int way)
{
	struct trial *trial = context;
	bool good = trial->first.numbers || take_sample(trial, 0, &trial->first);

	if (!good) {
		free(trial->first.numbers);
		trial->first.numbers = NULL;
	}
	good = good && take_sample(trial, way, &trial->other) && same(trial);
	free(trial->other.numbers);
	trial->other.numbers = NULL;
	if (!good)
		cudaGetLastError();
	return good;
}

/* gain: an engine is taken whose time is below that of way 0 times this. times: of what is taken, and
 * of way 0. false: way 0 stays. */
static bool try_engines(struct convolution *conv, enum engine_pass pass, struct tuning *tuning,
			double gain, double handicap_ms, double times[2])
{
	struct trial trial = {.conv = conv,
			      .tuning = tuning,
			      .pass = pass,
			      .handicap_ms = handicap_ms,
			      .engines = engines_new(conv->cuda, pass, &conv->shape, &conv->rules,
						     pass == ENGINE_INPUT && conv->rules.add_dx)};
	const struct choose_ways ways = {.context = &trial,
					 .count = 1 + engines_count(trial.engines),
					 .gain = gain,
					 .build = trial_build,
					 .time_ms = trial_time,
					 .right = trial_right,
					 .drop = trial_drop};
	int way;

	if (!trial.engines)
		return false;
	way = choose_way(&ways, times);
	free(trial.first.numbers);
	if (way < 1) {
		engines_free(trial.engines);
		return false;
	}
	conv->engines[pass] = trial.engines;
	conv->engine[pass] = way - 1;
	return true;
}

void choose_engine(struct convolution *conv, enum engine_pass pass, struct tuning *tuning)
{
	double times[2];

	try_engines(conv, pass, tuning, CHOOSE_GAIN, 0, times);
}

/* Forward they save the batch norm's last pass over memory, backward they may lose something: what
 * the weights' gradient takes longer is a handicap forward. */
void choose_through(struct convolution *conv, struct tuning *tuning)
{
	double weights[2], forward[2];

	if (!try_engines(conv, ENGINE_NORM_WEIGHTS, tuning, HUGE_VAL, 0, weights))
		return;
	if (tuning_fill(conv, tuning) &&
	    try_engines(conv, ENGINE_NORM_SUMS, tuning, CHOOSE_GAIN, weights[0] - weights[1], forward))
		return;
	engines_free(conv->engines[ENGINE_NORM_WEIGHTS]);
	conv->engines[ENGINE_NORM_WEIGHTS] = NULL;
}
