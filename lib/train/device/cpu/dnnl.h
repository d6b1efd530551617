/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolutions and linear layers: oneDNN behind berth's own interface, and Winograd's algorithm
 * (winograd.h) where it pays. Only the dnnl*.c files call oneDNN.
 *
 * Weights, biases and their gradients are always dense to callers (OIHW, [out][in]); values have
 * the given layout. A primitive uses as many threads as OpenMP provides, and all functions block
 * until the work is done. Memory must hold what the layouts describe, aligned to 4 bytes (64 is
 * faster). Errors: -ERR_UNAVAILABLE if oneDNN has no implementation or memory is out. */
#ifndef BERTH_TRAIN_CPU_DNNL_H
#define BERTH_TRAIN_CPU_DNNL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "train/device/cpu/winograd.h"
#include "train/device/device.h"

/* The layout of a value: NCHW in blocks of `block` channels. 1 is dense, 8 is nChw8c, 16 is
 * nChw16c, and the number of channels is NHWC. Zeros fill up the last block. block 0 in a request
 * lets oneDNN choose. */
struct layout {
	int n, channels, height, width, block;
};
size_t layout_count(const struct layout *layout); /* floats, including the padding */
bool layout_equal(const struct layout *a, const struct layout *b); /* the same order in memory */

struct dnnl_context; /* opaque */
int dnnl_context_new(struct dnnl_context **out, struct error *err);
void dnnl_context_free(struct dnnl_context *dnnl); /* NULL is fine */
/* "oneDNN 2.6.3". */
void dnnl_context_describe(char *text, size_t size);

/* ---- a value from one layout to another ---- */

struct cpu_reorder; /* opaque */
int cpu_reorder_new(struct dnnl_context *dnnl, const struct layout *from, const struct layout *to,
		    struct cpu_reorder **out, struct error *err);
int cpu_reorder_run(struct cpu_reorder *copy, const float *from, float *to, struct error *err);
void cpu_reorder_free(struct cpu_reorder *copy); /* NULL is fine */

/* ---- convolution and linear layer ---- */

struct cpu_conv_request {
	struct layout x; /* the layout that x has; kept unless that costs speed */
	int outputs;
	struct op_attributes window;
	bool bias;
	bool backward;			 /* the gradients of weights and bias */
	bool dx;			 /* and the gradient of x */
	const struct winograd *winograd; /* used where it pays; NULL: nowhere */
	/* x and y may be NHWC if they have at most LAYOUT_NARROW channels. */
	bool nhwc;
	/* x, y and dx are NHWC. A linear layer on n samples is a 1x1 convolution of one image of
	 * n rows. */
	bool rows;
};
#define LAYOUT_NARROW 16
/* What was chosen: the layouts of x, y (dy has y's) and dx, and the floats of scratch per
 * call. */
struct cpu_conv_choice {
	struct layout x, y, dx;
	size_t scratch;
};
/* The memory of one call; pointers that it does not need may be NULL. add_dw adds to dw and db.
 * scratch is 64-byte aligned; its contents are not kept between calls. */
struct layer_memory {
	const float *x, *w, *b, *dy;
	float *y, *dx, *dw, *db, *scratch;
	bool add_dw;
};

struct cpu_conv; /* opaque */
int cpu_conv_new(struct dnnl_context *dnnl, const struct cpu_conv_request *request,
		 struct cpu_conv **out, struct cpu_conv_choice *choice, struct error *err);
int cpu_conv_forward(struct cpu_conv *conv, const struct layer_memory *memory, struct error *err);
int cpu_conv_backward_weights(struct cpu_conv *conv, const struct layer_memory *memory,
			      struct error *err);
int cpu_conv_backward_input(struct cpu_conv *conv, const struct layer_memory *memory,
			    struct error *err);
void cpu_conv_free(struct cpu_conv *conv); /* NULL is fine */

#endif
