/* SPDX-License-Identifier: BSD-3-Clause */
/* The lower level: one op on dense tensors; everything it needs is made for the call and released
 * after it. This device's executor does not use it; the conformance suite does. */
#include <stdlib.h>
#include <string.h>

#include "train/device/cpu-reference/reference.h"
#include "train/device/cpu/cpu.h"

/* Memory for one call. */
struct workspace {
	void *memory[8];
	int count;
};

static float *workspace_floats(struct workspace *workspace, size_t count)
{
	float *memory = aligned_alloc(64, (count * sizeof(float) + 127) / 64 * 64);

	workspace->memory[workspace->count++] = memory;
	return memory;
}

static void workspace_free(struct workspace *workspace)
{
	while (workspace->count)
		free(workspace->memory[--workspace->count]);
}

static struct layout layout_of(const struct tensor *tensor)
{
	return (struct layout){(int)tensor->shape[0], (int)tensor->shape[1], (int)tensor->shape[2],
			       (int)tensor->shape[3], 1};
}

static int copy_once(struct cpu *cpu, const struct layout *from_layout, const float *from,
		     const struct layout *to_layout, float *to, struct error *err)
{
	struct cpu_reorder *copy = NULL;
	int rc = cpu_reorder_new(cpu->dnnl, from_layout, to_layout, &copy, err);

	if (!rc)
		rc = cpu_reorder_run(copy, from, to, err);
	cpu_reorder_free(copy);
	return rc;
}

/* Copy what op wrote elsewhere to its destination. */
static void put(struct cpu *cpu, const float *from, const struct tensor *to, bool add)
{
	size_t count = (size_t)tensor_count(to);

	if (add)
		cpu->kernels->add(to->data, from, to->data, count);
	else
		memcpy(to->data, from, count * sizeof(float));
}

/* ---- convolution ---- */

static int conv_run_forward(struct cpu *cpu, struct cpu_conv *conv,
			    const struct cpu_conv_choice *choice, const struct op_call *call,
			    struct workspace *workspace, struct error *err)
{
	const struct layout dense_x = layout_of(&call->x), dense_y = layout_of(&call->y);
	float *x = workspace_floats(workspace, layout_count(&choice->x));
	float *y = workspace_floats(workspace, layout_count(&choice->y));
	float *scratch = workspace_floats(workspace, choice->scratch);
	struct layer_memory memory = {
		.x = x, .w = call->w.data, .b = call->b.data, .y = y, .scratch = scratch};
	int rc = x && y && scratch ? 0 : error_memory(err, "a convolution");

	if (!rc)
		rc = copy_once(cpu, &dense_x, call->x.data, &choice->x, x, err);
	if (!rc)
		rc = cpu_conv_forward(conv, &memory, err);
	return rc ? rc : copy_once(cpu, &choice->y, y, &dense_y, call->y.data, err);
}

static int conv_run_backward(struct cpu *cpu, struct cpu_conv *conv,
			     const struct cpu_conv_choice *choice, const struct op_call *call,
			     struct workspace *workspace, struct error *err)
{
	const struct layout dense_x = layout_of(&call->x), dense_y = layout_of(&call->dy);
	float *x = workspace_floats(workspace, layout_count(&choice->x));
	float *dy = workspace_floats(workspace, layout_count(&choice->y));
	float *dx = workspace_floats(workspace, layout_count(&choice->dx));
	float *dense = workspace_floats(workspace, layout_count(&dense_x));
	float *scratch = workspace_floats(workspace, choice->scratch);
	float *dw = workspace_floats(workspace, (size_t)tensor_count(&call->w));
	struct layer_memory memory = {
		.x = x,
		.w = call->w.data,
		.dy = dy,
		.dx = dx,
		.dw = call->dw.data ? call->dw.data : dw,
		.db = call->db.data,
		.scratch = scratch,
		.add_dw = call->add_dw,
	};
	int rc = x && dy && dx && dense && scratch && dw ? 0 : error_memory(err, "a convolution");

	if (!rc)
		rc = copy_once(cpu, &dense_x, call->x.data, &choice->x, x, err);
	if (!rc)
		rc = copy_once(cpu, &dense_y, call->dy.data, &choice->y, dy, err);
	if (!rc && (call->dw.data || call->db.data))
		rc = cpu_conv_backward_weights(conv, &memory, err);
	if (rc || !call->dx.data)
		return rc;
	rc = cpu_conv_backward_input(conv, &memory, err);
	if (!rc)
		rc = copy_once(cpu, &choice->dx, dx, &dense_x, dense, err);
	if (!rc)
		put(cpu, dense, &call->dx, call->add_dx);
	return rc;
}

