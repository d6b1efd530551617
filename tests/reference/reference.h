/* SPDX-License-Identifier: BSD-3-Clause */
/* The device "cpu-reference": the ops in plain C, against which other devices are tested. It takes
 * every sum in one fixed order on one thread, so the same input gives the same bits. The module
 * device-cpu-reference.so is built with the tests and not installed. */
#ifndef BERTH_TRAIN_REFERENCE_H
#define BERTH_TRAIN_REFERENCE_H

#include "train/device/device.h"
#include "train/executor/executor.h"

/* A device of ops, which op_executor drives; device.executor points to that. */
struct op_device_ops {
	struct device_ops device;
	/* One op; -ERR_UNAVAILABLE for an op that the device lacks. */
	int (*run)(struct device_queue *queue, const struct op_call *call, struct error *err);
};

extern const struct op_device_ops device_cpu_reference;
/* Runs the ops of a device in order. It plans nothing: each value and each
 * gradient has memory of its own. */
extern const struct executor_ops op_executor;

struct reference {
	struct device device;
	float *scratch; /* grown by reference_scratch */
	size_t scratch_count;
};

/* Room for count floats, 64-byte aligned, valid until the next call. NULL if memory is out. */
float *reference_scratch(struct reference *reference, size_t count);

/* The number of floats in matrix_multiply's pack. */
#define MATRIX_PACK(depth) ((size_t)(depth)*32)

/* A matrix whose element (i, j) is at[i * row + j * column]; a transposed one has row 1. */
struct matrix {
	const float *at;
	size_t row, column;
};

/* C[rows][columns] = A B; if add is set, C += A B. A [rows][depth] may be transposed. Rows of B
 * [depth][columns] are b_row apart, those of C c_row apart. Each element is summed in ascending
 * order of depth. */
void matrix_multiply(size_t rows, size_t columns, size_t depth, struct matrix a, const float *b,
		     size_t b_row, float *c, size_t c_row, bool add, float *pack);
/* to[j][i] = from[i][j]. */
void matrix_transpose(size_t rows, size_t columns, const float *from, float *to);

/* Store a gradient: overwrite *to, or add to it. */
static inline void reference_put(float *to, double value, bool add)
{
	*to = (float)(add ? (double)*to + value : value);
}

int reference_conv2d(struct reference *reference, const struct op_call *call, struct error *err);
int reference_linear(struct reference *reference, const struct op_call *call, struct error *err);
void reference_relu(const struct op_call *call);
void reference_maxpool2d(const struct op_call *call);
void reference_batchnorm(const struct op_call *call);
void reference_add(const struct op_call *call);
void reference_avgpool(const struct op_call *call);
void reference_sgd(const struct op_call *call);

#endif
