/* SPDX-License-Identifier: BSD-3-Clause */
/* Convolution and the linear layer. */
#include <stdlib.h>
#include <string.h>

#include "train/device/cpu/dnnl_primitive.h"

/* What primitives of both kinds of layer read and write. The bias comes last: without one, the
 * count is one less. */
static const struct primitive_argument forward_arguments[] = {
	{DNNL_ARG_SRC, dnnl_query_src_md, 0},
	{DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
	{DNNL_ARG_DST, dnnl_query_dst_md, 0},
	{DNNL_ARG_BIAS, dnnl_query_weights_md, 1},
};
static const struct primitive_argument input_arguments[] = {
	{DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
	{DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0},
	{DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, 0},
};
static const struct primitive_argument weights_arguments[] = {
	{DNNL_ARG_SRC, dnnl_query_src_md, 0},
	{DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, 0},
	{DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md, 0},
	{DNNL_ARG_DIFF_BIAS, dnnl_query_diff_weights_md, 1},
};

/* ---- convolution ---- */

/* Weights are converted to a primitive's layout right before it runs, while they are in the cache.
 * Gradients of weights are converted back right after. The converted copies are not kept. PACK_*
 * and UNPACK do not exist if the layout is the dense one. */
enum conv_part {
	CONV_FORWARD,
	CONV_INPUT,
	CONV_WEIGHTS,
	PACK_FORWARD,
	PACK_INPUT,
	UNPACK,
	UNPACK_ADD,
	CONV_PARTS
};

struct cpu_conv {
	struct dnnl_context *dnnl;
	struct primitive parts[CONV_PARTS];
	bool bias;
	size_t pack; /* floats of scratch before the primitives' own */
	size_t outputs;
	int rank;	      /* rank of its slowest implementation: see rank_of */
	float *bias_gradient; /* [outputs], to be added */
};

/* The descriptors of one convolution. */
struct conv_mds {
	const_dnnl_memory_desc_t x, w, b, y; /* b: NULL without a bias */
	dnnl_dims_t strides, pads;
};

static bool is_nhwc(const struct layout *layout)
{
	return layout->block == layout->channels && layout->block != 1 && layout->block != 8 &&
	       layout->block != 16;
}

/* y of a convolution of x. One block of 16 channels equals NHWC, but oneDNN has code for it
 * together with an NHWC x only under that name. */
static const_dnnl_memory_desc_t result_md(struct dnnl_context *dnnl, const struct layout *x,
					  const struct layout *y)
{
	dnnl_dims_t dims = {y->n, y->channels, y->height, y->width};

	return is_nhwc(x) && y->channels <= LAYOUT_NARROW ? md_make(dnnl, 4, dims, dnnl_nhwc)
							  : layout_md(dnnl, y);
}

static struct conv_mds conv_mds(struct dnnl_context *dnnl, const struct cpu_conv_request *request,
				int block)
{
	const struct layout *x = &request->x;
	const struct op_attributes *window = &request->window;
	struct layout in = *x, out = {x->n, request->outputs, (int)op_side(x->height, window),
				      (int)op_side(x->width, window), block};
	dnnl_dims_t w_dims = {request->outputs, x->channels, window->kernel, window->kernel};
	dnnl_dims_t b_dims = {request->outputs};

	if (block)
		in.block = block;
	return (struct conv_mds){.x = layout_md(dnnl, &in),
				 .w = md_make(dnnl, 4, w_dims, dnnl_format_tag_any),
				 .b = request->bias ? md_make(dnnl, 1, b_dims, dnnl_a) : NULL,
				 .y = result_md(dnnl, &in, &out),
				 .strides = {window->stride, window->stride},
				 .pads = {window->pad, window->pad}};
}

/* The quality of an implementation: 0 loops ("ref"), 1 matrix multiplication, 2 specialised. */
static int rank_of(const_dnnl_primitive_desc_t desc)
{
	const char *name = NULL;

	if (dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name) || !name)
		return 0;
	return !strncmp(name, "ref", 3) ? 0 : strstr(name, "gemm") ? 1 : 2;
}

/* *out is NULL without an error if there is no implementation. */
static int desc_result(dnnl_status_t status, dnnl_primitive_desc_t desc, const char *what,
		       dnnl_primitive_desc_t *out, struct error *err)
{
	*out = status ? NULL : desc;
	return status == dnnl_unimplemented ? 0 : dnnl_failed(status, what, err);
}

static int conv_desc(const struct cpu_conv *conv, const struct cpu_conv_request *request,
		     const struct conv_mds *mds, enum conv_part kind,
		     const_dnnl_primitive_desc_t hint, bool direct, dnnl_primitive_desc_t *out,
		     struct error *err)
{
	static const dnnl_dims_t dilates = {0};
	const struct dnnl_context *dnnl = conv->dnnl;
	dnnl_alg_kind_t algorithm = direct ? dnnl_convolution_direct : dnnl_convolution_auto;
	dnnl_primitive_desc_t desc = NULL;
	dnnl_status_t status;

	if (kind == CONV_FORWARD)
		status = dnnl_convolution_forward_primitive_desc_create(
			&desc, dnnl->engine,
			request->backward ? dnnl_forward_training : dnnl_forward_inference,
			algorithm, mds->x, mds->w, mds->b, mds->y, mds->strides, dilates, mds->pads,
			mds->pads, dnnl->attr);
	else if (kind == CONV_INPUT)
		status = dnnl_convolution_backward_data_primitive_desc_create(
			&desc, dnnl->engine, algorithm, mds->x, mds->w, mds->y, mds->strides,
			dilates, mds->pads, mds->pads, hint, dnnl->attr);
	else
		status = dnnl_convolution_backward_weights_primitive_desc_create(
			&desc, dnnl->engine, algorithm, mds->x, mds->w, mds->b, mds->y,
			mds->strides, dilates, mds->pads, mds->pads, hint, dnnl->attr);
	return desc_result(status, desc, "a convolution", out, err);
}

/* As direct requests, or direct if the other has no implementation. */
static int conv_desc_any(struct cpu_conv *conv, const struct cpu_conv_request *request,
			 const struct conv_mds *mds, enum conv_part kind,
			 const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out,
			 struct error *err)
{
	int rc = conv_desc(conv, request, mds, kind, hint, request->direct, out, err);

	if (!rc && !*out && !request->direct)
		rc = conv_desc(conv, request, mds, kind, hint, true, out, err);
	if (!rc && *out && rank_of(*out) < conv->rank)
		conv->rank = rank_of(*out);
	return rc;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

static size_t md_floats(const_dnnl_memory_desc_t md)
{
	return (dnnl_memory_desc_get_size(md) + 63) / 64 * 16;
}

/* Make a reorder from dense weights to md's layout, unless they are equal. */
static int conv_pack(struct cpu_conv *conv, const_dnnl_memory_desc_t md, enum conv_part part,
		     struct error *err)
{
	const_dnnl_memory_desc_t from = md_make(conv->dnnl, 4, md_dims(md), dnnl_oihw);

	if (dnnl_memory_desc_equal(from, md))
		return 0;
	conv->pack = larger(conv->pack, md_floats(md));
	return reorder_new(conv->dnnl, from, md, false, &conv->parts[part], err);
}

static int conv_unpack(struct cpu_conv *conv, const_dnnl_memory_desc_t md, struct error *err)
{
	const_dnnl_memory_desc_t to = md_make(conv->dnnl, 4, md_dims(md), dnnl_oihw);
	int rc = reorder_new(conv->dnnl, md, to, true, &conv->parts[UNPACK_ADD], err);

	conv->pack = larger(conv->pack, md_floats(md));
	if (!rc && !dnnl_memory_desc_equal(to, md))
		rc = reorder_new(conv->dnnl, md, to, false, &conv->parts[UNPACK], err);
	return rc;
}

/* Choose the forward pass among layouts that struct layout can express. */
static int conv_new_forward(struct cpu_conv *conv, const struct cpu_conv_request *request,
			    struct cpu_conv_choice *choice, dnnl_primitive_desc_t *out,
			    struct error *err)
{
	dnnl_primitive_desc_t desc = NULL;

	for (int block = 0; block < 2; block++) {
		struct conv_mds mds = conv_mds(conv->dnnl, request, block);
		int rc = conv_desc_any(conv, request, &mds, CONV_FORWARD, NULL, &desc, err);

		if (rc)
			return rc;
		if (!desc)
			continue;
		choice->x = md_layout(conv->dnnl,
				      dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0));
		choice->y = md_layout(conv->dnnl,
				      dnnl_primitive_desc_query_md(desc, dnnl_query_dst_md, 0));
		if (choice->x.block && choice->y.block)
			break;
		dnnl_primitive_desc_destroy(desc);
		desc = NULL;
	}
	if (!desc)
		return dnnl_failed(dnnl_unimplemented, "a convolution", err);
	*out = desc;

	int rc = conv_pack(conv, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0),
			   PACK_FORWARD, err);

	return rc ? rc
		  : primitive_new(conv->dnnl, desc, forward_arguments, request->bias ? 4 : 3,
				  "a convolution", &conv->parts[CONV_FORWARD], err);
}

