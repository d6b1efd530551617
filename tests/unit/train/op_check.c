/* SPDX-License-Identifier: BSD-3-Clause */
#include "op_check.h"

struct check {
	const struct op_call *call;
	struct error *err;
	int failed; /* the error code; 0: correct */
};

static void set_tensor_error(struct check *check, const char *tensor, const char *what)
{
	if (check->failed)
		return;
	check->failed = ERR_INTERNAL;
	error_set(check->err, ERR_INTERNAL, "op %s %s: tensor %s %s", op_name(check->call->kind),
		  check->call->pass == OP_FORWARD ? "forward" : "backward", tensor, what);
}

/* Check type and shape of one tensor; optional ones may be absent. */
static void expect(struct check *check, const char *name, const struct tensor *tensor,
		   bool optional, enum element_type type, int rank, const int64_t *shape)
{
	if (!tensor->data) {
		/* A tensor without elements needs no memory. */
		for (int i = 0; i < rank; i++)
			if (!shape[i])
				return;
		if (!optional)
			set_tensor_error(check, name, "is missing");
		return;
	}
	if (tensor->type != type)
		set_tensor_error(check, name, "has the wrong type");
	if (tensor->rank != rank)
		set_tensor_error(check, name, "has the wrong rank");
	for (int i = 0; i < rank; i++)
		if (tensor->shape[i] != shape[i])
			set_tensor_error(check, name, "has the wrong shape");
}

static void expect_results(struct check *check, int rank, const int64_t *y_shape)
{
	const struct op_call *call = check->call;
	bool backward = call->pass == OP_BACKWARD;

	expect(check, "y", &call->y, backward, ELEMENT_F32, rank, y_shape);
	if (!backward)
		return;
	expect(check, "dy", &call->dy, false, ELEMENT_F32, rank, y_shape);
	expect(check, "dx", &call->dx, true, ELEMENT_F32, call->x.rank, call->x.shape);
	if (call->w.data || call->dw.data)
		expect(check, "dw", &call->dw, true, ELEMENT_F32, call->w.rank, call->w.shape);
	if (call->db.data)
		expect(check, "db", &call->db, true, ELEMENT_F32, 1, y_shape + 1);
}

static void check_window(struct check *check)
{
	const struct op_call *call = check->call;
	const int64_t *x = call->x.shape, *w = call->w.shape;
	bool conv = call->kind == OP_CONV2D;
	int64_t k = call->attributes.kernel;

	int64_t y[4] = {x[0], conv ? w[0] : x[1], op_side(x[2], &call->attributes),
			op_side(x[3], &call->attributes)};

	if (y[2] < 1 || y[3] < 1)
		set_tensor_error(check, "x", "is smaller than the kernel");
	if (!conv && call->attributes.pad * 2 > k)
		set_tensor_error(check, "x", "is padded by more than half the kernel");
	expect(check, "x", &call->x, false, ELEMENT_F32, 4, x);
	if (conv) {
		int64_t w_shape[4] = {w[0], x[1], k, k};

		expect(check, "w", &call->w, false, ELEMENT_F32, 4, w_shape);
		expect(check, "b", &call->b, true, ELEMENT_F32, 1, w);
	}
	expect_results(check, 4, y);
}

static void check_linear(struct check *check)
{
	const struct op_call *call = check->call;
	int64_t n = call->x.rank ? call->x.shape[0] : 0, inputs = 1;

	if (call->x.rank < 1 || call->w.rank != 2) {
		set_tensor_error(check, "x or w", "has the wrong rank");
		return;
	}
	for (int i = 1; i < call->x.rank; i++)
		inputs *= call->x.shape[i];

	int64_t w_shape[2] = {call->w.shape[0], inputs}, y[2] = {n, call->w.shape[0]};

	expect(check, "x", &call->x, false, ELEMENT_F32, call->x.rank, call->x.shape);
	expect(check, "w", &call->w, false, ELEMENT_F32, 2, w_shape);
	expect(check, "b", &call->b, true, ELEMENT_F32, 1, w_shape);
	expect_results(check, 2, y);
}

static void check_batchnorm(struct check *check)
{
	const struct op_call *call = check->call;
	const int64_t *channels = call->x.shape + 1;
	bool backward = call->pass == OP_BACKWARD, training = call->batchnorm.training;

	expect(check, "x", &call->x, false, ELEMENT_F32, 4, call->x.shape);
	expect(check, "w", &call->w, false, ELEMENT_F32, 1, channels);
	expect(check, "b", &call->b, backward, ELEMENT_F32, 1, channels);
	expect(check, "mean", &call->mean, backward, ELEMENT_F32, 1, channels);
	expect(check, "variance", &call->variance, backward, ELEMENT_F32, 1, channels);
	expect(check, "saved_mean", &call->saved_mean, !backward && !training, ELEMENT_F32, 1,
	       channels);
	expect(check, "saved_invstd", &call->saved_invstd, !backward && !training, ELEMENT_F32, 1,
	       channels);
	expect_results(check, 4, call->x.shape);
}

