/* SPDX-License-Identifier: BSD-3-Clause */
/* ResNets compared with torchvision's, as recorded by models.py: names, shapes, ops and their
 * order, initial weights of a seed, and the buckets of PyTorch's DDP. */
#include "../../support/vectors.h"
#include "../rows.h"

#include <math.h>
#include <stdbool.h>
#include <zlib.h>

#include "train/comm/ddp.h"
#include "train/model/graph.h"

#define HEAD 4

struct initial_vector {
	const char *model;
	int classes;
	uint64_t seed;
	const char *name;
	int64_t count;
	float head[HEAD];
	bool normal;
	uint32_t crc; /* of uniform values */
	double sum;   /* of x[i] * sign(i) */
};

static struct graph *build(const char *model, int classes, enum model_stem stem)
{
	const struct shape shape = {3, 64, 64};
	struct error err = {0};
	struct graph *graph;

	if (model_build(model, &shape, classes, stem, &graph, &err))
		fail_msg("%s", err.text);
	return graph;
}

/* ---- names and shapes ---- */

static uint32_t line(uint32_t crc, const char *name, int rank, const int64_t *shape)
{
	char text[256];
	int used = snprintf(text, sizeof text, "%s", name);

	for (int i = 0; i < rank; i++)
		used += snprintf(text + used, sizeof text - (size_t)used, " %lld",
				 (long long)shape[i]);
	text[used++] = '\n';
	return (uint32_t)crc32_z(crc, (const Bytef *)text, (size_t)used);
}

static void names(void **state)
{
	struct vector_table table = vectors_read("models.txt", "model");

	for (size_t r = 0; r < table.count; r++) {
		const struct vector_row *row = &table.rows[r];
		const char *model = vector_text(row, 0);
		struct graph *graph = build(model, 1000, STEM_DEFAULT);
		bool same_params, same_buffers;
		uint32_t params = 0, buffers = 0;
		size_t next = 0;

		for (int i = 0; i < graph->param_count; i++)
			params = line(params, graph->params[i].name, graph->params[i].rank,
				      graph->params[i].shape);
		for (int i = 0; i < graph->buffer_count; i++) {
			const struct graph_buffer *buffer = &graph->buffers[i];

			buffers = line(buffers, buffer->name, 1, &buffer->count);
			assert_int_equal(buffer->offset, next);
			next += (size_t)buffer->count;
		}
		assert_int_equal(next, graph->buffer_total);
		assert_int_equal(graph->param_count, vector_int(row, 2));
		assert_int_equal(graph->buffer_count, vector_int(row, 4));
		if (graph->weight_count != vector_int(row, 1))
			fail_msg("%s has %lld weights, torchvision's %lld", model,
				 (long long)graph->weight_count, (long long)vector_int(row, 1));
		same_params = params == vector_uint(row, 3);
		same_buffers = buffers == vector_uint(row, 5);
		if (!same_params || !same_buffers)
			fail_msg("%s: some %s has another name, shape or place than torchvision's "
				 "(models.py prints them)",
				 model, same_params ? "buffer" : "parameter");
		graph_free(graph);
	}
	vectors_free(&table);
}

/* The small stem has another conv1; all other parameters are the same. */
static void small_stem(void **state)
{
	struct graph *small = build("resnet18", 10, STEM_CIFAR);
	struct graph *large = build("resnet18", 10, STEM_DEFAULT);

	assert_int_equal(small->param_count, large->param_count);
	assert_int_equal(small->params[0].shape[2], 3);
	assert_int_equal(large->params[0].shape[2], 7);
	assert_int_equal(small->weight_count, large->weight_count - 64 * 3 * (49 - 9));
	for (int i = 0; i < small->param_count; i++)
		assert_string_equal(small->params[i].name, large->params[i].name);
	assert_int_equal(small->op_count, large->op_count - 1);
	/* 64x64 pixels after stem, pooling and three strides. */
	assert_int_equal(small->values[small->ops[small->op_count - 2].input].height, 8);
	assert_int_equal(large->values[large->ops[large->op_count - 2].input].height, 2);
	graph_free(small);
	graph_free(large);
}

/* ---- initial weights ---- */

static double signed_sum(const float *values, int64_t count)
{
	double sum = 0;

	for (uint64_t i = 0; i < (uint64_t)count; i++) {
		uint64_t mixed = i * 2654435761u & 0xffffffffu;

		sum += mixed >> 15 & 1 ? -(double)values[i] : (double)values[i];
	}
	return sum;
}

