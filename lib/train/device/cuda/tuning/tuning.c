/* SPDX-License-Identifier: BSD-3-Clause */
/* Which candidate each pass of a convolution uses: the legacy API's algorithm, or an engine of the
 * graph API that was measured to be faster and gives the same result. The choice is cached on
 * disk. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "train/device/cuda/convolution_internal.h"
#include "train/device/cuda/tuning/tuning_cache.h"

/* A choice forced by too little memory must not serve a run with more of it. So the key has " in 64
 * MiB", by powers of two, or nothing if there is room for all. */
static void describe_workspace(const struct cuda *cuda, char *to, size_t size)
{
	size_t mib = 1;

	to[0] = 0;
	if (cuda->workspace_limit >= TUNING_WORKSPACE)
		return;
	while (mib << 21 <= cuda->workspace_limit)
		mib *= 2;
	snprintf(to, size, " in %zu MiB", mib);
}

static void make_key(const struct convolution *conv, char *key)
{
	static const char *const types[] = {
		[NUMBER_F32] = "f32", [NUMBER_F16] = "f16", [NUMBER_BF16] = "bf16"};
	const struct conv_shape *s = &conv->shape;
	const struct layer_rules *rules = &conv->rules;
	char room[32];

	describe_workspace(conv->cuda, room, sizeof room);
	snprintf(key, TUNING_CACHE_KEY_BYTES,
		 "conv nhwc %s%s%s %dx%dx%dx%d o%d k%d s%d p%d%s%s%s%s%s sm%d%d%s",
		 types[rules->number], rules->tf32 ? " tf32" : "", rules->direct ? " direct" : "",
		 s->n, s->c, s->h, s->w, s->outputs, s->kernel, s->stride, s->pad,
		 rules->train ? " train" : "", rules->dx ? " dx" : "", rules->add_dx ? " add" : "",
		 rules->sums ? " sums" : "", rules->fused_norm ? " through" : "", conv->cuda->major,
		 conv->cuda->minor, room);
}

static bool is_wanted(const struct convolution *conv, enum engine_pass pass)
{
	switch (pass) {
	case ENGINE_SUMS:
		return conv->rules.sums;
	case ENGINE_NORM_SUMS:
	case ENGINE_NORM_WEIGHTS:
		return conv->rules.fused_norm && conv->rules.sums;
	case ENGINE_INPUT_NORM:
		return conv->rules.fused_norm && conv->used[PASS_INPUT] && !conv->rules.add_dx;
	case ENGINE_INPUT:
		return conv->used[PASS_INPUT];
	case ENGINE_WEIGHTS:
		return conv->used[PASS_WEIGHTS];
	default:
		return true;
	}
}

static bool use_engine(struct convolution *conv, const char *key, enum engine_pass pass, int index,
		       int name)
{
	struct engines *engines;

	if (index < 0)
		return true;
	engines = engines_find_shared(conv->cuda, pass, key, index);
	if (!engines) {
		engines = engines_new(conv->cuda, pass, &conv->shape, &conv->rules,
				      pass == ENGINE_INPUT && conv->rules.add_dx);
		/* Another driver, or another berth, may list other engines, whose results were
		 * never checked. */
		if (!engines || engines_global_index(engines, index) != name ||
		    !engines_build(engines, index, conv->cuda->workspace_limit)) {
			engines_free(engines);
			return false;
		}
		engines_share(engines, key, index);
	}
	conv->engines[pass] = engines;
	conv->engine[pass] = index;
	return true;
}

static void drop_engines(struct convolution *conv)
{
	for (int i = 0; i < CONV_ENGINES; i++) {
		engines_free(conv->engines[i]);
		conv->engines[i] = NULL;
	}
}

/* The choice of an earlier run: [PASSES][2] algorithm and math type, [CONV_ENGINES] engine or -1,
 * [CONV_ENGINES] those engines' global indices. */
static bool take_cached(struct convolution *conv, const char *key)
{
	int numbers[TUNING_CACHE_NUMBERS];
	bool good = tuning_cache_find(conv->cuda->tuning_cache, key, numbers) &&
		    (!numbers[TUNING_CACHE_ATTEMPTS] ||
		     numbers[TUNING_CACHE_ATTEMPTS] >= TUNING_CACHE_ATTEMPTS_MAX);

	for (int i = 0; good && i < PASSES; i++)
		if (conv->used[i])
			good = algorithm_apply(conv, (enum pass)i, numbers[2 * i],
					       numbers[2 * i + 1]);
	for (int i = 0; good && i < CONV_ENGINES; i++)
		if (is_wanted(conv, (enum engine_pass)i))
			good = use_engine(conv, key, (enum engine_pass)i, numbers[2 * PASSES + i],
					  numbers[2 * PASSES + CONV_ENGINES + i]);
	if (!good)
		drop_engines(conv);
	return good;
}

/* First choose what runs without engines, because the engines are compared with it. */
static void choose_pass(struct convolution *conv, enum engine_pass pass, struct tuning *active)
{
	/* The search has overwritten the memory: fill it again. */
	if (!is_wanted(conv, pass) || (engine_reads_norm(pass) && !active->source) ||
	    !tuning_fill(conv, active))
		return;
	if (pass == ENGINE_NORM_SUMS)
		choose_fused_norm(conv, active);
	else if (pass != ENGINE_NORM_WEIGHTS)
		choose_engine(conv, pass, active);
}

