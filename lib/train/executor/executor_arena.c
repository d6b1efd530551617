/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/executor/executor_arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "train/executor/fuse.h"
#include "train/executor/memory_plan.h"

#define ALIGNMENT ((size_t)64)

/* Positions: forward op i is at i, the loss at op_count, its gradient after it, and then the
 * backward ops in reverse. */
static int backward_position(const struct graph *graph, int op)
{
	return 2 * graph->op_count + 1 - op;
}

/* ---- order of accumulation ---- */

static int find_accumulation(const struct graph *graph, struct executor_arena *arena_map,
			     struct error *err)
{
	bool *written = calloc((size_t)graph->value_count, sizeof *written);
	int rc = 0;

	arena_map->accumulate = calloc((size_t)graph->op_count + 1, sizeof *arena_map->accumulate);
	if (!written || !arena_map->accumulate) {
		free(written);
		return error_memory(err, "a training step");
	}
	written[graph->output] = true;
	for (int i = graph->op_count - 1; !rc && i >= 0; i--) {
		const struct graph_op *op = &graph->ops[i];

		if (!written[op->output] || op->input == op->input2) {
			rc = error_set(err, ERR_INTERNAL,
				       "model %s: nothing reads the result of op %d (%s), or the "
				       "op reads one value twice",
				       graph->model, i, op_name(op->kind));
			break;
		}
		arena_map->accumulate[i].add_dx = written[op->input];
		written[op->input] = true;
		if (op->input2 < 0)
			continue;
		arena_map->accumulate[i].add_dx2 = written[op->input2];
		written[op->input2] = true;
	}
	free(written);
	return rc;
}

/* ---- memory ---- */

/* Items of the arena: values, then gradients. Of values that share one place, the first one's item
 * counts. */
struct memory {
	const struct graph *graph;
	bool train;
	int *root; /* per value: the first value in the same place */
	struct memory_item *items;
};

static void lifetime(struct memory_item *item, int position)
{
	if (item->last < item->first) {
		item->first = item->last = position;
		return;
	}
	item->first = position < item->first ? position : item->first;
	item->last = position > item->last ? position : item->last;
}

static struct memory_item *value_item(struct memory *memory, int value)
{
	return &memory->items[memory->root[value]];
}

static struct memory_item *gradient_item(struct memory *memory, int value)
{
	return &memory->items[memory->graph->value_count + memory->root[value]];
}

/* A ReLU may work in place if it is the only reader of its input. readers: from fuse_readers. */
static void find_roots(struct memory *memory, int *readers)
{
	const struct graph *graph = memory->graph;

	/* A ReLU's own backward pass reads its result. */
	for (int i = 0; i < graph->op_count; i++)
		readers[graph->ops[i].output] += graph->ops[i].kind == OP_RELU;
	for (int i = 0; i < graph->value_count; i++)
		memory->root[i] = i;
	for (int i = 0; i < graph->op_count; i++) {
		const struct graph_op *op = &graph->ops[i];

		if (op->kind == OP_RELU && readers[op->input] == 1)
			memory->root[op->output] = memory->root[op->input];
	}
}

static bool backward_reads_input(const struct graph_op *op)
{
	return op->kind != OP_RELU && op->kind != OP_ADD && op->kind != OP_AVGPOOL;
}

static void find_lifetimes(struct memory *memory)
{
	const struct graph *graph = memory->graph;

	for (int i = 0; i < 2 * graph->value_count; i++)
		memory->items[i] = (struct memory_item){.first = 0, .last = -1};
	lifetime(value_item(memory, 0), 0);
	lifetime(value_item(memory, graph->output), graph->op_count);
	if (memory->train) {
		lifetime(value_item(memory, graph->output), graph->op_count + 1);
		lifetime(gradient_item(memory, graph->output), graph->op_count + 1);
	}
	for (int i = 0; i < graph->op_count; i++) {
		const struct graph_op *op = &graph->ops[i];
		int inputs[2] = {op->input, op->input2}, back = backward_position(graph, i);

		lifetime(value_item(memory, op->output), i);
		for (int k = 0; k < 2 && inputs[k] >= 0; k++)
			lifetime(value_item(memory, inputs[k]), i);
		if (!memory->train)
			continue;
		if (backward_reads_input(op))
			lifetime(value_item(memory, op->input), back);
		if (op->kind == OP_RELU)
			lifetime(value_item(memory, op->output), back);
		lifetime(gradient_item(memory, op->output), back);
		for (int k = 0; k < 2 && inputs[k] >= 0; k++)
			if (inputs[k])
				lifetime(gradient_item(memory, inputs[k]), back);
	}
}

static int find_sizes(struct memory *memory, int batch, struct error *err)
{
	const struct graph *graph = memory->graph;

	for (int i = 0; i < graph->value_count; i++) {
		size_t count = (size_t)shape_count(&graph->values[i]);

		if (count > SIZE_MAX / sizeof(float) / (size_t)batch)
			return error_memory(err, "the activations");
		for (int half = 0; half < 2; half++) {
			struct memory_item *item = &memory->items[half * graph->value_count + i];

			if (item->last >= item->first)
				item->size_bytes = count * (size_t)batch * sizeof(float);
		}
	}
	return 0;
}

static int assign_offsets(struct memory *memory, int batch, struct executor_arena *arena_map,
			  struct error *err)
{
	int values = memory->graph->value_count;
	int rc;

	find_lifetimes(memory);
	rc = find_sizes(memory, batch, err);
	if (!rc)
		rc = memory_plan(memory->items, 2 * (size_t)values, ALIGNMENT,
				 &arena_map->arena_bytes, err);
	for (int i = 0; !rc && i < values; i++) {
		arena_map->values[i] = value_item(memory, i)->offset;
		arena_map->gradients[i] =
			memory->train && i ? gradient_item(memory, i)->offset : ARENA_NONE;
	}
	return rc;
}

int executor_arena_make(const struct graph *graph, int batch, bool train,
			struct executor_arena *out, struct error *err)
{
	size_t values = (size_t)graph->value_count;
	struct executor_arena arena_map = {.values = calloc(values, sizeof *arena_map.values),
					   .gradients =
						   calloc(values, sizeof *arena_map.gradients)};
	struct memory memory = {.graph = graph,
				.train = train,
				.root = calloc(values, sizeof *memory.root),
				.items = calloc(2 * values, sizeof *memory.items)};
	int *readers = fuse_readers(graph);
	int rc = 0;

	if (!arena_map.values || !arena_map.gradients || !memory.root || !memory.items || !readers)
		rc = error_memory(err, "a training step");
	if (!rc && train)
		rc = find_accumulation(graph, &arena_map, err);
	if (!rc) {
		find_roots(&memory, readers);
		rc = assign_offsets(&memory, batch, &arena_map, err);
	}
	free(memory.root);
	free(memory.items);
	free(readers);
	if (rc)
		executor_arena_free(&arena_map);
	else
		*out = arena_map;
	return rc;
}

void executor_arena_free(struct executor_arena *arena_map)
{
	free(arena_map->accumulate);
	free(arena_map->values);
	free(arena_map->gradients);
	memset(arena_map, 0, sizeof *arena_map);
}
