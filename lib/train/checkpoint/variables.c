/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/checkpoint/variables.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define MEAN ".running_mean"
#define TRACKED ".num_batches_tracked"

size_t variables_size(const struct graph *graph, const struct buckets *buckets)
{
	return (2 * buckets->total + (size_t)graph->buffer_total + 1) * sizeof(float);
}

struct variables variables_in(float *block, const struct graph *graph,
			      const struct buckets *buckets)
{
	return (struct variables){
		.graph = graph,
		.buckets = buckets,
		.weights = block,
		.momentum = block + buckets->total,
		.buffers = block + 2 * buckets->total,
		.weight_count = buckets->total,
		.buffer_count = (size_t)graph->buffer_total,
	};
}

int variables_new(const struct graph *graph, const struct buckets *buckets, struct variables *out,
		  struct error *err)
{
	float *block = calloc(1, variables_size(graph, buckets));

	if (!block)
		return error_memory(err, "the weights");
	*out = variables_in(block, graph, buckets);
	return 0;
}

void variables_free(struct variables *variables)
{
	if (!variables)
		return;
	free(variables->weights);
	memset(variables, 0, sizeof *variables);
}

/* The module of a batch norm's first buffer: "bn1" of "bn1.running_mean"; its length, or 0. */
static size_t norm_module(const struct graph_buffer *buffer)
{
	size_t size = strlen(buffer->name), end = strlen(MEAN);

	return size > end && !strcmp(buffer->name + size - end, MEAN) ? size - end : 0;
}

/* ---- writing ---- */

/* Add a tensor whose name is prefix and name. */
static struct safetensor *add_variable(struct variables_list *list, const char *prefix,
				       const char *name, const char *type, const void *data,
				       size_t size_bytes)
{
	char *full = list->names[list->count];
	struct safetensor *tensor = &list->tensors[list->count++];

	snprintf(full, sizeof *list->names, "%s%s", prefix, name);
	*tensor = (struct safetensor){
		.name = full, .type = type, .data = data, .size_bytes = size_bytes};
	return tensor;
}

static void add_params(const struct variables *variables, const float *flat, const char *prefix,
		       struct variables_list *list)
{
	for (int i = 0; i < variables->graph->param_count; i++) {
		const struct graph_param *param = &variables->graph->params[i];
		struct safetensor *tensor = add_variable(list, prefix, param->name, "F32",
							 flat + variables->buckets->offsets[i],
							 (size_t)param->count * sizeof *flat);

		tensor->rank = param->rank;
		memcpy(tensor->shape, param->shape, sizeof param->shape);
	}
}

static void add_buffers(const struct variables *variables, struct variables_list *list)
{
	for (int i = 0; i < variables->graph->buffer_count; i++) {
		const struct graph_buffer *buffer = &variables->graph->buffers[i];
		struct safetensor *tensor = add_variable(list, "", buffer->name, "F32",
							 variables->buffers + buffer->offset,
							 (size_t)buffer->count * sizeof(float));
		char module[sizeof buffer->name];

		tensor->rank = 1;
		tensor->shape[0] = buffer->count;
		snprintf(module, sizeof module, "%.*s", (int)norm_module(buffer), buffer->name);
		if (*module)
			add_variable(list, module, TRACKED, "I64", &list->batches,
				     sizeof list->batches);
	}
}

int variables_list(const struct variables *variables, int64_t batches, bool momentum,
		   struct variables_list *out, struct error *err)
{
	const struct graph *graph = variables->graph;
	size_t room = (size_t)graph->param_count * 2 + (size_t)graph->buffer_count * 2 + 1;

	*out = (struct variables_list){.batches = batches};
	out->tensors = calloc(room, sizeof *out->tensors + sizeof *out->names);
	if (!out->tensors)
		return error_memory(err, "a list of tensors");
	out->names = (char(*)[96])(out->tensors + room);
	add_params(variables, variables->weights, "", out);
	add_buffers(variables, out);
	if (momentum)
		add_params(variables, variables->momentum, VARIABLES_MOMENTUM, out);
	return 0;
}