static int conv_new_input(struct cpu_conv *conv, const struct cpu_conv_request *request,
			  const_dnnl_primitive_desc_t hint, struct cpu_conv_choice *choice,
			  struct error *err)
{
	struct conv_mds mds = conv_mds(conv->dnnl, request, 0);
	dnnl_primitive_desc_t desc = NULL;
	struct layout any = choice->x;
	int rc = 0;

	any.block = 0;
	mds.y = result_md(conv->dnnl, &choice->x, &choice->y);
	/* Try the layout of x first, which needs no reorder. */
	for (int i = 0; !rc && !desc && i < 2; i++) {
		mds.x = layout_md(conv->dnnl, i ? &any : &choice->x);
		rc = conv_desc_any(conv, request, &mds, CONV_INPUT, hint, &desc, err);
	}
	if (rc)
		return rc;
	if (!desc)
		return dnnl_failed(dnnl_unimplemented, "a convolution's gradient", err);

	choice->dx = md_layout(conv->dnnl,
			       dnnl_primitive_desc_query_md(desc, dnnl_query_diff_src_md, 0));
	rc = choice->dx.block
		     ? conv_pack(conv, dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0),
				 PACK_INPUT, err)
		     : dnnl_failed(dnnl_unimplemented, "a convolution's gradient", err);
	if (!rc)
		rc = primitive_new(conv->dnnl, desc, input_arguments, 3, "a convolution's gradient",
				   &conv->parts[CONV_INPUT], err);
	dnnl_primitive_desc_destroy(desc);
	return rc;
}