static void check_initial(const struct initial_vector *row, const float *values, int64_t count)
{
	double off = fabs(signed_sum(values, count) - row->sum);

	assert_int_equal(count, row->count);
	for (int i = 0; i < HEAD; i++)
		if (row->normal ? !(fabsf(values[i] - row->head[i]) <= 1e-6f)
				: values[i] != row->head[i])
			fail_msg("%s seed %llu %s[%d] is %.9g, PyTorch's is %.9g", row->model,
				 (unsigned long long)row->seed, row->name, i, (double)values[i],
				 (double)row->head[i]);
	if (!row->normal &&
	    crc32_z(0, (const Bytef *)values, (size_t)count * sizeof *values) != row->crc)
		fail_msg("%s %s: the first are PyTorch's, a later one is not", row->model,
			 row->name);
	/* Each error is at most 1e-6, of either sign. */
	if (!(off <= 1e-6 * sqrt((double)count)))
		fail_msg("%s %s: the sum of all is off by %g", row->model, row->name, off);
}

static struct initial_vector initial_vector(const struct vector_row *row)
{
	struct initial_vector vector = {
		.model = vector_text(row, 0),
		.classes = (int)vector_int(row, 1),
		.seed = vector_uint(row, 2),
		.name = vector_text(row, 3),
		.count = vector_int(row, 4),
		.normal = !strcmp(vector_text(row, 5 + HEAD), "normal"),
		.crc = (uint32_t)vector_uint(row, 6 + HEAD),
		.sum = vector_real(row, 7 + HEAD),
	};

	for (int i = 0; i < HEAD; i++)
		vector.head[i] = (float)vector_real(row, 5 + i);
	return vector;
}

static int param_named(const struct graph *graph, const char *name)
{
	for (int i = 0; i < graph->param_count; i++)
		if (!strcmp(graph->params[i].name, name))
			return i;
	fail_msg("%s has no %s", graph->model, name);
	return -1;
}

/* Check one model of one seed: its rows start at begin. Return where the next model's start. */
static size_t initial_of(const struct vector_table *table, size_t begin)
{
	struct initial_vector first = initial_vector(&table->rows[begin]);
	struct graph *graph = build(first.model, first.classes, STEM_DEFAULT);
	struct buckets buckets;
	struct error err = {0};
	int seen = 0, expected = 0;
	size_t r = begin;

	assert_int_equal(buckets_make(graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &buckets, &err), 0);

	float *flat = malloc(buckets.total * sizeof *flat);

	assert_non_null(flat);
	memset(flat, 0xff, buckets.total * sizeof *flat);
	assert_int_equal(graph_initialise(graph, first.seed, buckets.offsets, flat, &err), 0);
	for (; r < table->count; r++, seen++) {
		struct initial_vector row = initial_vector(&table->rows[r]);

		if (row.seed != first.seed || strcmp(row.model, first.model))
			break;

		int param = param_named(graph, row.name);

		check_initial(&row, flat + buckets.offsets[param], graph->params[param].count);
	}
	for (int p = 0; p < graph->param_count; p++) {
		const struct graph_param *param = &graph->params[p];
		bool norm = param->rank == 1 && strncmp(param->name, "fc", 2);

		expected += !norm;
		for (int64_t i = 0; norm && i < param->count; i++)
			assert_true(flat[buckets.offsets[p] + (size_t)i] ==
				    (strstr(param->name, "weight") ? 1 : 0));
	}
	assert_int_equal(seen, expected);
	free(flat);
	buckets_free(&buckets);
	graph_free(graph);
	return r;
}

static void initial(void **state)
{
	struct vector_table table = vectors_read("models.txt", "initial");

	for (size_t r = 0; r < table.count;)
		r = initial_of(&table, r);
	vectors_free(&table);
}

static void initial_buffers(void **state)
{
	struct graph *graph = build("resnet18", 10, STEM_DEFAULT);
	float *flat = malloc((size_t)graph->buffer_total * sizeof *flat);

	assert_non_null(flat);
	memset(flat, 0xff, (size_t)graph->buffer_total * sizeof *flat);
	graph_initialise_buffers(graph, flat);
	for (int i = 0; i < graph->buffer_count; i++)
		for (int64_t k = 0; k < graph->buffers[i].count; k++)
			assert_true(flat[graph->buffers[i].offset + (size_t)k] ==
				    (strstr(graph->buffers[i].name, "running_var") ? 1 : 0));
	free(flat);
	graph_free(graph);
}

/* ---- what the ops are, and in which order their gradients come ---- */