void variables_list_free(struct variables_list *list)
{
	if (!list)
		return;
	free(list->tensors);
	memset(list, 0, sizeof *list);
}

/* ---- reading ---- */

/* The parameters of the last linear layer, which --new-head initialises anew. */
static bool is_head(const struct graph *graph, const char *name)
{
	const struct graph_op *last = &graph->ops[graph->op_count - 1];

	return last->kind == OP_LINEAR && (!strcmp(name, graph->params[last->weight].name) ||
					   !strcmp(name, graph->params[last->bias].name));
}

static void shape_text(int rank, const int64_t *shape, char *text, size_t size)
{
	snprintf(text, size, "[");
	for (int i = 0; i < rank; i++)
		text_append(text, size, "%s%" PRId64, i ? "," : "", shape[i]);
	text_append(text, size, "]");
}

static int compare(const char *path, const struct graph *graph, const struct safetensor *want,
		   const struct safetensors *file, struct error *err)
{
	const struct safetensor *seen = safetensors_find(file, want->name);
	char theirs[160], ours[160];

	/* Nothing depends on this count, and old files lack it. */
	if (!seen && !strcmp(want->type, "I64"))
		return 0;
	if (!seen)
		return error_set(err, ERR_DATA,
				 "%s has no tensor %s; expected the state_dict of %s", path,
				 want->name, graph->model);
	bool fits = !strcmp(seen->type, want->type) && seen->rank == want->rank;

	for (int i = 0; fits && i < want->rank; i++)
		fits = seen->shape[i] == want->shape[i];
	if (fits)
		return 0;
	shape_text(seen->rank, seen->shape, theirs, sizeof theirs);
	shape_text(want->rank, want->shape, ours, sizeof ours);
	return error_set(err, ERR_DATA, "%s: tensor %s is %s %s, but this network expects %s %s%s",
			 path, want->name, seen->type, theirs, want->type, ours,
			 is_head(graph, want->name)
				 ? "; use --new-head to initialize this layer for other classes"
				 : "");
}

static int check_no_extra_tensors(const char *path, const struct safetensors *file,
				  const struct variables_list *list, struct error *err)
{
	for (size_t i = 0; i < file->count; i++) {
		const char *name = file->tensors[i].name;
		size_t k = 0;

		while (k < list->count && strcmp(name, list->names[k]))
			k++;
		if (k == list->count && strncmp(name, "berth.", strlen("berth.")))
			return error_set(err, ERR_DATA,
					 "%s has a tensor %s, which this network lacks: the file "
					 "belongs to another network",
					 path, name);
	}
	return 0;
}

int variables_read(const char *path, const struct safetensors *file,
		   const struct variables_filter *want, struct variables *variables,
		   int64_t *batches, struct error *err)
{
	const struct graph *graph = variables->graph;
	struct variables_list list;
	int64_t tracked = 0;
	int rc = variables_list(variables, 0, want->momentum, &list, err);

	if (rc)
		return rc;
	if (want->strict)
		rc = check_no_extra_tensors(path, file, &list, err);
	for (size_t i = 0; !rc && i < list.count; i++)
		if (!want->new_head || !is_head(graph, list.names[i]))
			rc = compare(path, graph, &list.tensors[i], file, err);
	/* Everything is present and fits: copy it now. */
	for (size_t i = 0; !rc && i < list.count; i++) {
		const struct safetensor *to = &list.tensors[i];
		const struct safetensor *from = safetensors_find(file, to->name);

		if (!from || (want->new_head && is_head(graph, list.names[i])))
			continue;
		/* The list was made from variables, which we may change. */
		memcpy(to->data == &list.batches ? (void *)&tracked : (void *)(uintptr_t)to->data,
		       from->data, to->size_bytes);
	}
	variables_list_free(&list);
	if (!rc)
		*batches = tracked;
	return rc;
}