static int op_conv2d(struct cpu *cpu, const struct op_call *call, struct error *err)
{
	bool backward = call->pass == OP_BACKWARD;
	struct cpu_conv_request request = {
		.x = layout_of(&call->x),
		.outputs = (int)call->w.shape[0],
		.window = call->attributes,
		.bias = backward ? call->db.data != NULL : call->b.data != NULL,
		.backward = backward,
		.dx = backward && call->dx.data,
		.direct = true,
	};
	struct workspace workspace = {0};
	struct cpu_conv_choice choice;
	struct cpu_conv *conv = NULL;
	int rc;

	request.x.block = 0;
	rc = cpu_conv_new(cpu->dnnl, &request, &conv, &choice, err);
	if (!rc && backward)
		rc = conv_run_backward(cpu, conv, &choice, call, &workspace, err);
	else if (!rc)
		rc = conv_run_forward(cpu, conv, &choice, call, &workspace, err);
	cpu_conv_free(conv);
	workspace_free(&workspace);
	return rc;
}

/* ---- linear ---- */

static int op_linear(struct cpu *cpu, const struct op_call *call, struct error *err)
{
	bool backward = call->pass == OP_BACKWARD;
	bool bias = backward ? call->db.data != NULL : call->b.data != NULL;
	struct workspace workspace = {0};
	struct cpu_linear *linear = NULL;
	size_t scratch = 0;
	int rc = cpu_linear_new(cpu->dnnl, (int)call->x.shape[0], (int)call->w.shape[1],
				(int)call->w.shape[0], bias, backward, &linear, &scratch, err);

	if (rc)
		return rc;

	float *dx = workspace_floats(&workspace, (size_t)tensor_count(&call->x));
	float *dw = workspace_floats(&workspace, (size_t)tensor_count(&call->w));
	struct layer_memory memory = {
		.x = call->x.data,
		.w = call->w.data,
		.b = call->b.data,
		.y = call->y.data,
		.dy = call->dy.data,
		.dx = call->dx.data ? dx : NULL,
		.dw = call->dw.data ? call->dw.data : dw,
		.db = call->db.data,
		.scratch = workspace_floats(&workspace, scratch),
		.add_dw = call->add_dw,
	};

	rc = dx && dw && memory.scratch ? 0 : error_memory(err, "a linear layer");
	if (!rc)
		rc = backward ? cpu_linear_backward(linear, &memory, err)
			      : cpu_linear_forward(linear, &memory, err);
	if (!rc && backward && memory.dx)
		put(cpu, dx, &call->dx, call->add_dx);
	cpu_linear_free(linear);
	workspace_free(&workspace);
	return rc;
}

/* ---- own kernels ---- */

static int op_batchnorm(struct cpu *cpu, const struct op_call *call, struct error *err)
{
	const struct layout layout = layout_of(&call->x);
	struct workspace workspace = {0};
	const struct planes planes = planes_of(&layout);
	float *dx = call->add_dx ? workspace_floats(&workspace, layout_count(&layout)) : NULL;
	float *sums = workspace_floats(&workspace, 2 * norm_sums(&planes));
	float *lanes = workspace_floats(&workspace, norm_lanes(&planes));
	struct norm_call norm = {
		.planes = planes,
		.eps = call->batchnorm.eps,
		.momentum = call->batchnorm.momentum,
		.training = call->batchnorm.training,
		.add_dw = call->add_dw,
		.x = call->x.data,
		.w = call->w.data,
		.b = call->b.data,
		.y = call->y.data,
		.mean = call->mean.data,
		.variance = call->variance.data,
		.saved_mean = call->saved_mean.data,
		.saved_invstd = call->saved_invstd.data,
		.dy = call->dy.data,
		.dx = call->add_dx && call->dx.data ? dx : call->dx.data,
		.dw = call->dw.data,
		.db = call->db.data,
		.sums = (double *)sums,
		.lanes = lanes,
	};
	int rc = sums && lanes && (dx || !call->add_dx) ? 0 : error_memory(err, "batch norm");

	if (!rc && call->pass == OP_FORWARD)
		cpu->kernels->norm_forward(&norm);
	else if (!rc)
		cpu->kernels->norm_backward(&norm);
	if (!rc && call->pass == OP_BACKWARD && call->add_dx && call->dx.data)
		put(cpu, dx, &call->dx, true);
	workspace_free(&workspace);
	return rc;
}

