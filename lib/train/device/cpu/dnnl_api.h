/* SPDX-License-Identifier: BSD-3-Clause */
/* oneDNN's C API. The code is written for 3.x; for 2.x, this file defines what berth calls of 3.x.
 * It can be deleted together with the support of 2.x (Debian 12).
 *
 * In 3.x a memory descriptor is an opaque object behind a pointer, in 2.x a struct. A primitive
 * descriptor is made in one step in 3.x, in 2.x from an op descriptor. */
#ifndef BERTH_TRAIN_CPU_DNNL_API_H
#define BERTH_TRAIN_CPU_DNNL_API_H

#include <dnnl.h>

#if DNNL_VERSION_MAJOR == 3

typedef dnnl_memory_desc_t owned_md; /* what dnnl_memory_desc_create_with_tag makes */

static inline const dnnl_dim_t *md_dims(const_dnnl_memory_desc_t md)
{
	const dnnl_dims_t *dims = NULL;

	return dnnl_memory_desc_query(md, dnnl_query_dims, (void *)&dims) ? NULL : *dims;
}

#elif DNNL_VERSION_MAJOR == 2

#include <stdlib.h>

typedef dnnl_memory_desc_t *owned_md;
typedef const dnnl_memory_desc_t *const_dnnl_memory_desc_t;

static inline const dnnl_dim_t *md_dims(const_dnnl_memory_desc_t md)
{
	return md->dims;
}

static inline dnnl_status_t dnnl_memory_desc_create_with_tag(owned_md *out, int rank,
							     const dnnl_dims_t dims,
							     dnnl_data_type_t type,
							     dnnl_format_tag_t tag)
{
	owned_md md = calloc(1, sizeof *md);
	dnnl_status_t status =
		md ? dnnl_memory_desc_init_by_tag(md, rank, dims, type, tag) : dnnl_out_of_memory;

	if (status)
		free(md);
	else
		*out = md;
	return status;
}

static inline dnnl_status_t dnnl_memory_desc_destroy(owned_md md)
{
	free(md);
	return dnnl_success;
}

static inline dnnl_status_t append_sum(dnnl_post_ops_t post, float scale, int zero_point,
				       dnnl_data_type_t type)
{
	(void)zero_point, (void)type;
	return dnnl_post_ops_append_sum(post, scale);
}
#define dnnl_post_ops_append_sum append_sum

static inline dnnl_status_t dnnl_convolution_forward_primitive_desc_create(
	dnnl_primitive_desc_t *out, dnnl_engine_t engine, dnnl_prop_kind_t kind,
	dnnl_alg_kind_t algorithm, const_dnnl_memory_desc_t x, const_dnnl_memory_desc_t w,
	const_dnnl_memory_desc_t b, const_dnnl_memory_desc_t y, const dnnl_dims_t strides,
	const dnnl_dims_t dilates, const dnnl_dims_t before, const dnnl_dims_t after,
	const_dnnl_primitive_attr_t attr)
{
	dnnl_convolution_desc_t op;
	dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
		&op, kind, algorithm, x, w, b, y, strides, dilates, before, after);

	return status ? status : dnnl_primitive_desc_create(out, &op, attr, engine, NULL);
}

static inline dnnl_status_t dnnl_convolution_backward_data_primitive_desc_create(
	dnnl_primitive_desc_t *out, dnnl_engine_t engine, dnnl_alg_kind_t algorithm,
	const_dnnl_memory_desc_t dx, const_dnnl_memory_desc_t w, const_dnnl_memory_desc_t dy,
	const dnnl_dims_t strides, const dnnl_dims_t dilates, const dnnl_dims_t before,
	const dnnl_dims_t after, const_dnnl_primitive_desc_t hint, const_dnnl_primitive_attr_t attr)
{
	dnnl_convolution_desc_t op;
	dnnl_status_t status = dnnl_dilated_convolution_backward_data_desc_init(
		&op, algorithm, dx, w, dy, strides, dilates, before, after);

	return status ? status : dnnl_primitive_desc_create(out, &op, attr, engine, hint);
}

static inline dnnl_status_t dnnl_convolution_backward_weights_primitive_desc_create(
	dnnl_primitive_desc_t *out, dnnl_engine_t engine, dnnl_alg_kind_t algorithm,
	const_dnnl_memory_desc_t x, const_dnnl_memory_desc_t dw, const_dnnl_memory_desc_t db,
	const_dnnl_memory_desc_t dy, const dnnl_dims_t strides, const dnnl_dims_t dilates,
	const dnnl_dims_t before, const dnnl_dims_t after, const_dnnl_primitive_desc_t hint,
	const_dnnl_primitive_attr_t attr)
{
	dnnl_convolution_desc_t op;
	dnnl_status_t status = dnnl_dilated_convolution_backward_weights_desc_init(
		&op, algorithm, x, dw, db, dy, strides, dilates, before, after);

	return status ? status : dnnl_primitive_desc_create(out, &op, attr, engine, hint);
}

#else
#error "the cpu device requires oneDNN 2.x or 3.x (libdnnl-dev); with other versions, configure with -Ddnnl=disabled"
#endif

#endif
