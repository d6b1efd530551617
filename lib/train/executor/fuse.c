/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/fuse.h"

#include <stdlib.h>

struct fusing {
	const struct graph *graph;
	int *readers;			 /* per value, the loss included */
	const struct graph_op **norm_of; /* per OP_ADD: the batch norm that performs it, or NULL */
	bool *done;			 /* per op */
	struct fused *list;
	int count;
};

int *fuse_readers(const struct graph *graph)
{
	int *readers = calloc((size_t)graph->value_count, sizeof *readers);

	if (!readers)
		return NULL;
	readers[graph->output]++;
	for (int i = 0; i < graph->op_count; i++) {
		readers[graph->ops[i].input]++;
		if (graph->ops[i].input2 >= 0)
			readers[graph->ops[i].input2]++;
	}
	return readers;
}

/* The only op that reads value, if it is of this kind; else -1. */
static int only_reader(const struct fusing *fusing, int value, enum op_kind kind)
{
	const struct graph *graph = fusing->graph;

	for (int i = 0; fusing->readers[value] == 1 && i < graph->op_count; i++)
		if (graph->ops[i].input == value || graph->ops[i].input2 == value)
			return graph->ops[i].kind == kind ? i : -1;
	return -1;
}

static struct fused *fused_new(struct fusing *fusing, const struct graph_op *op)
{
	struct fused *fused = &fusing->list[fusing->count++];

	*fused = (struct fused){op->kind, op, op->input, op->input2, op->output, false};
	return fused;
}

static void take_relu(struct fusing *fusing, struct fused *fused)
{
	int relu = only_reader(fusing, fused->output, OP_RELU);

	if (relu < 0)
		return;
	fused->relu = true;
	fused->output = fusing->graph->ops[relu].output;
	fusing->done[relu] = true;
}

/* A batch norm whose result is only added to something must wait until that value exists. */
static void fuse_norm(struct fusing *fusing, int index)
{
	const struct graph_op *op = &fusing->graph->ops[index];
	int add = only_reader(fusing, op->output, OP_ADD);

	if (add >= 0 && !fusing->norm_of[add])
		fusing->norm_of[add] = op;
	else
		take_relu(fusing, fused_new(fusing, op));
}

static void fuse_add(struct fusing *fusing, int index)
{
	const struct graph_op *op = &fusing->graph->ops[index], *norm = fusing->norm_of[index];
	struct fused *fused = fused_new(fusing, norm ? norm : op);

	if (!norm)
		return;
	fused->input2 = op->input == norm->output ? op->input2 : op->input;
	fused->output = op->output;
	take_relu(fusing, fused);
}

static int fuse_all(struct fusing *fusing, struct error *err)
{
	const struct graph *graph = fusing->graph;

	for (int i = 0; i < graph->op_count; i++) {
		const struct graph_op *op = &graph->ops[i];

		if (op->input == op->input2)
			return error_set(err, ERR_INTERNAL, "model %s: op %d reads one value twice",
					 graph->model, i);
		if (op->kind > OP_AVGPOOL)
			return error_set(err, ERR_INTERNAL, "op %s cannot be part of a network",
					 op_name(op->kind));
		if (fusing->done[i])
			continue;
		if (op->kind == OP_BATCHNORM)
			fuse_norm(fusing, i);
		else if (op->kind == OP_ADD)
			fuse_add(fusing, i);
		else
			fused_new(fusing, op);
	}
	return 0;
}

int fuse_graph(const struct graph *graph, struct fused **out, int *count, struct error *err)
{
	size_t ops = (size_t)graph->op_count + 1;
	struct fusing fusing = {.graph = graph,
				.readers = fuse_readers(graph),
				.norm_of = calloc(ops, sizeof *fusing.norm_of),
				.done = calloc(ops, sizeof(bool)),
				.list = calloc(ops, sizeof(struct fused))};
	int rc;

	if (fusing.readers && fusing.norm_of && fusing.done && fusing.list)
		rc = fuse_all(&fusing, err);
	else
		rc = error_memory(err, "a training step");
	free(fusing.readers);
	free(fusing.norm_of);
	free(fusing.done);
	if (rc) {
		free(fusing.list);
		return rc;
	}
	*out = fusing.list;
	*count = fusing.count;
	return 0;
}