static void check_add(struct check *check)
{
	const struct op_call *call = check->call;
	bool backward = call->pass == OP_BACKWARD;
	int rank = call->x.rank;

	expect(check, "x", &call->x, backward, ELEMENT_F32, rank, call->x.shape);
	expect(check, "x2", &call->x2, backward, ELEMENT_F32, rank, call->x.shape);
	expect_results(check, rank, call->x.shape);
	if (backward)
		expect(check, "dx2", &call->dx2, true, ELEMENT_F32, rank, call->x.shape);
}

static void check_avgpool(struct check *check)
{
	const struct op_call *call = check->call;
	const int64_t *x = call->x.shape;

	int64_t y[4] = {x[0], x[1], 1, 1};

	if (x[2] < 1 || x[3] < 1)
		set_tensor_error(check, "x", "has planes without elements");
	expect(check, "x", &call->x, call->pass == OP_BACKWARD, ELEMENT_F32, 4, x);
	expect_results(check, 4, y);
}

static void check_relu(struct check *check)
{
	const struct op_call *call = check->call;

	expect(check, "x", &call->x, false, ELEMENT_F32, call->x.rank, call->x.shape);
	expect_results(check, call->x.rank, call->x.shape);
	if (call->pass == OP_BACKWARD && call->add_dx && call->dx.data &&
	    call->dx.data == call->dy.data)
		set_tensor_error(check, "dx", "cannot be accumulated in place of dy");
}

static void check_sgd(struct check *check)
{
	const struct op_call *call = check->call;

	if (call->pass != OP_FORWARD)
		set_tensor_error(check, "w", "has no backward pass");
	expect(check, "w", &call->w, false, ELEMENT_F32, 1, call->w.shape);
	expect(check, "dw", &call->dw, false, ELEMENT_F32, 1, call->w.shape);
	expect(check, "state", &call->state, call->sgd.momentum == 0, ELEMENT_F32, 1,
	       call->w.shape);
}

static void check_loss(struct check *check)
{
	const struct op_call *call = check->call;
	bool mse = call->kind == OP_MSE, rank = call->kind == OP_LABEL_RANK;

	if (!(call->smoothing >= 0 && call->smoothing <= 1))
		set_tensor_error(check, "target", "has a label smoothing outside 0 to 1");
	expect(check, "x", &call->x, false, ELEMENT_F32, 2, call->x.shape);
	expect(check, "target", &call->target, false, mse ? ELEMENT_F32 : ELEMENT_I32, mse ? 2 : 1,
	       call->x.shape);
	if (call->pass == OP_FORWARD)
		expect(check, "y", &call->y, false, rank ? ELEMENT_I32 : ELEMENT_F32, 1,
		       call->x.shape);
	else if (rank)
		set_tensor_error(check, "x", "has no backward pass");
	else
		expect(check, "dx", &call->dx, false, ELEMENT_F32, 2, call->x.shape);
}

int op_check(const struct op_call *call, struct error *err)
{
	static const struct {
		void (*check)(struct check *check);
		int x_rank; /* 0: any */
	} rules[OP_KINDS] = {
		[OP_CONV2D] = {check_window, 4},
		[OP_LINEAR] = {check_linear, 0},
		[OP_RELU] = {check_relu, 0},
		[OP_MAXPOOL2D] = {check_window, 4},
		[OP_BATCHNORM] = {check_batchnorm, 4},
		[OP_ADD] = {check_add, 0},
		[OP_AVGPOOL] = {check_avgpool, 4},
		[OP_CROSS_ENTROPY] = {check_loss, 2},
		[OP_MSE] = {check_loss, 2},
		[OP_LABEL_RANK] = {check_loss, 2},
		[OP_SGD] = {check_sgd, 0},
	};
	struct check check = {.call = call, .err = err};

	if ((unsigned)call->kind >= OP_KINDS)
		set_tensor_error(&check, "x", "belongs to an unknown op");
	else if (rules[call->kind].x_rank && call->x.rank != rules[call->kind].x_rank)
		set_tensor_error(&check, "x",
				 rules[call->kind].x_rank == 4 ? "must have rank 4"
							       : "must have rank 2");
	else
		rules[call->kind].check(&check);
	return -check.failed;
}
