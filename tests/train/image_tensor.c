/* SPDX-License-Identifier: BSD-3-Clause */
/* Print the network's input for samples, for images.py and as a benchmark:
 *   image-tensor DIR train|val SIDE SEED EPOCH INDEX...  floats [3][SIDE][SIDE] each on stdout, and
 *                                                        "label" on stderr
 *   image-tensor DIR bench SIDE SECONDS                  samples per second of CPU time, on stdout
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/data/dataset.h"

static int fail(const struct error *err)
{
	fprintf(stderr, "image-tensor: %s\n", err->text);
	return err->code;
}

static double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int bench(const struct dataset *data, double seconds, float *x, struct error *err)
{
	struct dataset_scratch scratch = {0};
	int64_t samples = 0;
	double begin, end;
	int rc = 0;

	/* The first round fills the caches of the file system and of memory. */
	for (uint32_t i = 0; !rc && i < data->count; i++) {
		int32_t label;

		rc = dataset_sample(data, i, 0, &scratch, x, &label, err);
	}
	begin = end = cpu_s();
	for (int64_t epoch = 1; !rc && end - begin < seconds; epoch++)
		for (uint32_t i = 0; !rc && i < data->count; i++) {
			int32_t label;

			rc = dataset_sample(data, i, epoch, &scratch, x, &label, err);
			samples++;
			end = cpu_s();
		}
	dataset_scratch_free(&scratch);
	if (!rc)
		printf("%.1f\n", (double)samples / (end - begin));
	return rc;
}

int main(int argc, char **argv)
{
	struct error err = {0};
	struct dataset *data;
	char spec[4200];

	if (argc < 5)
		return 64;
	snprintf(spec, sizeof spec, "imagefolder:%s", argv[1]);
	const struct dataset_request request = {
		.spec = spec,
		.split = !strcmp(argv[2], "val") ? SPLIT_VAL : SPLIT_TRAIN,
		.image_size = atoi(argv[3]),
		.seed = !strcmp(argv[2], "bench") ? 1 : strtoull(argv[4], NULL, 10),
		.module_path = secure_getenv("BERTH_MODULE_PATH"),
	};

	if (dataset_open(&request, &data, &err))
		return fail(&err);
	size_t count = (size_t)shape_count(&data->shape);
	struct dataset_scratch scratch = {0};
	float *x = malloc(count * sizeof *x);
	int rc = 0;

	if (!strcmp(argv[2], "bench"))
		rc = bench(data, atof(argv[4]), x, &err);
	else
		for (int i = 6; !rc && i < argc; i++) {
			int32_t label;

			rc = dataset_sample(data, (uint32_t)atoi(argv[i]), atoi(argv[5]), &scratch,
					    x, &label, &err);
			if (!rc && fwrite(x, sizeof *x, count, stdout) != count)
				rc = 74;
			fprintf(stderr, "%d\n", label);
		}
	if (rc)
		rc = fail(&err);
	dataset_scratch_free(&scratch);
	free(x);
	dataset_close(data);
	return rc;
}
