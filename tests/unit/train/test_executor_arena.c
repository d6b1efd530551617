/* SPDX-License-Identifier: BSD-3-Clause */
/* How much memory a planned step takes, and which graphs are refused. test_executor_order.c checks
 * on whole steps that the plan is correct. */
#include "../rows.h"

#include <stdbool.h>

#include "train/executor/executor_arena.h"
#include "train/model/graph.h"

/* The memory of a step in which each value and each gradient has a place of its own. */
static size_t unplanned(const struct graph *graph, int batch, bool train)
{
	size_t sum = 0;

	for (int i = 0; i < graph->value_count; i++)
		sum += (size_t)shape_count(&graph->values[i]) * (size_t)batch * 4 *
		       (train && i ? 2 : 1);
	return sum;
}

/* The values that must be kept for the backward pass: those it reads, counted once if a ReLU works
 * in place. */
static size_t kept(const struct graph *graph, int batch)
{
	bool *read = calloc((size_t)graph->value_count, sizeof *read);
	size_t sum = 0;

	for (int i = 0; i < graph->op_count; i++)
		if (graph->ops[i].kind == OP_RELU)
			read[graph->ops[i].output] = true;
		else if (graph->ops[i].kind != OP_ADD && graph->ops[i].kind != OP_AVGPOOL)
			read[graph->ops[i].input] = true;
	for (int i = 0; i < graph->value_count; i++)
		sum += read[i] ? (size_t)shape_count(&graph->values[i]) * (size_t)batch * 4 : 0;
	free(read);
	return sum;
}

static void arena_sizes(void **state)
{
	static const struct {
		const char *model;
		int side, batch;
		enum model_stem stem;
		bool train;
	} rows[] = {
		{"convnet", 28, 4, STEM_DEFAULT, true},	  {"resnet18", 64, 4, STEM_DEFAULT, true},
		{"resnet18", 32, 3, STEM_CIFAR, true},	  {"resnet34", 64, 2, STEM_DEFAULT, true},
		{"resnet50", 224, 2, STEM_DEFAULT, true}, {"resnet152", 64, 1, STEM_DEFAULT, true},
		{"resnet18", 64, 4, STEM_DEFAULT, false}, {"resnet50", 64, 4, STEM_DEFAULT, false},
	};

	for (size_t r = 0; r < ROWS(rows); r++) {
		bool residual = rows[r].model[0] == 'r';
		const struct shape shape = {residual ? 3 : 1, rows[r].side, rows[r].side};
		int batch = rows[r].batch;
		struct error err = {0};
		struct graph *graph;
		struct executor_arena arena_map;

		assert_int_equal(model_build(rows[r].model, &shape, 10, rows[r].stem, &graph, &err),
				 0);
		assert_int_equal(executor_arena_make(graph, batch, rows[r].train, &arena_map, &err),
				 0);
		print_message("%s %d batch %d %s: %zu bytes, %zu without a plan\n", rows[r].model,
			      rows[r].side, batch, rows[r].train ? "training" : "evaluation",
			      arena_map.arena_bytes, unplanned(graph, batch, rows[r].train));
		/* Gradients exist next to the kept values for a few ops only. */
		if (rows[r].train && residual) {
			assert_true(arena_map.arena_bytes >= kept(graph, batch));
			assert_true(arena_map.arena_bytes * 2 <= kept(graph, batch) * 3);
		}
		if (residual)
			assert_true(arena_map.arena_bytes * 2 <=
				    unplanned(graph, batch, rows[r].train));
		executor_arena_free(&arena_map);
		graph_free(graph);
	}
}

static void refused(void **state)
{
	const struct shape shape = {2, 4, 4};
	struct error err = {0};
	struct executor_arena arena_map;

	for (int fault = 0; fault < 2; fault++) {
		struct graph *graph = graph_new("odd", &shape, 10);
		int value = graph_conv2d(graph, "a", 0, 3, 1, 1, 0, true);

		if (fault)
			value = graph_add(graph, value, value);
		else
			graph_relu(graph, value);
		graph_linear(graph, "b", value, 10);
		assert_int_equal(graph->error.code, 0);
		assert_int_equal(executor_arena_make(graph, 1, true, &arena_map, &err),
				 -ERR_INTERNAL);
		assert_non_null(strstr(err.text, fault ? "add" : "relu"));
		assert_int_equal(executor_arena_make(graph, 1, false, &arena_map, &err), 0);
		executor_arena_free(&arena_map);
		graph_free(graph);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(arena_sizes),
		cmocka_unit_test(refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