/* The algorithms of the passes without engines: measured with active, else by cuDNN's heuristics.
 */
static int choose_algorithms(struct convolution *conv, const char *key, const struct tuning *active,
			     int *numbers, struct error *err)
{
	for (int i = 0; i < PASSES; i++) {
		enum pass pass = (enum pass)i;

		if (!conv->used[i])
			continue;
		if (!(active && algorithm_find_best(conv, pass, active, &numbers[2 * i + 1])) &&
		    !algorithm_find_best(conv, pass, NULL, &numbers[2 * i + 1]))
			return error_set(err, ERR_UNAVAILABLE,
					 "cuDNN %zu has no algorithm for convolution %s on %s "
					 "(%s)%s",
					 cudnnGetVersion(), conv->name, conv->cuda->name, key,
					 conv->rules.deterministic ? " with --deterministic" : "");
		numbers[2 * i] = conv->algorithm[i];
	}
	return 0;
}

static void number_engines(const struct convolution *conv, int *numbers)
{
	for (int i = 0; i < CONV_ENGINES; i++) {
		const struct engines *engines = conv->engines[i];

		numbers[2 * PASSES + i] = engines ? conv->engine[i] : -1;
		numbers[2 * PASSES + CONV_ENGINES + i] =
			engines ? engines_global_index(engines, conv->engine[i]) : -1;
	}
}

/* A candidate that faults ends the process, and one that hangs has it ended. So the disk knows
 * before the first is tried, and what the layer uses after TUNING_CACHE_ATTEMPTS_MAX such starts.
 */
static void store_attempt(struct convolution *conv, const char *key, const int *numbers, int more)
{
	int known[TUNING_CACHE_NUMBERS], attempt[TUNING_CACHE_NUMBERS];
	bool again = tuning_cache_find(conv->cuda->tuning_cache, key, known);

	memcpy(attempt, numbers, sizeof attempt);
	attempt[TUNING_CACHE_ATTEMPTS] = (again ? known[TUNING_CACHE_ATTEMPTS] : 0) + more;
	tuning_cache_add(conv->cuda->tuning_cache, key, attempt);
	tuning_cache_save(conv->cuda->tuning_cache);
}

static int tune(struct convolution *conv, const char *key, struct tuning *active, int *numbers,
		struct error *err)
{
	/* With less memory the choice would not serve the next run. */
	bool whole = active->workspace_bytes == conv->cuda->workspace_limit &&
		     (!conv->rules.fused_norm || active->source);
	int unmeasured[TUNING_CACHE_NUMBERS];
	cudaError_t fault;
	int rc;

	memcpy(unmeasured, numbers, sizeof unmeasured);
	if (whole)
		store_attempt(conv, key, unmeasured, 1);
	rc = choose_algorithms(conv, key, active, numbers, err);
	for (int i = 0; !rc && i < CONV_ENGINES; i++)
		choose_pass(conv, (enum engine_pass)i, active);
	for (int i = 0; i < CONV_ENGINES; i++)
		if (conv->engines[i])
			engines_share(conv->engines[i], key, conv->engine[i]);
	number_engines(conv, numbers);
	fault = cudaStreamSynchronize(active->stream);
	tuning_end(conv, active);
	if (fault) {
		store_attempt(conv, key, unmeasured, TUNING_CACHE_ATTEMPTS_MAX);
		return error_set(err, ERR_UNAVAILABLE,
				 "a kernel of cuDNN %zu failed on %s while convolution %s was "
				 "tuned: %s. Start again: it is remembered, and will not be tried",
				 cudnnGetVersion(), conv->cuda->name, conv->name,
				 cudaGetErrorString(fault));
	}
	if (!rc && whole)
		tuning_cache_add(conv->cuda->tuning_cache, key, numbers);
	return rc;
}

/* The candidate that ended the process would do so for other layers, too. */
static bool may_tune(struct cuda *cuda)
{
	const char *path = tuning_cache_given_up(cuda->tuning_cache);

	if (path && !cuda->tuning_given_up)
		log_user(LOG_WARNING,
			 "measuring cuDNN's candidates has ended an earlier start on this GPU, so "
			 "layers use what cuDNN proposes, which may be slower. Delete '%s' to "
			 "measure again",
			 path);
	cuda->tuning_given_up = path;
	return !path;
}

int convolution_choose(struct convolution *conv, struct error *err)
{
	bool timed = conv->rules.tune && !conv->rules.deterministic;
	int numbers[TUNING_CACHE_NUMBERS] = {0}, rc;
	char key[TUNING_CACHE_KEY_BYTES];
	struct tuning tuning;

	make_key(conv, key);
	if (timed && take_cached(conv, key))
		return 0;
	timed = timed && may_tune(conv->cuda);
	rc = choose_algorithms(conv, key, NULL, numbers, err);
	number_engines(conv, numbers);
	return !rc && timed && tuning_begin(conv, &tuning) ? tune(conv, key, &tuning, numbers, err)
							   : rc;
}
