/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/device/cpu/dnnl_primitive.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t layout_count(const struct layout *layout)
{
	size_t block = layout->block ? (size_t)layout->block : 1;
	size_t blocks = ((size_t)layout->channels + block - 1) / block;

	return (size_t)layout->n * blocks * block * (size_t)layout->height * (size_t)layout->width;
}

bool layout_equal(const struct layout *a, const struct layout *b)
{
	if (a->n != b->n || a->channels != b->channels || a->height != b->height ||
	    a->width != b->width)
		return false;
	/* With one position per plane, layouts differ only in the padding of the last block. */
	if (a->height == 1 && a->width == 1 && a->channels % a->block == 0 &&
	    b->channels % b->block == 0)
		return true;
	return a->block == b->block;
}

int dnnl_failed(dnnl_status_t status, const char *what, struct error *err)
{
	switch (status) {
	case dnnl_success:
		return 0;
	case dnnl_out_of_memory:
		return error_set(err, ERR_UNAVAILABLE,
				 "%s: oneDNN is out of memory. Use a smaller --batch", what);
	case dnnl_unimplemented:
		return error_set(err, ERR_UNAVAILABLE,
				 "%s: this oneDNN does not support it on this CPU", what);
	default:
		return error_set(err, ERR_INTERNAL, "%s: oneDNN error %d", what, (int)status);
	}
}

/* ---- engine ---- */

struct made_md {
	struct made_md *next;
	int rank;
	dnnl_dims_t dims;
	dnnl_format_tag_t tag;
	owned_md md;
};

int dnnl_context_new(struct dnnl_context **out, struct error *err)
{
	struct dnnl_context *dnnl = calloc(1, sizeof *dnnl);
	dnnl_status_t status;
	int rc;

	if (!dnnl)
		return error_memory(err, "the device");
	status = dnnl_engine_create(&dnnl->engine, dnnl_cpu, 0);
	if (!status)
		status = dnnl_stream_create(&dnnl->stream, dnnl->engine, dnnl_stream_default_flags);
	if (!status)
		status = dnnl_primitive_attr_create(&dnnl->attr);
	if (!status)
		status = dnnl_primitive_attr_set_scratchpad_mode(dnnl->attr,
								 dnnl_scratchpad_mode_user);
	rc = dnnl_failed(status, "initializing oneDNN", err);
	if (rc)
		dnnl_context_free(dnnl);
	else
		*out = dnnl;
	return rc;
}

void dnnl_context_free(struct dnnl_context *dnnl)
{
	if (!dnnl)
		return;
	while (dnnl->mds) {
		struct made_md *md = dnnl->mds;

		dnnl->mds = md->next;
		dnnl_memory_desc_destroy(md->md);
		free(md);
	}
	dnnl_primitive_attr_destroy(dnnl->attr);
	dnnl_stream_destroy(dnnl->stream);
	dnnl_engine_destroy(dnnl->engine);
	free(dnnl);
}

