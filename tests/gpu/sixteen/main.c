/* SPDX-License-Identifier: BSD-3-Clause */
/* Op conformance in 16 bits: each op of the CUDA device on its own, forward and backward, compared
 * with float64 (lab.h has the bounds). Data are random; the seed is printed, and BERTH_TEST_SEED=N
 * repeats a run. Results are filled with NaNs, or with numbers to which the op adds, and are
 * followed by guards. Inputs must not change. Float32: tests/unit/train/test_ops.c.
 *   ops-sixteen [fp16|bf16 [through [taken]]]
 *     By default both types and all cases; through: only through.c's cases; taken: fail if none of
 *     these is used.
 * Exits with code 77 without a GPU, and with 1 if a result is wrong. */
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
	/* Tensor cores may treat its subnormal numbers, below 2^-126, as 0. */
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
