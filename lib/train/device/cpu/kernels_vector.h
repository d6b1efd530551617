/* SPDX-License-Identifier: BSD-3-Clause */
/* Vectors of 16 numbers, which the compiler maps to the instruction set. For the files that are
 * compiled once per set. */
#ifndef BERTH_TRAIN_DEVICE_CPU_KERNELS_VECTOR_H
#define BERTH_TRAIN_DEVICE_CPU_KERNELS_VECTOR_H

#include "train/device/cpu/kernels.h"

/* Vectors wider than a register are never passed to functions. */
#pragma GCC diagnostic ignored "-Wpsabi"

#define LANES KERNEL_LANES
#define SMALL 16384 /* elements; with fewer it does not pay to wake threads */

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));
typedef float in_memory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static inline vector load(const float *from)
{
	return *(const in_memory *)from;
}

static inline void store(float *to, vector value)
{
	*(in_memory *)to = value;
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
