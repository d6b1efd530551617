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

struct engine; /* opaque */
int engine_new(struct engine **out, struct error *err);
void engine_free(struct engine *engine); /* NULL is fine */
/* "oneDNN 2.6.3". */
void engine_describe(char *text, size_t size);

/* ---- a value from one layout to another ---- */

struct copy; /* opaque */
int copy_new(struct engine *engine, const struct layout *from, const struct layout *to,
	     struct copy **out, struct error *err);
int copy_run(struct copy *copy, const float *from, float *to, struct error *err);
void copy_free(struct copy *copy); /* NULL is fine */

/* ---- convolution and linear layer ---- */

struct conv_request {
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
struct conv_plan {
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

struct conv; /* opaque */
int conv_new(struct engine *engine, const struct conv_request *request, struct conv **out,
	     struct conv_plan *plan, struct error *err);
int conv_forward(struct conv *conv, const struct layer_memory *memory, struct error *err);
int conv_backward_weights(struct conv *conv, const struct layer_memory *memory, struct error *err);
int conv_backward_input(struct conv *conv, const struct layer_memory *memory, struct error *err);
void conv_free(struct conv *conv); /* NULL is fine */

/* x [n][inputs], y [n][outputs], dense. scratch: floats that a call needs. */
struct linear; /* opaque */
int linear_new(struct engine *engine, int n, int inputs, int outputs, bool bias, bool backward,
	       struct linear **out, size_t *scratch, struct error *err);
int linear_forward(struct linear *linear, const struct layer_memory *memory, struct error *err);
/* dx is written where it is not NULL. */
int linear_backward(struct linear *linear, const struct layer_memory *memory, struct error *err);
void linear_free(struct linear *linear); /* NULL is fine */

#endif