void dnnl_context_describe(char *text, size_t size)
{
	const dnnl_version_t *version = dnnl_version();

	snprintf(text, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

/* ---- primitives ---- */

static int add_argument(const struct dnnl_context *dnnl, struct primitive *primitive, int argument,
			const_dnnl_memory_desc_t md, const char *what, struct error *err)
{
	dnnl_exec_arg_t *to = &primitive->arguments[primitive->count];
	dnnl_status_t status = dnnl_memory_create(&to->memory, md, dnnl->engine, DNNL_MEMORY_NONE);

	if (status)
		return dnnl_failed(status, what, err);
	to->arg = argument;
	primitive->count++;
	return 0;
}

int primitive_new(const struct dnnl_context *dnnl, const_dnnl_primitive_desc_t desc,
		  const struct primitive_argument *arguments, int count, const char *what,
		  struct primitive *out, struct error *err)
{
	struct primitive primitive = {0};
	int rc = dnnl_failed(dnnl_primitive_create(&primitive.handle, desc), what, err);

	if (count >= PRIMITIVE_ARGUMENTS)
		rc = error_set(err, ERR_INTERNAL, "%s has too many arguments", what);
	for (int i = 0; !rc && i < count; i++) {
		rc = add_argument(
			dnnl, &primitive, arguments[i].argument,
			dnnl_primitive_desc_query_md(desc, arguments[i].query, arguments[i].index),
			what, err);
	}
	if (!rc) {
		const_dnnl_memory_desc_t md =
			dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);

		primitive.scratch = (dnnl_memory_desc_get_size(md) + 63) / 64 * 16;
		rc = add_argument(dnnl, &primitive, DNNL_ARG_SCRATCHPAD, md, what, err);
	}
	if (rc)
		primitive_free(&primitive);
	else
		*out = primitive;
	return rc;
}

int primitive_run(const struct dnnl_context *dnnl, struct primitive *primitive,
		  const void *const *data, float *scratch, const char *what, struct error *err)
{
	dnnl_status_t status = dnnl_success;

	for (int i = 0; !status && i < primitive->count; i++) {
		const void *at = i + 1 < primitive->count ? data[i] : scratch;

		/* Setting it clears the last block's padding, so do it only if it changes. */
		if (at == primitive->at[i])
			continue;
		/* oneDNN writes only to outputs, but its C API has one kind of pointer. */
		status = dnnl_memory_set_data_handle(primitive->arguments[i].memory, (void *)at);
		primitive->at[i] = at;
	}
	if (!status)
		status = dnnl_primitive_execute(primitive->handle, dnnl->stream, primitive->count,
						primitive->arguments);
	if (!status)
		status = dnnl_stream_wait(dnnl->stream);
	return dnnl_failed(status, what, err);
}

void primitive_free(struct primitive *primitive)
{
	for (int i = 0; i < primitive->count; i++)
		dnnl_memory_destroy(primitive->arguments[i].memory);
	if (primitive->handle)
		dnnl_primitive_destroy(primitive->handle);
	*primitive = (struct primitive){0};
}

int reorder_new(const struct dnnl_context *dnnl, const_dnnl_memory_desc_t from,
		const_dnnl_memory_desc_t to, bool add, struct primitive *out, struct error *err)
{
	static const struct primitive_argument arguments[] = {{DNNL_ARG_FROM, dnnl_query_src_md, 0},
							      {DNNL_ARG_TO, dnnl_query_dst_md, 0}};
	dnnl_primitive_attr_t attr = NULL;
	dnnl_post_ops_t post = NULL;
	dnnl_primitive_desc_t desc = NULL;
	dnnl_status_t status = dnnl_primitive_attr_clone(&attr, dnnl->attr);
	int rc;

	if (!status && add) {
		status = dnnl_post_ops_create(&post);
		if (!status)
			status = dnnl_post_ops_append_sum(post, 1, 0, dnnl_data_type_undef);
		if (!status)
			status = dnnl_primitive_attr_set_post_ops(attr, post);
	}
	if (!status)
		status = dnnl_reorder_primitive_desc_create(&desc, from, dnnl->engine, to,
							    dnnl->engine, attr);
	rc = dnnl_failed(status, "a reorder", err);
	if (!rc)
		rc = primitive_new(dnnl, desc, arguments, 2, "a reorder", out, err);
	if (desc)
		dnnl_primitive_desc_destroy(desc);
	if (post)
		dnnl_post_ops_destroy(post);
	if (attr)
		dnnl_primitive_attr_destroy(attr);
	return rc;
}

/* ---- layouts ---- */

static dnnl_format_tag_t block_tag(const struct layout *layout)
{
	switch (layout->block) {
	case 0:
		return dnnl_format_tag_any;
	case 1:
		return dnnl_nchw;
	case 8:
		return dnnl_nChw8c;
	case 16:
		return dnnl_nChw16c;
	default:
		return dnnl_nhwc;
	}
}

const_dnnl_memory_desc_t md_make(struct dnnl_context *dnnl, int rank, const dnnl_dims_t dims,
				 dnnl_format_tag_t tag)
{
	size_t size = (size_t)rank * sizeof *dims;
	struct made_md *made = dnnl->mds;

	while (made && (made->rank != rank || made->tag != tag || memcmp(made->dims, dims, size)))
		made = made->next;
	if (made)
		return made->md;
	made = calloc(1, sizeof *made);
	if (!made)
		return NULL;
	if (dnnl_memory_desc_create_with_tag(&made->md, rank, dims, dnnl_f32, tag)) {
		free(made);
		return NULL;
	}
	made->next = dnnl->mds;
	made->rank = rank;
	made->tag = tag;
	memcpy(made->dims, dims, size);
	dnnl->mds = made;
	return made->md;
}

const_dnnl_memory_desc_t layout_md(struct dnnl_context *dnnl, const struct layout *layout)
{
	dnnl_dims_t dims = {layout->n, layout->channels, layout->height, layout->width};

	return md_make(dnnl, 4, dims, block_tag(layout));
}

struct layout md_layout(struct dnnl_context *dnnl, const_dnnl_memory_desc_t md)
{
	static const int blocks[] = {1, 8, 16};
	const dnnl_dim_t *dims = md_dims(md);
	struct layout layout = {(int)dims[0], (int)dims[1], (int)dims[2], (int)dims[3], 0};

	if (layout.channels <= LAYOUT_NARROW &&
	    dnnl_memory_desc_equal(md_make(dnnl, 4, dims, dnnl_nhwc), md)) {
		layout.block = layout.channels;
		return layout;
	}
	for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
		layout.block = blocks[i];
		if (dnnl_memory_desc_equal(layout_md(dnnl, &layout), md))
			return layout;
	}
	layout.block = 0;
	return layout;
}

/* ---- copy ---- */

struct cpu_reorder {
	struct dnnl_context *dnnl;
	struct primitive reorder;
	float *scratch;
};

int cpu_reorder_new(struct dnnl_context *dnnl, const struct layout *from, const struct layout *to,
		    struct cpu_reorder **out, struct error *err)
{
	struct cpu_reorder *copy = calloc(1, sizeof *copy);
	int rc;

	if (!copy)
		return error_memory(err, "a layer");
	copy->dnnl = dnnl;
	rc = reorder_new(dnnl, layout_md(dnnl, from), layout_md(dnnl, to), false, &copy->reorder,
			 err);
	if (!rc && copy->reorder.scratch) {
		copy->scratch = aligned_alloc(64, copy->reorder.scratch * sizeof(float));
		rc = copy->scratch ? 0 : error_memory(err, "a layer");
	}
	if (rc)
		cpu_reorder_free(copy);
	else
		*out = copy;
	return rc;
}

int cpu_reorder_run(struct cpu_reorder *copy, const float *from, float *to, struct error *err)
{
	const void *data[] = {from, to};

	return primitive_run(copy->dnnl, &copy->reorder, data, copy->scratch, "a reorder", err);
}

void cpu_reorder_free(struct cpu_reorder *copy)
{
	if (!copy)
		return;
	primitive_free(&copy->reorder);
	free(copy->scratch);
	free(copy);
}
