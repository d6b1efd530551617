/* SPDX-License-Identifier: BSD-3-Clause */
/* See dnnl.h: convolutions and linear layers. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "train/device/cpu/dnnl_primitive.h"

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

/* What the primitives read and write. The bias comes last: without one, the count is one less. */
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

struct cpu_conv {
	struct dnnl_context *dnnl;
	const struct winograd *winograd; /* instead of the parts */
	struct winograd_call call;	 /* its sizes */
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

static const_dnnl_memory_desc_t nhwc_md(struct dnnl_context *dnnl, const struct layout *layout)
{
	dnnl_dims_t dims = {layout->n, layout->channels, layout->height, layout->width};

	return md_make(dnnl, 4, dims, dnnl_nhwc);
}

/* y of a convolution of x. One block of 16 channels equals NHWC, but oneDNN has code for it
 * together with an NHWC x only under that name. */
static const_dnnl_memory_desc_t result_md(struct dnnl_context *dnnl, const struct layout *x,
					  const struct layout *y)
{
	return is_nhwc(x) && y->channels <= LAYOUT_NARROW ? nhwc_md(dnnl, y) : layout_md(dnnl, y);
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
	return (struct conv_mds){.x = request->rows ? nhwc_md(dnnl, x) : layout_md(dnnl, &in),
				 .w = md_make(dnnl, 4, w_dims, dnnl_format_tag_any),
				 .b = request->bias ? md_make(dnnl, 1, b_dims, dnnl_a) : NULL,
				 .y = request->rows ? nhwc_md(dnnl, &out)
						    : result_md(dnnl, &in, &out),
				 .strides = {window->stride, window->stride},
				 .pads = {window->pad, window->pad}};
}

/* The same after the forward pass has chosen the layouts. */
static struct conv_mds chosen_mds(struct dnnl_context *dnnl, const struct cpu_conv_request *request,
				  const struct cpu_conv_choice *choice)
{
	struct conv_mds mds = conv_mds(dnnl, request, 0);

	if (!request->rows) {
		mds.x = layout_md(dnnl, &choice->x);
		mds.y = result_md(dnnl, &choice->x, &choice->y);
	}
	return mds;
}

static struct layout layout_of(struct dnnl_context *dnnl, const struct cpu_conv_request *request,
			       const_dnnl_memory_desc_t md)
{
	struct layout layout = md_layout(dnnl, md);

	if (request->rows)
		layout.block = layout.channels;
	return layout;
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

static int conv_desc(struct cpu_conv *conv, const struct cpu_conv_request *request,
		     const struct conv_mds *mds, enum conv_part kind,
		     const_dnnl_primitive_desc_t hint, dnnl_primitive_desc_t *out,
		     struct error *err)
{
	static const dnnl_dims_t dilates = {0};
	const struct dnnl_context *dnnl = conv->dnnl;
	dnnl_alg_kind_t algorithm = dnnl_convolution_direct;
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
	if (!status && rank_of(desc) < conv->rank)
		conv->rank = rank_of(desc);
	return desc_result(status, desc, "a convolution", out, err);
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
		int rc = conv_desc(conv, request, &mds, CONV_FORWARD, NULL, &desc, err);

		if (rc)
			return rc;
		if (!desc)
			continue;
		choice->x = layout_of(conv->dnnl, request,
				      dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0));
		choice->y = layout_of(conv->dnnl, request,
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
	struct conv_mds mds = chosen_mds(conv->dnnl, request, choice);
	dnnl_primitive_desc_t desc = NULL;
	struct layout any = choice->x;
	/* Try the layout of x first, which needs no reorder. */
	int rc = conv_desc(conv, request, &mds, CONV_INPUT, hint, &desc, err);

	any.block = 0;
	if (!rc && !desc && !request->rows) {
		mds.x = layout_md(conv->dnnl, &any);
		rc = conv_desc(conv, request, &mds, CONV_INPUT, hint, &desc, err);
	}
	if (rc)
		return rc;
	if (!desc)
		return dnnl_failed(dnnl_unimplemented, "a convolution's gradient", err);

	choice->dx = layout_of(conv->dnnl, request,
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
	struct conv_mds mds = chosen_mds(conv->dnnl, request, choice);
	dnnl_primitive_desc_t desc = NULL;
	int rc = conv_desc(conv, request, &mds, CONV_WEIGHTS, hint, &desc, err);

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

/* Winograd's algorithm if the sizes allow it and it pays; *out stays NULL otherwise. */
static int conv_new_winograd(const struct cpu_conv_request *request, struct cpu_conv **out,
			     struct cpu_conv_choice *choice, struct error *err)
{
	const struct winograd *winograd = request->winograd;
	const struct op_attributes *window = &request->window;
	const struct layout *x = &request->x;
	int lanes = winograd ? (int)winograd->lanes : 0;
	struct winograd_call call = {.n = (size_t)x->n,
				     .inputs = (size_t)x->channels,
				     .outputs = (size_t)request->outputs,
				     .height = (size_t)x->height,
				     .width = (size_t)x->width,
				     .pad = (size_t)window->pad,
				     .threads = omp_get_max_threads()};

	if (!winograd || window->kernel != 3 || window->stride != 1 || window->pad > 2 ||
	    x->channels % lanes || request->outputs % lanes || !winograd->pays(&call))
		return 0;
	*out = calloc(1, sizeof **out);
	if (!*out)
		return error_memory(err, "a layer");
	(*out)->winograd = winograd;
	(*out)->call = call;
	(*out)->bias = request->bias;
	choice->x = choice->dx = (struct layout){x->n, x->channels, x->height, x->width, lanes};
	choice->y = (struct layout){x->n, request->outputs, (int)op_side(x->height, window),
				    (int)op_side(x->width, window), lanes};
	choice->scratch = winograd->scratch(&call);
	return 0;
}

/* The layout that oneDNN prefers for the forward pass may force loops in the backward pass, as for
 * an image of 3 channels in blocks of 16. So take the first choice without loops. For few channels
 * (6 to 16 of 5x5) specialised code exists only in NHWC; other layouts then take 4 times as long as
 * a matrix multiplication. */
int cpu_conv_new(struct dnnl_context *dnnl, const struct cpu_conv_request *request,
		 struct cpu_conv **out, struct cpu_conv_choice *choice, struct error *err)
{
	bool nhwc = request->nhwc && request->x.channels <= LAYOUT_NARROW &&
		    request->outputs <= LAYOUT_NARROW;
	const int blocks[] = {request->x.block, 0, request->x.channels};
	struct cpu_conv *best = NULL;
	int rc = conv_new_winograd(request, out, choice, err);

	if (rc || *out)
		return rc;
	if (request->rows)
		return conv_try(dnnl, request, out, choice, err);
	for (int i = request->x.block ? 0 : 1; i < (nhwc ? 3 : 2) && (!best || best->rank < 2);
	     i++) {
		struct cpu_conv_request wanted = *request;
		struct cpu_conv_choice found;
		struct cpu_conv *conv = NULL;

		wanted.x.block = blocks[i];
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

/* One pass of Winograd's algorithm. */
static int run_winograd(const struct cpu_conv *conv, const struct layer_memory *memory,
			void (*pass)(const struct winograd_call *call))
{
	struct winograd_call call = conv->call;

	call.x = memory->x;
	call.w = memory->w;
	call.b = conv->bias ? memory->b : NULL;
	call.dy = memory->dy;
	call.y = memory->y;
	call.dx = memory->dx;
	call.dw = memory->dw;
	call.db = conv->bias ? memory->db : NULL;
	call.add_dw = memory->add_dw;
	call.scratch = memory->scratch;
	pass(&call);
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

	if (conv->winograd)
		return run_winograd(conv, memory, conv->winograd->forward);
	return run_with_weights(conv, CONV_FORWARD, PACK_FORWARD, memory, data, "a convolution",
				err);
}

int cpu_conv_backward_input(struct cpu_conv *conv, const struct layer_memory *memory,
			    struct error *err)
{
	const void *data[] = {memory->dy, NULL, memory->dx};

	if (conv->winograd)
		return run_winograd(conv, memory, conv->winograd->backward_input);
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
	int rc;

	if (conv->winograd)
		return run_winograd(conv, memory, conv->winograd->backward_weights);
	rc = primitive_run(conv->dnnl, &conv->parts[CONV_WEIGHTS], data, scratch,
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