static int conv_new_weights(struct cpu_conv *conv, const struct cpu_conv_request *request,
			    const_dnnl_primitive_desc_t hint, const struct cpu_conv_choice *choice,
			    struct error *err)
{
	struct conv_mds mds = conv_mds(conv->dnnl, request, 0);
	dnnl_primitive_desc_t desc = NULL;
	int rc;

	mds.x = layout_md(conv->dnnl, &choice->x);
	mds.y = result_md(conv->dnnl, &choice->x, &choice->y);
	rc = conv_desc_any(conv, request, &mds, CONV_WEIGHTS, hint, &desc, err);
	if (rc)
		return rc;
	if (!desc)
		return dnnl_failed(dnnl_unimplemented, "a convolution's gradient", err);

	rc = conv_unpack(conv, dnnl_primitive_desc_query_md(desc, dnnl_query_diff_weights_md, 0),
			 err);
	if (!rc)
		rc = primitive_new(conv->dnnl, desc, weights_arguments, request->bias ? 4 : 3,
				   "a convolution's gradient", &conv->parts[CONV_WEIGHTS], err);
	dnnl_primitive_desc_destroy(desc);
	return rc;
}

static int conv_try(struct dnnl_context *dnnl, const struct cpu_conv_request *request,
		    struct cpu_conv **out, struct cpu_conv_choice *choice, struct error *err)
{
	struct cpu_conv *conv = calloc(1, sizeof *conv);
	struct cpu_conv_choice found = {0};
	dnnl_primitive_desc_t forward = NULL;
	int rc = conv ? 0 : error_memory(err, "a layer");

