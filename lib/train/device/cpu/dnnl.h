/* SPDX-License-Identifier: BSD-3-Clause */
/* oneDNN behind an interface of berth's own: dnnl.c and dnnl_layers.c are the only files that call
 * it, since 3.x has another C API than 2.x.
 *
 * Weights, biases and their gradients are outside always dense (OIHW, [out][in]); values lie as a
 * layout says. A primitive works on as many threads as OpenMP gives, and all functions block until
 * their work is done. Memory that a call names must hold what the layouts say, aligned to 4 bytes
 * (64 is faster). Errors: -ERR_UNAVAILABLE where oneDNN has no implementation or no memory. */
#ifndef BERTH_TRAIN_CPU_DNNL_H
#define BERTH_TRAIN_CPU_DNNL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "train/device/device.h"

/* A value: NCHW in blocks of `block` channels (1: dense; 8: nChw8c, 16: nChw16c; as many as there
 * are channels: NHWC), the last block filled up with zeros. block 0 in a request: whatever oneDNN
 * likes best. */
struct layout {
	int n, channels, height, width, block;
};
size_t layout_count(const struct layout *layout); /* floats, those that fill up included */
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
	struct layout x; /* as it lies, if that does not cost speed */
	int outputs;
	struct op_attributes window;
	bool bias;
	bool backward; /* the gradients of weights and bias */
	bool dx;       /* and that of x */
	bool direct;   /* no Winograd */
	bool nhwc;     /* up to LAYOUT_NARROW channels may also lie as NHWC, x and y */
};
#define LAYOUT_NARROW 16
/* What oneDNN chose: x and y (dy lies as y), dx, and the floats of scratch that a call needs. */
struct cpu_conv_choice {
	struct layout x, y, dx;
	size_t scratch;
};
/* What a call works on; those that it has no use for may be NULL. add_dw: dw and db are added to.
 * scratch: 64-byte aligned, contents not kept between calls. */
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

/* x [n][inputs], y [n][outputs], dense. scratch: floats that a call needs. */
struct cpu_linear; /* opaque */
int cpu_linear_new(struct dnnl_context *dnnl, int n, int inputs, int outputs, bool bias,
		   bool backward, struct cpu_linear **out, size_t *scratch, struct error *err);
int cpu_linear_forward(struct cpu_linear *linear, const struct layer_memory *memory,
		       struct error *err);
/* dx is written where it is not NULL. */
int cpu_linear_backward(struct cpu_linear *linear, const struct layer_memory *memory,
			struct error *err);
void cpu_linear_free(struct cpu_linear *linear); /* NULL is fine */

#endif