static void op_counts(void **state)
{
	static const struct {
		const char *model;
		enum model_stem stem;
		int counts[OP_KINDS];
	} models[] = {
		{"resnet18",
		 STEM_DEFAULT,
		 {[OP_CONV2D] = 20,
		  [OP_BATCHNORM] = 20,
		  [OP_RELU] = 17,
		  [OP_ADD] = 8,
		  [OP_MAXPOOL2D] = 1,
		  [OP_AVGPOOL] = 1,
		  [OP_LINEAR] = 1}},
		{"resnet18",
		 STEM_CIFAR,
		 {[OP_CONV2D] = 20,
		  [OP_BATCHNORM] = 20,
		  [OP_RELU] = 17,
		  [OP_ADD] = 8,
		  [OP_AVGPOOL] = 1,
		  [OP_LINEAR] = 1}},
		{"resnet50",
		 STEM_DEFAULT,
		 {[OP_CONV2D] = 53,
		  [OP_BATCHNORM] = 53,
		  [OP_RELU] = 49,
		  [OP_ADD] = 16,
		  [OP_MAXPOOL2D] = 1,
		  [OP_AVGPOOL] = 1,
		  [OP_LINEAR] = 1}},
	};

	for (size_t m = 0; m < ROWS(models); m++) {
		struct graph *graph = build(models[m].model, 10, models[m].stem);
		int counts[OP_KINDS] = {0};

		for (int i = 0; i < graph->op_count; i++)
			counts[graph->ops[i].kind]++;
		for (int k = 0; k < OP_KINDS; k++)
			if (counts[k] != models[m].counts[k])
				fail_msg("%s has %d ops %s, not %d", models[m].model, counts[k],
					 op_name((enum op_kind)k), models[m].counts[k]);
		graph_free(graph);
	}
}

/* Gradients become ready in the order of PyTorch's autograd, starting at the end. */
static void ready_order(void **state)
{
	static const struct {
		const char *model;
		const char *names[22];
	} models[] = {
		{"resnet18",
		 {"fc.bias", "fc.weight", "layer4.1.bn2.weight", "layer4.1.bn2.bias",
		  "layer4.1.conv2.weight", "layer4.1.bn1.weight", "layer4.1.bn1.bias",
		  "layer4.1.conv1.weight", "layer4.0.downsample.1.weight",
		  "layer4.0.downsample.1.bias", "layer4.0.downsample.0.weight",
		  "layer4.0.bn2.weight", "layer4.0.bn2.bias", "layer4.0.conv2.weight",
		  "layer4.0.bn1.weight", "layer4.0.bn1.bias", "layer4.0.conv1.weight",
		  "layer3.1.bn2.weight"}},
		{"resnet50",
		 {"fc.bias", "fc.weight", "layer4.2.bn3.weight", "layer4.2.bn3.bias",
		  "layer4.2.conv3.weight", "layer4.2.bn2.weight", "layer4.2.bn2.bias",
		  "layer4.2.conv2.weight", "layer4.2.bn1.weight", "layer4.2.bn1.bias",
		  "layer4.2.conv1.weight", "layer4.1.bn3.weight"}},
	};

	for (size_t m = 0; m < ROWS(models); m++) {
		struct graph *graph = build(models[m].model, 10, STEM_DEFAULT);
		struct buckets buckets;
		struct error err = {0};

		assert_int_equal(
			buckets_make(graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &buckets, &err), 0);
		for (int i = 0; models[m].names[i]; i++)
			assert_string_equal(graph->params[buckets.ready[i]].name,
					    models[m].names[i]);
		assert_string_equal(graph->params[buckets.ready[graph->param_count - 1]].name,
				    "conv1.weight");
		buckets_free(&buckets);
		graph_free(graph);
	}
}

/* ---- buckets ---- */

/* The buckets of PyTorch's DDP for 1000 classes. */
static void buckets(void **state)
{
	static const struct {
		const char *model;
		size_t count, bytes[5];
		int params[5];
	} rows[] = {
		{"resnet18", 3, {2052000, 28852224, 15853824}, {2, 12, 48}},
		{"resnet50",
		 5,
		 {8196000, 31502336, 26255360, 26550272, 9724160},
		 {2, 15, 12, 51, 81}},
	};

	for (size_t r = 0; r < ROWS(rows); r++) {
		struct graph *graph = build(rows[r].model, 1000, STEM_DEFAULT);
		struct buckets buckets;
		struct error err = {0};
		size_t offset = 0;

		assert_int_equal(
			buckets_make(graph, DDP_FIRST_BYTES, DDP_CAP_BYTES, &buckets, &err), 0);
		assert_int_equal(buckets.bucket_count, rows[r].count);
		for (size_t i = 0; i < buckets.bucket_count; i++) {
			size_t vote = i + 1 == buckets.bucket_count;

			assert_int_equal((buckets.list[i].count - vote) * sizeof(float),
					 rows[r].bytes[i]);
			assert_int_equal(buckets.list[i].params, rows[r].params[i]);
			assert_int_equal(buckets.list[i].offset, offset);
			offset += buckets.list[i].count;
		}
		assert_int_equal(offset, graph->weight_count + 1);
		assert_int_equal(buckets.total, graph->weight_count);
		buckets_free(&buckets);
		graph_free(graph);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names),     cmocka_unit_test(small_stem),
		cmocka_unit_test(initial),   cmocka_unit_test(initial_buffers),
		cmocka_unit_test(op_counts), cmocka_unit_test(ready_order),
		cmocka_unit_test(buckets),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