	if (rc)
		return rc;
	conv->dnnl = dnnl;
	conv->bias = request->bias;
	conv->outputs = (size_t)request->outputs;
	conv->rank = 2;
	if (request->bias) {
		conv->bias_gradient = calloc(conv->outputs, sizeof(float));
		rc = conv->bias_gradient ? 0 : error_memory(err, "a layer");
	}
	if (!rc)
		rc = conv_new_forward(conv, request, &found, &forward, err);
	if (!rc && request->dx)
		rc = conv_new_input(conv, request, forward, &found, err);
	if (!rc && request->backward)
		rc = conv_new_weights(conv, request, forward, &found, err);
	if (forward)
		dnnl_primitive_desc_destroy(forward);
	if (rc) {
		cpu_conv_free(conv);
		return rc;
	}

	for (int i = 0; i < CONV_PARTS; i++)
		found.scratch = larger(found.scratch, conv->parts[i].scratch);
	found.scratch += conv->pack;
	*choice = found;
	*out = conv;
	return 0;
}

/* The layout that oneDNN prefers for the forward pass may force loops in the backward pass, as for
 * an image of 3 channels in blocks of 16. So take the first choice without loops. For few channels
 * (6 to 16 of 5x5) specialised code exists only in NHWC; other layouts then take 4 times as long as
 * a matrix multiplication. */
int cpu_conv_new(struct dnnl_context *dnnl, const struct cpu_conv_request *request,
		 struct cpu_conv **out, struct cpu_conv_choice *choice, struct error *err)
{
	struct cpu_conv *best = NULL;
	int rc = 0, first = request->x.block ? 0 : 1;
	bool nhwc = request->nhwc && request->x.channels <= LAYOUT_NARROW &&
		    request->outputs <= LAYOUT_NARROW;

	for (int i = first; i < (nhwc ? 5 : 4) && (!best || best->rank < 2);
	     i += i == 3 ? 1 : 1 + first) {
		struct cpu_conv_request wanted = *request;
		struct cpu_conv_choice found;
		struct cpu_conv *conv = NULL;

		wanted.direct = request->direct || i >= 2;
		if (i % 2)
			wanted.x.block = 0;
		if (i == 4)
			wanted.x.block = wanted.x.channels;
		rc = conv_try(dnnl, &wanted, &conv, &found, err);
		if (rc || (best && best->rank >= conv->rank)) {
			cpu_conv_free(conv);
			continue;
		}
		cpu_conv_free(best);
		best = conv;
		*choice = found;
	}
	if (!best)
		return rc;
	*out = best;
	return 0;
}

/* Run part with data, whose second place is for the weights in the layout that part needs. */
static int run_with_weights(struct cpu_conv *conv, enum conv_part part, enum conv_part pack,
			    const struct layer_memory *memory, const void **data, const char *what,
			    struct error *err)
{
	const void *weights[] = {memory->w, memory->scratch};
	float *scratch = memory->scratch + conv->pack;
	bool dense = !conv->parts[pack].handle;
	int rc = dense ? 0
		       : primitive_run(conv->dnnl, &conv->parts[pack], weights, scratch,
				       "a reorder of weights", err);

