/* SPDX-License-Identifier: BSD-3-Clause */
/* See dnnl.h: the linear layer. */
#include <stdlib.h>

#include "train/device/cpu/dnnl_primitive.h"

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
