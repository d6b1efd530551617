/* SPDX-License-Identifier: BSD-3-Clause */
/* Benchmarks every candidate of a pass: in memory of its own, timed, and compared with the legacy
 * API's result for the same input. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "train/device/cuda/convolution_internal.h"
#include "train/device/cuda/kernels/element.h"
#include "train/device/cuda/lowered_graph.h"
#include "train/device/cuda/tuning/candidates.h"

#define MIN_WORKSPACE ((size_t)32 << 20)
#define RUNS 3
#define CANDIDATE_MS 30000 /* for all of its runs */
/* How many numbers of a result are compared, at its beginning and at its end. */
#define COMPARED_ELEMENTS ((size_t)1 << 14)
/* Relative to the largest of them. A candidate that computes something else is off by that much;
 * one that rounds or sums in another order is not. */
#define TOLERANCE_F32 2e-3
#define TOLERANCE_16 2e-2

/* ---- memory ---- */

static struct kernel_config config_of(const struct convolution *conv, const struct tuning *tuning)
{
	return (struct kernel_config){tuning->stream, conv->rules.number,
				      conv->cuda->multiprocessors};
}

void tuning_end(const struct convolution *conv, struct tuning *tuning)
{
	if (tuning->stream)
		cudaStreamSynchronize(tuning->stream);
	/* Otherwise cuDNN would keep using a destroyed stream. */
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

/* A batch norm in rows of c floats: w, b, mean, variance; saved [SAVED_ROWS][c]; dw, db;
 * scratch. */
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
	size_t parts = (size_t)kernel_parts(conv->cuda->multiprocessors, rows, c);

	return (NORM_SCRATCH + 2 * parts) * (size_t)c;
}

/* The batch norm of y. */
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

/* The batch norm of source with its ReLU, whose result is x; x also holds that result's
 * gradient. */
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
	norm.apply_params = norm.saved + SAVED_APPLY * c;
	norm.back_sums = summed ? norm.saved + SAVED_SUMS * c : NULL;
	return norm;
}

/* Fill in its statistics, and x from it. */
static bool fill_source(const struct convolution *conv, const struct tuning *tuning)
{
	const struct kernel_config config = config_of(conv, tuning);
	const struct kernel_config floats = {tuning->stream, NUMBER_F32,
					     conv->cuda->multiprocessors};
	const struct kernel_norm norm = norm_before(conv, tuning, false);

	kernel_fill(&config, tuning->source, conv->x_bytes / number_size(conv->rules.number), 5);
	kernel_fill(&floats, tuning->source_norm, norm_floats(conv, norm.rows, norm.c), 6);
	kernel_norm(&config, &norm);
	return !cudaGetLastError();
}

bool tuning_fill(const struct convolution *conv, const struct tuning *tuning)
{
	const struct kernel_config config = config_of(conv, tuning);
	size_t size = number_size(conv->rules.number);

	kernel_fill(&config, tuning->x, conv->x_bytes / size, 1);
	kernel_fill(&config, tuning->w, conv->w_bytes / size, 2);
	kernel_fill(&config, tuning->y, conv->y_bytes / size, 3);
	return !cudaGetLastError() &&
	       (!tuning->norm ||
		!cudaMemsetAsync(tuning->norm, 0,
				 norm_floats(conv, conv->rows, conv->shape.outputs) * sizeof(float),
				 tuning->stream)) &&
	       (!tuning->source || fill_source(conv, tuning)) &&
	       !cudaStreamSynchronize(tuning->stream);
}