/* Pooling and ReLU write all of dx, so an addition happens afterwards. */
static int op_planes(struct cpu *cpu, const struct op_call *call, struct error *err)
{
	const struct kernels *kernels = cpu->kernels;
	size_t count = (size_t)tensor_count(&call->x);
	struct workspace workspace = {0};
	const struct layout layout =
		call->kind == OP_RELU ? (struct layout){0} : layout_of(&call->x);
	const struct planes planes =
		call->kind == OP_RELU ? (struct planes){0} : planes_of(&layout);
	bool backward = call->pass == OP_BACKWARD;
	float *dx = call->add_dx ? workspace_floats(&workspace, count) : call->dx.data;
	float *y = workspace_floats(&workspace, (size_t)tensor_count(&call->y));
	uint16_t *argmax =
		(uint16_t *)workspace_floats(&workspace, (size_t)tensor_count(&call->y) / 2 + 1);
	int rc = y && argmax && (dx || !call->add_dx) ? 0 : error_memory(err, "an op");

	if (!rc && call->kind == OP_MAXPOOL2D)
		kernels->maxpool_forward(&planes, &call->attributes, call->x.data,
					 backward ? y : call->y.data, argmax);
	else if (!rc && !backward && call->kind == OP_RELU)
		kernels->relu_forward(call->x.data, call->y.data, count);
	else if (!rc && !backward)
		kernels->avgpool_forward(&planes, call->x.data, call->y.data);
	if (!rc && backward && call->dx.data) {
		if (call->kind == OP_MAXPOOL2D)
			kernels->maxpool_backward(&planes, &call->attributes, argmax, call->dy.data,
						  dx);
		else if (call->kind == OP_RELU)
			kernels->relu_backward(call->x.data, call->dy.data, dx, count);
		else
			kernels->avgpool_backward(&planes, call->dy.data, dx);
		if (call->add_dx)
			put(cpu, dx, &call->dx, true);
	}
	workspace_free(&workspace);
	return rc;
}

static void op_add(struct cpu *cpu, const struct op_call *call)
{
	if (call->pass == OP_FORWARD) {
		cpu->kernels->add(call->x.data, call->x2.data, call->y.data,
				  (size_t)tensor_count(&call->y));
		return;
	}
	if (call->dx.data)
		put(cpu, call->dy.data, &call->dx, call->add_dx);
	if (call->dx2.data)
		put(cpu, call->dy.data, &call->dx2, call->add_dx2);
}

/* ---- all ---- */

/* The reference device handles batches without samples, and windows with more elements than
 * uint16_t can count. */
static int op_of_reference(const struct op_call *call, struct error *err)
{
	struct reference reference = {0};
	int rc = 0;

	switch (call->kind) {
	case OP_CONV2D:
		rc = reference_conv2d(&reference, call, err);
		break;
	case OP_LINEAR:
		rc = reference_linear(&reference, call, err);
		break;
	case OP_RELU:
		reference_relu(call);
		break;
	case OP_MAXPOOL2D:
		reference_maxpool2d(call);
		break;
	case OP_BATCHNORM:
		reference_batchnorm(call);
		break;
	case OP_ADD:
		reference_add(call);
		break;
	default:
		reference_avgpool(call);
	}
	free(reference.scratch);
	return rc;
}

static int op_of_host(struct cpu *cpu, const struct op_call *call, struct error *err)
{
	switch (call->kind) {
	case OP_CROSS_ENTROPY:
		return reference_cross_entropy(call, err);
	case OP_MSE:
		reference_mse(call);
		return 0;
	case OP_LABEL_RANK:
		return reference_label_rank(call, err);
	case OP_SGD:
		cpu->kernels->sgd(&call->sgd, call->w.data, call->dw.data, call->state.data,
				  (size_t)call->w.shape[0]);
		return 0;
	default:
		return error_set(err, ERR_UNAVAILABLE, "the cpu device does not support op %s",
				 op_name(call->kind));
	}
}

int cpu_op(struct cpu *cpu, const struct op_call *call, struct error *err)
{
	if (call->kind > OP_AVGPOOL)
		return op_of_host(cpu, call, err);
	if (!tensor_count(&call->x) ||
	    (call->kind == OP_MAXPOOL2D && call->attributes.kernel > 255))
		return op_of_reference(call, err);
	switch (call->kind) {
	case OP_CONV2D:
		return op_conv2d(cpu, call, err);
	case OP_LINEAR:
		return op_linear(cpu, call, err);
	case OP_BATCHNORM:
		return op_batchnorm(cpu, call, err);
	case OP_ADD:
		op_add(cpu, call);
		return 0;
	default:
		return op_planes(cpu, call, err);
	}
}