	data[1] = dense ? memory->w : memory->scratch;
	return rc ? rc : primitive_run(conv->dnnl, &conv->parts[part], data, scratch, what, err);
}

int cpu_conv_forward(struct cpu_conv *conv, const struct layer_memory *memory, struct error *err)
{
	const void *data[] = {memory->x, NULL, memory->y, memory->b};

	return run_with_weights(conv, CONV_FORWARD, PACK_FORWARD, memory, data, "a convolution",
				err);
}

int cpu_conv_backward_input(struct cpu_conv *conv, const struct layer_memory *memory,
			    struct error *err)
{
	const void *data[] = {memory->dy, NULL, memory->dx};

	return run_with_weights(conv, CONV_INPUT, PACK_INPUT, memory, data,
				"a convolution's gradient", err);
}

int cpu_conv_backward_weights(struct cpu_conv *conv, const struct layer_memory *memory,
			      struct error *err)
{
	bool straight = !conv->parts[UNPACK].handle && !memory->add_dw;
	float *dw = straight ? memory->dw : memory->scratch;
	float *db = memory->add_dw ? conv->bias_gradient : memory->db;
	float *scratch = memory->scratch + conv->pack;
	const void *data[] = {memory->x, memory->dy, dw, db}, *unpack[] = {dw, memory->dw};
	int rc = primitive_run(conv->dnnl, &conv->parts[CONV_WEIGHTS], data, scratch,
			       "a convolution's gradient", err);

	if (!rc && !straight)
		rc = primitive_run(conv->dnnl, &conv->parts[memory->add_dw ? UNPACK_ADD : UNPACK],
				   unpack, scratch, "a reorder of gradients", err);
	for (size_t i = 0; !rc && conv->bias && memory->add_dw && i < conv->outputs; i++)
		memory->db[i] += db[i];
	return rc;
}

void cpu_conv_free(struct cpu_conv *conv)
{
	if (!conv)
		return;
	for (int i = 0; i < CONV_PARTS; i++)
		primitive_free(&conv->parts[i]);
	free(conv->bias_gradient);
	free(conv);
}

/* ---- linear ---- */

struct cpu_linear {
	struct dnnl_context *dnnl;
	struct primitive forward, backward_input, backward_weights;
	bool bias;
	size_t weights, outputs;
};

struct linear_mds {
	const_dnnl_memory_desc_t x, w, b, y; /* b: NULL without a bias */
};

static struct linear_mds linear_mds(struct dnnl_context *dnnl, int n, int inputs, int outputs,
				    bool bias)
{
	dnnl_dims_t x = {n, inputs}, w = {outputs, inputs}, b = {outputs}, y = {n, outputs};

	return (struct linear_mds){md_make(dnnl, 2, x, dnnl_ab), md_make(dnnl, 2, w, dnnl_ab),
				   bias ? md_make(dnnl, 1, b, dnnl_a) : NULL,
				   md_make(dnnl, 2, y, dnnl_ab)};
}

/* Make *out from desc, which status belongs to, and free desc unless it is kept. */
static int linear_primitive(struct cpu_linear *linear, dnnl_status_t status,
			    dnnl_primitive_desc_t desc, const struct primitive_argument *arguments,
			    int count, struct primitive *out, dnnl_primitive_desc_t *kept,
			    struct error *err)
{
	int rc = dnnl_failed(status, "a linear layer", err);

	if (rc)
		return rc;
	rc = primitive_new(linear->dnnl, desc, arguments, count, "a linear layer", out, err);
	if (!rc && kept)
		*kept = desc;
	else
		dnnl_primitive_desc_destroy(desc);
	return rc;
}