/* If memory is short, benchmark the other candidates without it. */
static void source_begin(const struct convolution *conv, struct tuning *tuning)
{
	size_t floats = norm_floats(conv, source_rows(conv), conv->shape.c);

	if (!conv->rules.fused_norm)
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

	*tuning = (struct tuning){.workspace_bytes = conv->cuda->workspace_limit};
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
		cudaGetLastError(); /* clear the error: otherwise a later launch would seem to have
				       failed */
		tuning->workspace_bytes /= 2;
		if (tuning->workspace_bytes < MIN_WORKSPACE)
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

struct benchmark {
	struct convolution *conv;
	struct tuning *tuning;
	enum engine_pass pass;
	struct engines *engines;
	double handicap_ms; /* added to all candidates except 0; if negative, to candidate 0 */
	float *first;	    /* candidate 0's results, as take_results returns them, or NULL */
};

static bool writes_y(enum engine_pass pass)
{
	return pass == ENGINE_FORWARD || pass == ENGINE_SUMS || pass == ENGINE_NORM_SUMS;
}

static bool writes_dw(enum engine_pass pass)
{
	return pass == ENGINE_WEIGHTS || pass == ENGINE_NORM_WEIGHTS;
}

static void *result(const struct benchmark *benchmark, size_t *bytes)
{
	const struct convolution *conv = benchmark->conv;
	const struct tuning *t = benchmark->tuning;

	*bytes = writes_y(benchmark->pass)    ? conv->y_bytes
		 : writes_dw(benchmark->pass) ? conv->w_bytes
					      : conv->x_bytes;
	return writes_y(benchmark->pass) ? t->y : writes_dw(benchmark->pass) ? t->w : t->x;
}

/* The batch norm whose work the pass's engines take over, in *space. NULL: there is none, or no
 * engine runs there. */
static const struct conv_source *source_of(const struct benchmark *benchmark, bool engine,
					   struct conv_source *space)
{
	const struct tuning *t = benchmark->tuning;

	if (!engine || !engine_reads_norm(benchmark->pass))
		return NULL;
	*space = (struct conv_source){t->source, norm_before(benchmark->conv, t, false).saved};
	return space;
}

/* Run everything up to the point where the following batch norm knows its statistics. */
static int run_forward(const struct benchmark *benchmark, bool engine)
{
	const struct tuning *t = benchmark->tuning;
	const struct kernel_config config = config_of(benchmark->conv, t);
	bool sums = benchmark->pass != ENGINE_FORWARD;
	bool summed = sums && (engine || benchmark->conv->engines[ENGINE_SUMS]);
	struct conv_source source;
	struct kernel_norm norm;
	int rc;

	if (benchmark->pass == ENGINE_NORM_SUMS && !engine) {
		norm = norm_before(benchmark->conv, t, false);
		kernel_norm_apply(&config, &norm);
	}
	if (sums)
		norm = norm_after(benchmark->conv, t, summed);
	rc = convolution_forward(benchmark->conv, t->stream, t->x, t->w, t->y,
				 summed ? norm.saved + SAVED_SUMS * (size_t)norm.c : NULL,
				 source_of(benchmark, engine, &source), t->workspace, NULL);
	if (!rc && sums)
		kernel_norm_moments(&config, &norm);
	return rc;
}

/* Includes the batch norm's whole backward pass, if the candidate contains it. */
static int run_input(const struct benchmark *benchmark, bool engine)
{
	const struct tuning *t = benchmark->tuning;
	const struct kernel_config config = config_of(benchmark->conv, t);
	struct conv_source source;
	struct kernel_norm norm;
	int rc = convolution_back_input(benchmark->conv, t->stream, t->w, t->y, t->x,
					benchmark->conv->rules.add_dx,
					source_of(benchmark, engine, &source), t->workspace, NULL);

	if (!rc && benchmark->pass == ENGINE_INPUT_NORM) {
		norm = norm_before(benchmark->conv, t, engine);
		kernel_norm_back(&config, &norm);
	}
	return rc;
}

/* Candidate 0 is what runs without this pass's engines; candidate i is engine i - 1. */
static int run_candidate(const struct benchmark *benchmark, int candidate)
{
	struct convolution *conv = benchmark->conv;
	const struct tuning *t = benchmark->tuning;
	struct conv_source source;
	int rc;

	conv->engines[benchmark->pass] = candidate ? benchmark->engines : NULL;
	conv->engine[benchmark->pass] = candidate - 1;
	if (writes_y(benchmark->pass))
		rc = run_forward(benchmark, candidate);
	else if (!writes_dw(benchmark->pass))
		rc = run_input(benchmark, candidate);
	else
		rc = convolution_back_weights(conv, t->stream, t->x, t->y, t->w, false,
					      source_of(benchmark, candidate, &source),
					      t->workspace, NULL);
	conv->engines[benchmark->pass] = NULL;
	return rc || cudaGetLastError() ? -1 : 0;
}

static bool benchmark_build(void *context, int candidate)
{
	const struct benchmark *benchmark = context;

	return !candidate ||
	       engines_build(benchmark->engines, candidate - 1, benchmark->tuning->workspace_bytes);
}

static void benchmark_drop(void *context, int candidate)
{
	const struct benchmark *benchmark = context;

	engines_drop(benchmark->engines, candidate - 1);
}

/* Nothing ends a kernel that hangs, and freeing memory would wait for it. */
static void end_if_hung(const struct convolution *conv, const struct tuning *tuning)
{
	struct error err = {0};

	if (cuda_wait(tuning->stream, CANDIDATE_MS, &err) != -ERR_NETWORK)
		return;
	log_user(LOG_ERROR,
		 "a kernel of cuDNN %zu did not end within %d s on %s while convolution %s was "
		 "tuned. Start again: the second such start is the last that tries it",
		 cudnnGetVersion(), CANDIDATE_MS / 1000, conv->cuda->name, conv->name);
	_exit(ERR_UNAVAILABLE);
}

static double benchmark_time_ms(void *context, int candidate)
{
	const struct benchmark *benchmark = context;
	const struct tuning *t = benchmark->tuning;
	float ms = -1;

	/* Libraries load their code at the first run. */
	if (run_candidate(benchmark, candidate) || cudaEventRecord(t->begin, t->stream))
		goto failed;
	for (int i = 0; i < RUNS; i++)
		if (run_candidate(benchmark, candidate))
			goto failed;
	if (cudaEventRecord(t->end, t->stream))
		goto failed;
	end_if_hung(benchmark->conv, t);
	if (!cudaEventElapsedTime(&ms, t->begin, t->end))
		return (double)ms / RUNS +
		       fmax(candidate ? benchmark->handicap_ms : -benchmark->handicap_ms, 0);
failed:
	cudaGetLastError();
	return -1;
}

/* ---- correctness ---- */

static bool read_part(const struct benchmark *benchmark, const char *from, enum number number,
		      size_t count, float *to)
{
	void *raw = malloc(count * number_size(number));
	bool good = raw &&
		    !cudaMemcpyAsync(raw, from, count * number_size(number), cudaMemcpyDeviceToHost,
				     benchmark->tuning->stream) &&
		    !cudaStreamSynchronize(benchmark->tuning->stream);

	for (size_t i = 0; good && i < count; i++)
		to[i] = number == NUMBER_F32   ? ((const float *)raw)[i]
			: number == NUMBER_F16 ? f32_of_f16(((const struct f16 *)raw)[i])
					       : f32_of_bf16(((const struct bf16 *)raw)[i]);
	free(raw);
	return good;
}

/* The results besides the tensor: the statistics, or the gradients of the batch norm's
 * parameters. */
static float *other_results(const struct benchmark *benchmark, size_t *count)
{
	const struct conv_shape *shape = &benchmark->conv->shape;

	if (benchmark->pass == ENGINE_INPUT_NORM) {
		*count = 2 * (size_t)shape->c;
		return benchmark->tuning->source_norm + NORM_BACK * (size_t)shape->c;
	}
	*count = writes_y(benchmark->pass) && benchmark->pass != ENGINE_FORWARD
			 ? 2 * (size_t)shape->outputs
			 : 0;
	return *count ? benchmark->tuning->norm + NORM_SAVED * (size_t)shape->outputs : NULL;
}

/* How many numbers at each end of the pass's tensor are compared. */
static size_t compared(const struct benchmark *benchmark)
{
	size_t bytes, count;

	result(benchmark, &bytes);
	count = bytes / number_size(benchmark->conv->rules.number);
	return count < COMPARED_ELEMENTS ? count : COMPARED_ELEMENTS;
}

/* Run candidate on a result with the same initial contents each time, and read some of its output:
 * both ends of the tensor, then the other results. Malloced; NULL: it failed. */
static float *take_results(const struct benchmark *benchmark, int candidate)
{
	const struct kernel_config config = config_of(benchmark->conv, benchmark->tuning);
	enum number number = config.number;
	size_t bytes, size = number_size(number), some = compared(benchmark), more;
	float *beside = other_results(benchmark, &more);
	float *out = malloc((2 * some + more) * sizeof *out);
	char *at = result(benchmark, &bytes);
	bool good = out;

	if (good && benchmark->pass == ENGINE_INPUT && benchmark->conv->rules.add_dx)
		kernel_fill(&config, at, bytes / size, 4);
	else if (good) /* NaNs */
		good = !cudaMemsetAsync(at, 0xff, bytes, config.stream);
	if (good && !run_candidate(benchmark, candidate) &&
	    read_part(benchmark, at, number, some, out) &&
	    read_part(benchmark, at + bytes - some * size, number, some, out + some) &&
	    (!more || read_part(benchmark, (char *)beside, NUMBER_F32, more, out + 2 * some)))
		return out;
	free(out);
	return NULL;
}

static bool is_close(const float *a, const float *b, size_t count, double bound)
{
	double max = 0, off = 0;

	for (size_t i = 0; i < count; i++) {
		double difference = fabs((double)a[i] - (double)b[i]);

		max = fmax(max, fabs((double)a[i]));
		if (!isfinite(difference))
			return false;
		off = fmax(off, difference);
	}
	return off <= bound * max;
}

/* Means and 1/deviations [2][c] of c channels. Squares are summed, so the tolerance is relative to
 * the mean of the squares. */
static bool moments_are_close(const float *a, const float *b, size_t c, double bound)
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

static bool is_same(const struct benchmark *benchmark, const float *b)
{
	const float *a = benchmark->first;
	double bound = benchmark->conv->rules.number == NUMBER_F32 ? TOLERANCE_F32 : TOLERANCE_16;
	size_t count = 2 * compared(benchmark), more;

	other_results(benchmark, &more);
	more /= 2;
	if (more && benchmark->pass == ENGINE_INPUT_NORM) {
		if (!is_close(a + count, b + count, more, bound) ||
		    !is_close(a + count + more, b + count + more, more, bound))
			return false;
	} else if (more && !moments_are_close(a + count, b + count, more, bound)) {
		return false;
	}
	return is_close(a, b, count, bound);
}

static bool benchmark_is_correct(void *context, int candidate)
{
	struct benchmark *benchmark = context;
	float *results;
	bool good;

	if (!benchmark->first)
		benchmark->first = take_results(benchmark, 0);
	results = benchmark->first ? take_results(benchmark, candidate) : NULL;
	good = results && is_same(benchmark, results);
	free(results);
	if (!good)
		cudaGetLastError();
	return good;
}

/* gain: an engine must take less than candidate 0's time multiplied by this. times (may be
 * NULL): of the chosen one, and of candidate 0. false: candidate 0 stays. */
static bool try_engines(struct convolution *conv, enum engine_pass pass, struct tuning *tuning,
			double gain, double handicap_ms, double times[2])
{
	struct benchmark benchmark = {
		.conv = conv,
		.tuning = tuning,
		.pass = pass,
		.handicap_ms = handicap_ms,
		.engines = engines_new(conv->cuda, pass, &conv->shape, &conv->rules,
				       pass == ENGINE_INPUT && conv->rules.add_dx)};
	const struct candidate_list candidates = {.context = &benchmark,
						  .count = 1 + engines_count(benchmark.engines),
						  .gain = gain,
						  .build = benchmark_build,
						  .time_ms = benchmark_time_ms,
						  .is_correct = benchmark_is_correct,
						  .drop = benchmark_drop};
	int candidate;

	if (!benchmark.engines)
		return false;
	candidate = choose_candidate(&candidates, times);
	free(benchmark.first);
	if (candidate < 1) {
		engines_free(benchmark.engines);
		return false;
	}
	conv->engines[pass] = benchmark.engines;
	conv->engine[pass] = candidate - 1;
	return true;
}

void choose_engine(struct convolution *conv, enum engine_pass pass, struct tuning *tuning)
{
	try_engines(conv, pass, tuning, CANDIDATE_GAIN, 0, NULL);
}

/* Forward they save the batch norm's last pass over memory; backward they may lose time. What the
 * weights' gradient loses becomes a handicap of the forward pass. */
void choose_fused_norm(struct convolution *conv, struct tuning *tuning)
{
	double weights[2];

	if (!try_engines(conv, ENGINE_NORM_WEIGHTS, tuning, HUGE_VAL, 0, weights))
		return;
	if (tuning_fill(conv, tuning) && try_engines(conv, ENGINE_NORM_SUMS, tuning, CANDIDATE_GAIN,
						     weights[0] - weights[1], NULL))
		return;
	engines_free(conv->engines[ENGINE_NORM_WEIGHTS]);
	conv->engines[ENGINE_NORM_WEIGHTS] = NULL;
}
