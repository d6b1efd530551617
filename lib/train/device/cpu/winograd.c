/* SPDX-License-Identifier: BSD-3-Clause */
/* See winograd.h. Tiles are worked on in blocks, whose transforms stay in a core's cache. Compiled
 * once per instruction set (lib/modules). */
#include "train/device/cpu/winograd.h"

#include <omp.h>

#include "train/device/cpu/winograd_parts.h"

#define FEW_TILES 128 /* see panel_of */
#define CHUNK 32      /* rows of a gradient's product that are one piece of work */

static size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* ---- tiles ---- */

/* A value that is cut into tiles of 4x4 outputs each. */
struct image {
	size_t channels, height, width;
};

struct tiles {
	size_t down, across, count; /* per image, and in all images */
};

static struct tiles tiles_of(size_t n, const struct image *y)
{
	struct tiles tiles = {up(y->height, OUTPUTS) / OUTPUTS, up(y->width, OUTPUTS) / OUTPUTS, 0};

	tiles.count = n * tiles.down * tiles.across;
	return tiles;
}

/* The image of tile number `tile` in data, and where in it the tile begins: `pad` before its
 * outputs.
 */
INLINE const float *tile_at(const struct tiles *tiles, size_t tile, const struct image *image,
			    const float *data, size_t pad, ptrdiff_t *row, ptrdiff_t *column)
{
	size_t in_image = tile % (tiles->down * tiles->across);

	*row = (ptrdiff_t)(in_image / tiles->across * OUTPUTS) - (ptrdiff_t)pad;
	*column = (ptrdiff_t)(in_image % tiles->across * OUTPUTS) - (ptrdiff_t)pad;
	return data + tile / (tiles->down * tiles->across) * image->channels * image->height *
			      image->width;
}

/* side x side positions of a plane of LANES channels; zeros outside. side is a constant. */
INLINE void tile_load(const float *plane, const struct image *image, ptrdiff_t row,
		      ptrdiff_t column, size_t side, vector *tile)
{
	ptrdiff_t height = (ptrdiff_t)image->height, width = (ptrdiff_t)image->width;

	if (row >= 0 && column >= 0 && row + (ptrdiff_t)side <= height &&
	    column + (ptrdiff_t)side <= width) {
		const float *at = plane + (row * width + column) * LANES;

#pragma GCC unroll 6
		for (size_t i = 0; i < side; i++)
#pragma GCC unroll 6
			for (size_t j = 0; j < side; j++)
				tile[i * SIDE + j] = load(at + (i * (size_t)width + j) * LANES);
		return;
	}
	for (size_t i = 0; i < side; i++)
		for (size_t j = 0; j < side; j++) {
			ptrdiff_t y = row + (ptrdiff_t)i, x = column + (ptrdiff_t)j;
			bool inside = y >= 0 && y < height && x >= 0 && x < width;

			tile[i * SIDE + j] =
				inside ? load(plane + (y * width + x) * LANES) : (vector){0};
		}
}

/* The points of `count` tiles, a row each: of data (side is SIDE), or of gradients of outputs (side
 * is OUTPUTS). side is a constant. */
INLINE void transform_tiles(const struct tiles *tiles, size_t first, size_t count,
			    const struct image *image, const float *data, size_t pad, size_t side,
			    struct points to)
{
	for (size_t t = 0; t < count; t++) {
		ptrdiff_t row, column;
		const float *plane = tile_at(tiles, first + t, image, data, pad, &row, &column);

		for (size_t c = 0; c < image->channels; c += LANES) {
			vector tile[POINTS];

			tile_load(plane + c * image->height * image->width, image, row, column,
				  side, tile);
			if (side == SIDE)
				BOTH(data_points, tile, SIDE, SIDE);
			else
				BOTH(output_points, tile, OUTPUTS, SIDE);
			points_store(to, t, c, tile);
		}
	}
}

/* Channels k to k + channels of `count` tiles of y. */
static void transform_back(const struct tiles *tiles, size_t first, size_t count,
			   struct points from, const struct image *y, size_t k, size_t channels,
			   const float *b, float *data)
{
	for (size_t t = 0; t < count; t++) {
		ptrdiff_t row, column;
		size_t plane =
			(size_t)(tile_at(tiles, first + t, y, data, 0, &row, &column) - data);
		size_t down = y->height - (size_t)row, across = y->width - (size_t)column;

		down = smaller(down, OUTPUTS);
		across = smaller(across, OUTPUTS);
		for (size_t c = 0; c < channels; c += LANES) {
			float *to = data + plane + (k + c) * y->height * y->width +
				    ((size_t)row * y->width + (size_t)column) * LANES;
			vector tile[POINTS], bias = b ? load(b + k + c) : (vector){0};

			points_load(from, t, c, tile);
			BOTH(outputs, tile, SIDE, OUTPUTS);
			for (size_t i = 0; i < down; i++)
				for (size_t j = 0; j < across; j++)
					store(to + (i * y->width + j) * LANES,
					      tile[i * SIDE + j] + bias);
		}
	}
}

