/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cpu/kernels.h"

size_t norm_sums(const struct planes *planes)
{
	return planes->n * planes->blocks * 2 * KERNEL_LANES;
}

size_t norm_lanes(const struct planes *planes)
{
	return NORM_LANE_KINDS * planes->blocks * KERNEL_LANES;
}

const struct kernels *kernels_best(void)
{
#ifdef BERTH_KERNELS_X86
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx512f"))
		return &kernels_avx512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &kernels_avx2;
#endif
	return &kernels_base;
}
