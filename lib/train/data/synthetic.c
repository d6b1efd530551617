/* SPDX-License-Identifier: BSD-3-Clause */
/* Synthetic data made from the seed; each sample is a pure function of (seed, split, index).
 * Classification: a pattern per class plus noise. One class: regression, y = X w + 0.1 noise with w
 * from the seed. */
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/random.h"
#include "train/data/dataset.h"

#define NOISE 0.1f
#define MAX_SIDE 65536
#define MAX_ELEMENTS (1 << 28)

/* The counter's last word separates the streams of random numbers. */
enum stream { STREAM_TRAIN, STREAM_VAL, STREAM_PATTERN, STREAM_NOISE };

struct synthetic {
	struct dataset dataset;
	uint64_t seed;
	float *patterns; /* [classes][elements] */
};

static void normals(uint64_t seed, uint32_t index, enum stream stream, size_t count, float *out)
{
	for (size_t i = 0; i < count; i += 2) {
		uint32_t counter[4] = {(uint32_t)(i / 2), 0, index, stream};
		float pair[2];

		philox_normal2(seed, counter, pair);
		out[i] = pair[0];
		if (i + 1 < count)
			out[i + 1] = pair[1];
	}
}

/* "3x32x32", "20". */
static int parse_shape(const char *text, struct shape *out, struct error *err)
{
	int sides[3] = {1, 1, 1}, count = 0, rc;
	char part[16];

	for (const char *p = text; count < 3; count++) {
		size_t size = strcspn(p, "x");

		if (size >= sizeof part)
			break;
		memcpy(part, p, size);
		part[size] = 0;
		rc = number_int("a dimension of --data synthetic", part, 1, MAX_SIDE, &sides[count],
				err);
		if (rc)
			return rc;
		p += size;
		if (!*p++) {
			*out = (struct shape){sides[0], sides[1], sides[2]};
			return shape_count(out) > MAX_ELEMENTS
				       ? error_set(err, ERR_USAGE,
						   "--data synthetic:%s: expected at most %d "
						   "values per sample",
						   text, MAX_ELEMENTS)
				       : 0;
		}
	}
	return error_set(err, ERR_USAGE,
			 "--data synthetic:%s: expected a shape such as 3x32x32 or 20", text);
}

static int parse(const char *argument, struct dataset *dataset, int64_t *samples, struct error *err)
{
	char *copy = strdup(argument), *rest = copy;
	int rc = copy ? 0 : error_memory(err, "the data");

	for (char *part; !rc && (part = strsep(&rest, ","));) {
		if (!strncmp(part, "n=", 2))
			rc = number_int64("n of --data synthetic", part + 2, 1,
					  RANDOM_PERMUTATION_MAX, samples, err);
		else if (!strncmp(part, "classes=", 8))
			rc = number_int("classes of --data synthetic", part + 8, 1, 100000,
					&dataset->classes, err);
		else if (strchr(part, '='))
			rc = error_set(err, ERR_USAGE,
				       "--data synthetic has \"%s\": expected a shape such as "
				       "3x32x32, n=SAMPLES or classes=K",
				       part);
		else if (*part)
			rc = parse_shape(part, &dataset->shape, err);
	}
	free(copy);
	if (rc && err)
		err->code = ERR_USAGE;
	return rc ? -ERR_USAGE : 0;
}

static void synthetic_reseed(struct dataset *dataset, uint64_t seed)
{
	struct synthetic *synthetic = (struct synthetic *)dataset;
	int64_t elements = shape_count(&dataset->shape);

	synthetic->seed = seed;
	for (int k = 0; k < dataset->classes; k++)
		normals(seed, (uint32_t)k, STREAM_PATTERN, (size_t)elements,
			synthetic->patterns + k * elements);
}

static int synthetic_open(struct dataset *dataset, const struct dataset_request *request,
			  struct error *err)
{
	struct synthetic *synthetic = (struct synthetic *)dataset;
	int64_t samples = 10000;

	dataset->shape = (struct shape){1, 28, 28};
	dataset->classes = 10;

	int rc = parse(request->argument, dataset, &samples, err);
	int64_t elements = shape_count(&dataset->shape);

	if (rc)
		return rc;
	if (dataset->classes > MAX_ELEMENTS / elements)
		return error_set(err, ERR_USAGE,
				 "--data %s: too many classes for samples of this size",
				 request->spec);
	synthetic->patterns = calloc((size_t)dataset->classes, (size_t)elements * 4);
	if (!synthetic->patterns)
		return error_memory(err, "the data");
	synthetic_reseed(dataset, request->seed);
	/* A tenth of the samples for evaluation. */
	dataset->count = request->split == SPLIT_TRAIN ? samples : (samples + 9) / 10;
	return 0;
}

static void synthetic_close(struct dataset *dataset)
{
	free(((struct synthetic *)dataset)->patterns);
}

static int synthetic_sample(const struct dataset *dataset, uint32_t index, uint32_t epoch,
			    struct dataset_scratch *scratch, void *raw, void *target,
			    struct error *err)
{
	const struct synthetic *synthetic = (const struct synthetic *)dataset;
	enum stream stream = dataset->split == SPLIT_TRAIN ? STREAM_TRAIN : STREAM_VAL;
	size_t elements = (size_t)shape_count(&dataset->shape);
	uint32_t draw[4], counter[4] = {0, 1, index, stream};
	const float *pattern = synthetic->patterns;
	float *x = raw;

	/* In a regression the target is a sum over the sample. */
	if (!x && dataset->classes == 1)
		x = dataset_reserve(&scratch->raw, elements * sizeof *x);
	if (!x && dataset->classes == 1)
		return error_memory(err, "a sample");
	if (x)
		normals(synthetic->seed, index, stream, elements, x);
	if (dataset->classes == 1) {
		uint32_t place[4] = {stream, 0, index, STREAM_NOISE};
		float noise[2];
		double y = 0;

		philox_normal2(synthetic->seed, place, noise);
		for (size_t i = 0; i < elements; i++)
			y += (double)x[i] * (double)pattern[i];
		*(float *)target = (float)y + NOISE * noise[0];
		return 0;
	}
	philox(synthetic->seed, counter, draw);

	uint32_t k = draw[0] % (uint32_t)dataset->classes;

	pattern += k * elements;
	for (size_t i = 0; x && i < elements; i++)
		x[i] = 0.5f * pattern[i] + x[i];
	*(int32_t *)target = (int32_t)k;
	return 0;
}

const struct dataset_format dataset_synthetic = {
	.name = "synthetic",
	.size = sizeof(struct synthetic),
	.open = synthetic_open,
	.sample = synthetic_sample,
	.reseed = synthetic_reseed,
	.close = synthetic_close,
};