static int linear_new_backward(struct cpu_linear *linear, const struct linear_mds *mds,
			       const_dnnl_primitive_desc_t hint, struct error *err)
{
	const struct dnnl_context *dnnl = linear->dnnl;
	dnnl_primitive_desc_t desc = NULL;
	dnnl_status_t status = dnnl_inner_product_backward_data_primitive_desc_create(
		&desc, dnnl->engine, mds->x, mds->w, mds->y, hint, dnnl->attr);
	int rc = linear_primitive(linear, status, desc, input_arguments, 3, &linear->backward_input,
				  NULL, err);

	if (rc)
		return rc;
	status = dnnl_inner_product_backward_weights_primitive_desc_create(
		&desc, dnnl->engine, mds->x, mds->w, mds->b, mds->y, hint, dnnl->attr);
	return linear_primitive(linear, status, desc, weights_arguments, linear->bias ? 4 : 3,
				&linear->backward_weights, NULL, err);
}

int cpu_linear_new(struct dnnl_context *dnnl, int n, int inputs, int outputs, bool bias,
		   bool backward, struct cpu_linear **out, size_t *scratch, struct error *err)
{
	struct cpu_linear *linear = calloc(1, sizeof *linear);
	struct linear_mds mds = linear_mds(dnnl, n, inputs, outputs, bias);
	dnnl_primitive_desc_t desc = NULL, forward = NULL;
	dnnl_status_t status;
	int rc;

	if (!linear)
		return error_memory(err, "a layer");
	linear->dnnl = dnnl;
	linear->bias = bias;
	linear->outputs = (size_t)outputs;
	linear->weights = (size_t)outputs * (size_t)inputs;
	status = dnnl_inner_product_forward_primitive_desc_create(
		&desc, dnnl->engine, backward ? dnnl_forward_training : dnnl_forward_inference,
		mds.x, mds.w, mds.b, mds.y, dnnl->attr);
	rc = linear_primitive(linear, status, desc, forward_arguments, bias ? 4 : 3,
			      &linear->forward, &forward, err);
	if (!rc && backward)
		rc = linear_new_backward(linear, &mds, forward, err);
	if (forward)
		dnnl_primitive_desc_destroy(forward);
	if (rc) {
		cpu_linear_free(linear);
		return rc;
	}
	*scratch = larger(linear->forward.scratch,
			  larger(linear->backward_input.scratch, linear->backward_weights.scratch));
	/* dx is added to, so it is computed in a buffer of its own first. */
	if (backward)
		*scratch += (linear->weights + linear->outputs + 31) / 16 * 16;
	*out = linear;
	return 0;
}

int cpu_linear_forward(struct cpu_linear *linear, const struct layer_memory *memory,
		       struct error *err)
{
	const void *data[] = {memory->x, memory->w, memory->y, memory->b};

	return primitive_run(linear->dnnl, &linear->forward, data, memory->scratch,
			     "a linear layer", err);
}

int cpu_linear_backward(struct cpu_linear *linear, const struct layer_memory *memory,
			struct error *err)
{
	size_t aside = memory->add_dw ? (linear->weights + linear->outputs + 31) / 16 * 16 : 0;
	float *scratch = memory->scratch + aside;
	float *dw = aside ? memory->scratch : memory->dw,
	      *db = aside ? dw + linear->weights : memory->db;
	const void *weights[] = {memory->x, memory->dy, dw, db};
	const void *input[] = {memory->dy, memory->w, memory->dx};
	int rc = primitive_run(linear->dnnl, &linear->backward_weights, weights, scratch,
			       "a linear layer's gradient", err);

	for (size_t i = 0; !rc && aside && i < linear->weights; i++)
		memory->dw[i] += dw[i];
	for (size_t i = 0; !rc && aside && linear->bias && i < linear->outputs; i++)
		memory->db[i] += db[i];
	if (!rc && memory->dx)
		rc = primitive_run(linear->dnnl, &linear->backward_input, input, scratch,
				   "a linear layer's gradient", err);
	return rc;
}

void cpu_linear_free(struct cpu_linear *linear)
{
	if (!linear)
		return;
	primitive_free(&linear->forward);
	primitive_free(&linear->backward_input);
	primitive_free(&linear->backward_weights);
	free(linear);
}