/* ---- weights ---- */

/* The points of w [outputs][inputs][9] are matrices of [inputs][outputs]; for the gradient of x, w
 * is turned by half a turn and they are matrices of [outputs][inputs]. `to` is the part of them
 * that begins at row and column. */
static void transform_weights(const struct winograd_call *call, bool turned, size_t row,
			      size_t rows, size_t column, size_t columns, struct points to)
{
	size_t lane_step = turned ? 9 : call->inputs * 9;
	size_t row_step = turned ? call->inputs * 9 : 9;
	/* What is next to a kernel in memory is used soon, in both cases. */
	size_t chunk = turned ? 1 : 8;

	for (size_t first = 0; first < rows; first += chunk)
		for (size_t c = 0; c < columns; c += LANES)
			for (size_t r = first; r < rows && r < first + chunk; r++) {
				const float *w =
					call->w + (row + r) * row_step + (column + c) * lane_step;
				vector tile[POINTS];

				for (size_t lane = 0; lane < LANES; lane++, w += lane_step)
#pragma GCC unroll 9
					for (size_t i = 0; i < 9; i++)
						tile[i / 3 * SIDE + i % 3][lane] =
							w[turned ? 8 - i : i];
				BOTH(weight_points, tile, 3, SIDE);
				points_store(to, r, c, tile);
			}
}

/* The gradients of `outputs` rows of w from row k on. */
static void transform_back_weights(const struct winograd_call *call, struct points from, size_t k,
				   size_t outputs)
{
	for (size_t o = 0; o < outputs; o += LANES)
		for (size_t c = 0; c < call->inputs; c++) {
			float *to = call->dw + ((k + o) * call->inputs + c) * 9;
			vector tile[POINTS];

			points_load(from, c, o, tile);
			BOTH(weights, tile, SIDE, 3);
			for (size_t lane = 0; lane < LANES; lane++, to += call->inputs * 9)
#pragma GCC unroll 9
				for (size_t i = 0; i < 9; i++) {
					float value = tile[i / 3 * SIDE + i % 3][lane];

					to[i] = call->add_dw ? to[i] + value : value;
				}
		}
}

/* ---- passes ---- */

static struct image x_of(const struct winograd_call *call)
{
	return (struct image){call->inputs, call->height, call->width};
}

static struct image y_of(const struct winograd_call *call)
{
	return (struct image){call->outputs, call->height + 2 * call->pad - 2,
			      call->width + 2 * call->pad - 2};
}

/* With few tiles, the points of the weights are the most of the data. Then the threads share the
 * output channels: each takes this many at a time, and keeps their weights in its cache. With more
 * tiles, they share the tiles. 0: share the tiles. */
static size_t panel_of(const struct winograd_call *call, const struct tiles *tiles, size_t channels)
{
	size_t panel = VECTORS * LANES;

	if (tiles->count > FEW_TILES)
		return 0;
	while (panel > LANES && channels / panel < (size_t)call->threads)
		panel /= 2;
	return panel;
}

/* Tiles of a block, an even number: so many that a core's cache (1 to 2 MB) holds their points, but
 * enough to make reading the points of weights pay. */
static size_t block_of(const struct winograd_call *call, const struct tiles *tiles)
{
	size_t channels = call->inputs + call->outputs, threads = (size_t)call->threads;
	size_t block = channels < 128 ? 32 : channels > 512 ? 128 : up(channels / 4, 2);
	size_t share = up((tiles->count + threads - 1) / threads, 2);

	return smaller(share, block);
}

static size_t points_size(size_t rows, size_t row)
{
	return POINTS * (rows * row + PADDING);
}

/* y = x * w + b, where x is padded by pad. turned: see transform_weights. */
struct winograd_conv {
	const struct winograd_call *call;
	struct image from, to;
	struct tiles tiles;
	size_t pad;
	bool turned;
	const float *x, *b;
	float *y;
};

