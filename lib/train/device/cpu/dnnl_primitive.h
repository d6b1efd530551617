/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the dnnl*.c files: a oneDNN primitive with its arguments. */
#ifndef BERTH_TRAIN_CPU_DNNL_PRIMITIVE_H
#define BERTH_TRAIN_CPU_DNNL_PRIMITIVE_H

#include "train/device/cpu/dnnl.h"
#include "train/device/cpu/dnnl_api.h"

#define PRIMITIVE_ARGUMENTS 6

struct dnnl_context {
	dnnl_engine_t engine;
	dnnl_stream_t stream;
	dnnl_primitive_attr_t attr; /* the caller provides scratch memory */
	struct made_md *mds;	    /* what md_make made: one per shape and tag */
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
int reorder_new(const struct dnnl_context *dnnl, const_dnnl_memory_desc_t from,
		const_dnnl_memory_desc_t to, bool add, struct primitive *out, struct error *err);

/* A descriptor of float32, which belongs to the context. NULL for negative sizes, which op_check
 * and the graph exclude, and without memory; oneDNN refuses it. */
const_dnnl_memory_desc_t md_make(struct dnnl_context *dnnl, int rank, const dnnl_dims_t dims,
				 dnnl_format_tag_t tag);
const_dnnl_memory_desc_t layout_md(struct dnnl_context *dnnl, const struct layout *layout);
/* The layout of md, which describes a value of four dimensions; block 0 if struct layout cannot
 * express it. */
struct layout md_layout(struct dnnl_context *dnnl, const_dnnl_memory_desc_t md);

static inline size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

#endif
