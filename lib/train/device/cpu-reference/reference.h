/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside the reference device. It takes every sum in one fixed order on one thread, so the same
 * input gives the same bits. */
#ifndef BERTH_TRAIN_REFERENCE_H
#define BERTH_TRAIN_REFERENCE_H

#include "train/device/device.h"

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
/* OP_CROSS_ENTROPY, OP_MSE or OP_LABEL_RANK. */
int reference_loss(const struct op_call *call, struct error *err);
void reference_sgd(const struct op_call *call);

#endif
