/* SPDX-License-Identifier: BSD-3-Clause */
/* Between dnnl.c and dnnl_layers.c: a oneDNN primitive with its arguments. */
#ifndef BERTH_TRAIN_CPU_DNNL_PRIMITIVE_H
#define BERTH_TRAIN_CPU_DNNL_PRIMITIVE_H

#include <dnnl.h>

#include "train/device/cpu/dnnl.h"

#if DNNL_VERSION_MAJOR != 2
#error "the cpu device is written for oneDNN 2.x (libdnnl-dev): configure with -Ddnnl=disabled"
#endif

#define PRIMITIVE_ARGUMENTS 6

struct dnnl_context {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_primitive_attr_t attr; /* scratch memory is the caller's */
};

/* arguments[i].memory's data is at[i]; the scratchpad is the last. All zero: not there. */
struct primitive {
	dnnl_primitive_t handle;
	dnnl_exec_arg_t arguments[PRIMITIVE_ARGUMENTS];
	const void *at[PRIMITIVE_ARGUMENTS];
	int count;
	size_t scratch; /* floats */
};

int dnnl_failed(dnnl_status_t status, const char *what, struct error *err); /* 0 for success */

/* A primitive desc from an op desc; *out NULL without an error: there is no implementation. */
int primitive_desc(const struct dnnl_context *dnnl, const void *op,
		   const_dnnl_primitive_desc_t hint, const char *what, dnnl_primitive_desc_t *out,
		   struct error *err);
/* The memory desc that desc has for query, the index'th. */
dnnl_memory_desc_t primitive_md(const_dnnl_primitive_desc_t desc, dnnl_query_t query, int index);
/* Make out from desc, with an argument for each of count pairs. The scratchpad is added. */
struct primitive_argument {
	int argument; /* DNNL_ARG_... */
	dnnl_query_t query;
	int index; /* of the weights and their gradients: 1 is the bias */
};
int primitive_new(const struct dnnl_context *dnnl, const_dnnl_primitive_desc_t desc,
		  const struct primitive_argument *arguments, int count, const char *what,
		  struct primitive *out, struct error *err);
/* data: one pointer an argument of primitive_new, in that order. */
int primitive_run(const struct dnnl_context *dnnl, struct primitive *primitive,
		  const void *const *data, float *scratch, const char *what, struct error *err);
void primitive_free(struct primitive *primitive);

/* A reorder; add: to what is there. Two equal descs make one, too: a plain copy. */
int reorder_new(const struct dnnl_context *dnnl, const dnnl_memory_desc_t *from,
		const dnnl_memory_desc_t *to, bool add, struct primitive *out, struct error *err);

dnnl_memory_desc_t layout_md(const struct layout *layout);
/* The block of md, a value's of four dimensions, or 0 where layout has no word for it. */
int md_block(const dnnl_memory_desc_t *md);

#endif
