/* SPDX-License-Identifier: BSD-3-Clause */
/* Op conformance in 16 bits: each op of the CUDA device alone, forward and backward, against
 * float64 (lab.h says within what). Data are new in each run; the seed is printed, and
 * BERTH_TEST_SEED=N repeats a run. Results are poisoned with NaNs or hold numbers that are added
 * to, and have guards behind them; inputs must not change. Float32: tests/unit/train/test_ops.c.
 *   ops-sixteen [fp16|bf16 [through [taken]]]: both, all; through.c's cases alone; and it is wrong
 *   where none of theirs is taken
 * 77: no GPU. 1: a result is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lab.h"

extern const struct device_ops device_cuda;

static const struct {
	const char *name;
	enum number number;
	double unit, least;
} types[] = {
	{"fp16", NUMBER_F16, 0x1p-11, 0x1p-25},
	/* Tensor cores may take its subnormal numbers, below 2^-126, for 0. */
	{"bf16", NUMBER_BF16, 0x1p-8, 0x1p-126},
};

int main(int argc, char **argv)
{
	const char *seed = getenv("BERTH_TEST_SEED");
	struct lab lab = {.seed = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL)};
	struct device *device;
	struct error err = {0};

	printf("BERTH_TEST_SEED=%llu\n", (unsigned long long)lab.seed);
	if (device_cuda.open(0, &device, &err)) {
		printf("skipped: %s\n", err.text);
		return 77;
	}
	lab.cuda = (struct cuda *)device;
	lab.random = lab.seed * 2654435761u + 88172645463325252u;
	if (cudaStreamCreateWithFlags(&lab.config.stream, cudaStreamNonBlocking))
		return 1;
	for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
		if (argc > 1 && strcmp(argv[1], types[i].name))
			continue;
		lab.config.number = types[i].number;
		lab.config.multiprocessors = lab.cuda->multiprocessors;
		lab.type = types[i].name;
		lab.unit = types[i].unit;
		lab.least = types[i].least;
		through_cases(&lab, argc > 3);
		if (argc > 2)
			continue;
		layers_cases(&lab);
		norm_cases(&lab);
		element_cases(&lab);
		loss_cases(&lab);
	}
	lab_clear(&lab);
	cudnnSetStream(lab.cuda->cudnn, NULL);
	cudaStreamDestroy(lab.config.stream);
	device->ops->close(device);
	printf("%d results compared, %d wrong\n", lab.checked, lab.failed);
	return lab.checked && !lab.failed ? 0 : 1;
}
