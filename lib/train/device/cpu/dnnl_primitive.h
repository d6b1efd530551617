/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by dnnl.c and dnnl_layers.c: a oneDNN primitive with its arguments. */
#ifndef BERTH_TRAIN_CPU_DNNL_PRIMITIVE_H
#define BERTH_TRAIN_CPU_DNNL_PRIMITIVE_H

#include <dnnl.h>

#include "train/device/cpu/dnnl.h"

#if DNNL_VERSION_MAJOR != 2
#error "the cpu device requires oneDNN 2.x (libdnnl-dev); with other versions, configure with -Ddnnl=disabled"
#endif

#define PRIMITIVE_ARGUMENTS 6

struct dnnl_context {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_primitive_attr_t attr; /* the caller provides scratch memory */
};

/* The data of arguments[i].memory is at[i]; the scratchpad comes last. All zeros: no primitive. */
struct primitive {
	dnnl_primitive_t handle;
	dnnl_exec_arg_t arguments[PRIMITIVE_ARGUMENTS];
	const void *at[PRIMITIVE_ARGUMENTS];
	int count;
	size_t scratch; /* floats */
};

int dnnl_failed(dnnl_status_t status, const char *what, struct error *err); /* 0 for success */

/* Make a primitive descriptor from an op descriptor. *out is NULL without an error if there is no
 * implementation. */
int primitive_desc(const struct dnnl_context *dnnl, const void *op,
		   const_dnnl_primitive_desc_t hint, const char *what, dnnl_primitive_desc_t *out,
		   struct error *err);
/* The memory descriptor of desc for query and index. */
dnnl_memory_desc_t primitive_md(const_dnnl_primitive_desc_t desc, dnnl_query_t query, int index);
/* Make *out from desc, with one argument for each of count pairs. The scratchpad is added. */
struct primitive_argument {
	int argument; /* DNNL_ARG_... */
	dnnl_query_t query;
	int index; /* for the weights and their gradients: 1 is the bias */
};
int primitive_new(const struct dnnl_context *dnnl, const_dnnl_primitive_desc_t desc,
		  const struct primitive_argument *arguments, int count, const char *what,
		  struct primitive *out, struct error *err);
/* data holds one pointer per argument of primitive_new, in that order. */
int primitive_run(const struct dnnl_context *dnnl, struct primitive *primitive,
		  const void *const *data, float *scratch, const char *what, struct error *err);
void primitive_free(struct primitive *primitive);

/* Make a reorder; add: it adds to what is there. Two equal descriptors are allowed and give a plain
 * copy. */
int reorder_new(const struct dnnl_context *dnnl, const dnnl_memory_desc_t *from,
		const dnnl_memory_desc_t *to, bool add, struct primitive *out, struct error *err);

/* A descriptor of float32. All zeros for negative sizes, which op_check and the graph exclude. */
dnnl_memory_desc_t md_make(int rank, const dnnl_dims_t dims, dnnl_format_tag_t tag);
dnnl_memory_desc_t layout_md(const struct layout *layout);
/* The block of md, which describes a value of four dimensions; 0 if struct layout cannot express
 * it. */
int md_block(const dnnl_memory_desc_t *md);

#endif