/* All tiles are in one block. */
static void convolve_panels(const struct winograd_conv *conv, size_t panel)
{
	const struct tiles *tiles = &conv->tiles;
	size_t in = conv->from.channels, out = conv->to.channels, rows = up(tiles->count, 2);
	struct points data = points_at(conv->call->scratch, rows, in);
	float *rest = conv->call->scratch + points_size(rows, in);
	size_t size = points_size(in, panel) + points_size(rows, panel);

#pragma omp parallel num_threads(conv->call->threads)
	{
		float *own = rest + (size_t)omp_get_thread_num() * size;
		struct points w = points_at(own, in, panel);
		struct points y = points_at(own + points_size(in, panel), rows, panel);

#pragma omp for
		for (size_t t = 0; t < tiles->count; t++) {
			struct points at = data;

			at.at += t * in;
			transform_tiles(tiles, t, 1, &conv->from, conv->x, conv->pad, SIDE, at);
		}
#pragma omp for schedule(static, 1)
		for (size_t k = 0; k < out; k += panel) {
			size_t columns = smaller(out - k, panel);

			transform_weights(conv->call, conv->turned, 0, in, k, columns, w);
			for (size_t p = 0; p < POINTS; p++)
				product(rows, columns, in, data.at + p * data.matrix, in, 1,
					w.at + p * w.matrix, panel, y.at + p * y.matrix, panel,
					false);
			transform_back(tiles, 0, tiles->count, y, &conv->to, k, columns, conv->b,
				       conv->y);
		}
	}
}

static void convolve_tiles(const struct winograd_conv *conv)
{
	const struct tiles *tiles = &conv->tiles;
	size_t in = conv->from.channels, out = conv->to.channels;
	size_t block = block_of(conv->call, tiles);
	struct points w = points_at(conv->call->scratch, in, out);
	float *rest = conv->call->scratch + points_size(in, out);
	size_t size = points_size(block, in) + points_size(block, out);

#pragma omp parallel num_threads(conv->call->threads)
	{
		float *own = rest + (size_t)omp_get_thread_num() * size;
		struct points data = points_at(own, block, in);
		struct points y = points_at(own + points_size(block, in), block, out);

#pragma omp for
		for (size_t row = 0; row < in; row += LANES) {
			struct points part = w;

			part.at += row * w.row;
			transform_weights(conv->call, conv->turned, row, LANES, 0, out, part);
		}
#pragma omp for schedule(static, 1)
		for (size_t first = 0; first < tiles->count; first += block) {
			size_t count = smaller(tiles->count - first, block);

			transform_tiles(tiles, first, count, &conv->from, conv->x, conv->pad, SIDE,
					data);
			for (size_t p = 0; p < POINTS; p++)
				product(up(count, 2), out, in, data.at + p * data.matrix, in, 1,
					w.at + p * w.matrix, out, y.at + p * y.matrix, out, false);
			transform_back(tiles, first, count, y, &conv->to, 0, out, conv->b, conv->y);
		}
	}
}

/* With an odd number of tiles, the products have one row more, which is not read. */
static void convolve(const struct winograd_conv *conv)
{
	size_t panel = panel_of(conv->call, &conv->tiles, conv->to.channels);

	if (panel)
		convolve_panels(conv, panel);
	else
		convolve_tiles(conv);
}

static void forward(const struct winograd_call *call)
{
	struct winograd_conv conv = {call,  x_of(call), y_of(call), {0},    call->pad,
				     false, call->x,	call->b,    call->y};

	conv.tiles = tiles_of(call->n, &conv.to);
	convolve(&conv);
}

static void backward_input(const struct winograd_call *call)
{
	struct winograd_conv conv = {call, y_of(call), x_of(call), {0},	    2 - call->pad,
				     true, call->dy,   NULL,	   call->dx};

	conv.tiles = tiles_of(call->n, &conv.to);
	convolve(&conv);
}

static void bias_gradient(const struct winograd_call *call, const struct image *y)
{
	size_t plane = y->height * y->width * LANES;

#pragma omp parallel for num_threads(call->threads)
	for (size_t k = 0; k < y->channels; k += LANES) {
		vector sum = call->add_dw ? load(call->db + k) : (vector){0};

		for (size_t n = 0; n < call->n; n++) {
			const float *from = call->dy + (n * y->channels + k) / LANES * plane;
			vector part = {0};

			for (size_t i = 0; i < plane; i += LANES)
				part += load(from + i);
			sum += part;
		}
		store(call->db + k, sum);
	}
}

/* The points of tiles [first, first + count) of x and dy; to be called by all threads. */
static void transform_both(const struct winograd_call *call, const struct tiles *tiles,
			   size_t first, size_t count, struct points data, struct points gradients)
{
	struct image x = x_of(call), y = y_of(call);

#pragma omp for
	for (size_t t = 0; t < count; t++) {
		struct points data_row = data, gradients_row = gradients;

		data_row.at += t * data.row;
		gradients_row.at += t * gradients.row;
		transform_tiles(tiles, first + t, 1, &x, call->x, call->pad, SIDE, data_row);
		transform_tiles(tiles, first + t, 1, &y, call->dy, 0, OUTPUTS, gradients_row);
	}
}

