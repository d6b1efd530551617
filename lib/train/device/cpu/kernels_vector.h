/* SPDX-License-Identifier: BSD-3-Clause */
/* Vectors as wide as a register of the instruction set: GCC splits wider ones into single numbers.
 * For the files that are compiled once per set. */
#ifndef BERTH_TRAIN_DEVICE_CPU_KERNELS_VECTOR_H
#define BERTH_TRAIN_DEVICE_CPU_KERNELS_VECTOR_H

#include <string.h>

#include "train/device/cpu/kernels.h"

#define LANES KERNEL_LANES
#ifdef __AVX512F__
#define WIDTH 16
#elif defined __AVX2__
#define WIDTH 8
#else
#define WIDTH 4
#endif
#define SMALL 16384 /* elements; with fewer it does not pay to wake threads */

typedef float vector __attribute__((vector_size(4 * WIDTH)));
typedef int32_t mask __attribute__((vector_size(4 * WIDTH)));
typedef float in_memory __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

/* Inlined, so that a constant count of WIDTH makes load and store one instruction. */
#define INLINE __attribute__((always_inline))

/* count numbers, then zeros. */
static inline INLINE vector load(const float *from, size_t count)
{
	vector value = {0};

	if (count == WIDTH)
		return *(const in_memory *)from;
	memcpy(&value, from, count * sizeof *from);
	return value;
}

static inline INLINE void store(float *to, vector value, size_t count)
{
	if (count == WIDTH)
		*(in_memory *)to = value;
	else
		memcpy(to, &value, count * sizeof *to);
}

static inline size_t plane_size(const struct planes *planes)
{
	return planes->height * planes->width * planes->block;
}

/* The name of a function in this instruction set's variant. */
#define KERNEL_OF(set, name) set##_##name
#define KERNEL_IN(set, name) KERNEL_OF(set, name)
#define KERNEL(name) KERNEL_IN(KERNELS_NAME, name)

/* Pooling: see struct kernels. */
void KERNEL(maxpool_forward)(const struct planes *x, const struct op_attributes *attributes,
			     const float *from, float *y, uint16_t *places);
void KERNEL(maxpool_backward)(const struct planes *x, const struct op_attributes *attributes,
			      const uint16_t *places, const float *dy, float *dx);
void KERNEL(avgpool_forward)(const struct planes *x, const float *from, float *y);
void KERNEL(avgpool_backward)(const struct planes *x, const float *dy, float *dx);

#endif