static void weights_panels(const struct winograd_call *call, const struct tiles *tiles,
			   size_t panel)
{
	size_t in = call->inputs, out = call->outputs, count = tiles->count;
	struct points data = points_at(call->scratch, count, in);
	struct points gradients = points_at(data.at + points_size(count, in), count, out);
	float *rest = gradients.at + points_size(count, out);

#pragma omp parallel num_threads(call->threads)
	{
		struct points sums = points_at(
			rest + (size_t)omp_get_thread_num() * points_size(in, panel), in, panel);

		transform_both(call, tiles, 0, count, data, gradients);
#pragma omp for schedule(static, 1)
		for (size_t k = 0; k < out; k += panel) {
			size_t columns = smaller(out - k, panel);

			for (size_t p = 0; p < POINTS; p++)
				product(in, columns, count, data.at + p * data.matrix, 1, in,
					gradients.at + p * gradients.matrix + k, out,
					sums.at + p * sums.matrix, panel, false);
			transform_back_weights(call, sums, k, columns);
		}
	}
}

static void weights_tiles(const struct winograd_call *call, const struct tiles *tiles)
{
	size_t in = call->inputs, out = call->outputs;
	size_t block = smaller((size_t)call->threads * block_of(call, tiles), tiles->count);
	size_t chunks = up(in, CHUNK) / CHUNK;
	struct points sums = points_at(call->scratch, in, out);
	struct points data = points_at(sums.at + points_size(in, out), block, in);
	struct points gradients = points_at(data.at + points_size(block, in), block, out);

#pragma omp parallel num_threads(call->threads)
	{
		for (size_t first = 0; first < tiles->count; first += block) {
			size_t count = smaller(tiles->count - first, block);

			transform_both(call, tiles, first, count, data, gradients);
#pragma omp for
			for (size_t i = 0; i < POINTS * chunks; i++) {
				size_t p = i / chunks, row = i % chunks * CHUNK;
				size_t rows = smaller(in - row, CHUNK);

				product(rows, out, count, data.at + p * data.matrix + row, 1, in,
					gradients.at + p * gradients.matrix, out,
					sums.at + p * sums.matrix + row * out, out, first > 0);
			}
		}
#pragma omp for
		for (size_t k = 0; k < out; k += LANES) {
			struct points part = sums;

			part.at += k;
			transform_back_weights(call, part, k, LANES);
		}
	}
}

static void backward_weights(const struct winograd_call *call)
{
	struct image y = y_of(call);
	struct tiles tiles = tiles_of(call->n, &y);
	size_t panel = panel_of(call, &tiles, call->outputs);

	if (panel)
		weights_panels(call, &tiles, panel);
	else
		weights_tiles(call, &tiles);
	if (call->db)
		bias_gradient(call, &y);
}

static bool tiles_pay(size_t n, const struct image *y)
{
	size_t all = n * y->height * y->width;

	return all >= 256 && 2 * all >= tiles_of(n, y).count * OUTPUTS * OUTPUTS;
}

/* Measured on one core with AVX-512 and with AVX2, 16 to 512 channels: with fewer outputs,
 * transforming the weights takes longer than the products save; so do tiles that are mostly
 * outside. */
static bool pays(const struct winograd_call *call)
{
	struct image x = x_of(call), y = y_of(call);

	return tiles_pay(call->n, &x) && tiles_pay(call->n, &y);
}

/* What a pass needs between these channels. Pieces of work go to the threads in turn, so only the
 * first threads need memory if there are fewer pieces. */
static size_t scratch_for(const struct winograd_call *call, const struct tiles *tiles, size_t in,
			  size_t out)
{
	size_t rows = up(tiles->count, 2), panel = panel_of(call, tiles, out);
	size_t block = block_of(call, tiles), threads = (size_t)call->threads;

	if (panel) {
		threads = smaller(threads, (out + panel - 1) / panel);
		return points_size(rows, in) + points_size(rows, out) +
		       threads * (points_size(in, panel) + points_size(rows, panel));
	}
	threads = smaller(threads, (tiles->count + block - 1) / block);
	return points_size(in, out) + threads * (points_size(block, in) + points_size(block, out));
}

static size_t scratch(const struct winograd_call *call)
{
	struct image x = x_of(call), y = y_of(call);
	struct tiles forth = tiles_of(call->n, &y), back = tiles_of(call->n, &x);
	size_t one = scratch_for(call, &forth, call->inputs, call->outputs);
	size_t other = scratch_for(call, &back, call->outputs, call->inputs);

	return one > other ? one : other;
}

const struct winograd WINOGRAD_NAME = {.lanes = LANES,
				       .pays = pays,
				       .scratch = scratch,
				       .forward = forward,
				       .backward_input = backward_input,
				       .backward_weights = backward_weights};
