/* SPDX-License-Identifier: BSD-3-Clause */
/* What winograd.c computes with: vectors of an instruction set, the transforms of a tile, and
 * products of matrices. */
#ifndef BERTH_TRAIN_CPU_WINOGRAD_PARTS_H
#define BERTH_TRAIN_CPU_WINOGRAD_PARTS_H

#include <stdbool.h>
#include <stddef.h>

/* Functions with vectors are inlined always: none is passed. */
#pragma GCC diagnostic ignored "-Wpsabi"

#ifdef __AVX512F__
#define LANES 16
#define VECTORS 4 /* of a row of the product in registers */
#else
#define LANES 8
#define VECTORS 2
#endif
#define SIDE 6	   /* of a transformed tile */
#define POINTS 36  /* SIDE * SIDE */
#define OUTPUTS 4  /* the side of a tile of outputs */
#define DEPTH 128  /* of a product: what of the second matrix stays in the first cache */
#define PADDING 16 /* floats between the 36 matrices, so that they do not share cache sets */

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef float in_memory __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

INLINE vector load(const float *from)
{
	return *(const in_memory *)from;
}

INLINE void store(float *to, vector value)
{
	*(in_memory *)to = value;
}

static inline size_t up(size_t value, size_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

/* ---- transforms of a row or column; the arguments' elements are `step` apart ---- */

#define A 0.625f
#define B 1.5f
#define A2 (A * A)
#define B2 (B * B)
#define NA (1 / (2 * A2 * (A2 - B2)))
#define NB (1 / (2 * B2 * (B2 - A2)))

/* Six data to six points. */
INLINE void data_points(const vector *x, vector *to, size_t step)
{
	vector x0 = x[0], x1 = x[step], x2 = x[2 * step], x3 = x[3 * step], x4 = x[4 * step],
	       x5 = x[5 * step];
	vector even_a = x4 - B2 * x2, odd_a = A * (x3 - B2 * x1);
	vector even_b = x4 - A2 * x2, odd_b = B * (x3 - A2 * x1);

	to[0] = A2 * B2 * x0 - (A2 + B2) * x2 + x4;
	to[step] = even_a + odd_a;
	to[2 * step] = even_a - odd_a;
	to[3 * step] = even_b + odd_b;
	to[4 * step] = even_b - odd_b;
	to[5 * step] = A2 * B2 * x1 - (A2 + B2) * x3 + x5;
}

/* Three weights to six points. */
INLINE void weight_points(const vector *w, vector *to, size_t step)
{
	vector w0 = w[0], w1 = w[step], w2 = w[2 * step];
	vector even_a = NA * (w0 + A2 * w2), odd_a = NA * A * w1;
	vector even_b = NB * (w0 + B2 * w2), odd_b = NB * B * w1;

	to[0] = w0 * (1 / (A2 * B2));
	to[step] = even_a + odd_a;
	to[2 * step] = even_a - odd_a;
	to[3 * step] = even_b + odd_b;
	to[4 * step] = even_b - odd_b;
	to[5 * step] = w2;
}

/* Six points to four outputs. */
INLINE void outputs(const vector *points, vector *to, size_t step)
{
	vector sum_a = points[step] + points[2 * step], by_a = points[step] - points[2 * step];
	vector sum_b = points[3 * step] + points[4 * step],
	       by_b = points[3 * step] - points[4 * step];
	vector first = points[0], last = points[5 * step];

	to[0] = first + sum_a + sum_b;
	to[step] = A * by_a + B * by_b;
	to[2 * step] = A2 * sum_a + B2 * sum_b;
	to[3 * step] = A2 * A * by_a + B2 * B * by_b + last;
}

/* The transpose of outputs: four gradients to six points. */
INLINE void output_points(const vector *y, vector *to, size_t step)
{
	vector y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
	vector even_a = y0 + A2 * y2, odd_a = A * (y1 + A2 * y3);
	vector even_b = y0 + B2 * y2, odd_b = B * (y1 + B2 * y3);

	to[0] = y0;
	to[step] = even_a + odd_a;
	to[2 * step] = even_a - odd_a;
	to[3 * step] = even_b + odd_b;
	to[4 * step] = even_b - odd_b;
	to[5 * step] = y3;
}

/* The transpose of weight_points: six points to three gradients of weights. */
INLINE void weights(const vector *points, vector *to, size_t step)
{
	vector sum_a = NA * (points[step] + points[2 * step]);
	vector by_a = NA * (points[step] - points[2 * step]);
	vector sum_b = NB * (points[3 * step] + points[4 * step]);
	vector by_b = NB * (points[3 * step] - points[4 * step]);
	vector first = points[0] * (1 / (A2 * B2)), last = points[5 * step];

	to[0] = first + sum_a + sum_b;
	to[step] = A * by_a + B * by_b;
	to[2 * step] = A2 * sum_a + B2 * sum_b + last;
}

/* Both dimensions of a tile whose rows are SIDE apart: columns, then rows. */
#define BOTH(transform, tile, columns, rows)                                                       \
	do {                                                                                       \
		_Pragma("GCC unroll 6") for (size_t i_ = 0; i_ < (columns); i_++)                  \
			transform((tile) + i_, (tile) + i_, SIDE);                                 \
		_Pragma("GCC unroll 6") for (size_t i_ = 0; i_ < (rows); i_++)                     \
			transform((tile) + SIDE * i_, (tile) + SIDE * i_, 1);                      \
	} while (0)

/* ---- products of matrices ---- */

/* c [rows][count * LANES] = or += a b, where a's elements are a_row and a_step apart. rows and
 * count are constants: all sums are in registers. */
INLINE void product_part(size_t rows, size_t count, size_t depth, const float *a, size_t a_row,
			 size_t a_step, const float *b, size_t b_row, float *c, size_t c_row,
			 bool add)
{
	vector sums[6][VECTORS];

#pragma GCC unroll 6
	for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (size_t v = 0; v < count; v++)
			sums[r][v] = add ? load(c + r * c_row + v * LANES) : (vector){0};
#pragma GCC unroll 1
	for (size_t k = 0; k < depth; k++) {
		vector right[VECTORS];

#pragma GCC unroll 4
		for (size_t v = 0; v < count; v++)
			right[v] = load(b + k * b_row + v * LANES);
#pragma GCC unroll 6
		for (size_t r = 0; r < rows; r++) {
			float left = a[r * a_row + k * a_step];

#pragma GCC unroll 4
			for (size_t v = 0; v < count; v++)
				sums[r][v] += left * right[v];
		}
	}
#pragma GCC unroll 6
	for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 4
		for (size_t v = 0; v < count; v++)
			store(c + r * c_row + v * LANES, sums[r][v]);
}

/* All rows, which are an even number. count is a constant. */
INLINE void product_columns(size_t rows, size_t count, size_t depth, const float *a, size_t a_row,
			    size_t a_step, const float *b, size_t b_row, float *c, size_t c_row,
			    bool add)
{
	for (; rows >= 6; rows -= 6, a += 6 * a_row, c += 6 * c_row)
		product_part(6, count, depth, a, a_row, a_step, b, b_row, c, c_row, add);
	if (rows == 4)
		product_part(4, count, depth, a, a_row, a_step, b, b_row, c, c_row, add);
	else if (rows == 2)
		product_part(2, count, depth, a, a_row, a_step, b, b_row, c, c_row, add);
}

/* c [rows][columns] = or += a [rows][depth] b [depth][columns]; rows is even, columns a multiple of
 * LANES. a's elements are a_row and a_step apart. */
static inline void product(size_t rows, size_t columns, size_t depth, const float *a, size_t a_row,
			   size_t a_step, const float *b, size_t b_row, float *c, size_t c_row,
			   bool add)
{
	for (size_t column = 0; column < columns;) {
		size_t left = (columns - column) / LANES;

		for (size_t k = 0; k < depth; k += DEPTH) {
			size_t deep = depth - k < DEPTH ? depth - k : DEPTH;
			const float *from = a + k * a_step, *right = b + k * b_row + column;

			if (left >= VECTORS)
				product_columns(rows, VECTORS, deep, from, a_row, a_step, right,
						b_row, c + column, c_row, add || k);
			else if (left >= 2)
				product_columns(rows, 2, deep, from, a_row, a_step, right, b_row,
						c + column, c_row, add || k);
			else
				product_columns(rows, 1, deep, from, a_row, a_step, right, b_row,
						c + column, c_row, add || k);
		}
		column += (left >= VECTORS ? VECTORS : left >= 2 ? 2 : 1) * LANES;
	}
}

/* Points of tiles or weights: 36 matrices, `matrix` floats apart, with rows of `row` floats. */
struct points {
	float *at;
	size_t matrix, row;
};

static inline struct points points_at(float *at, size_t rows, size_t row)
{
	return (struct points){at, rows * row + PADDING, row};
}

INLINE void points_store(struct points points, size_t row, size_t column, const vector *tile)
{
#pragma GCC unroll 36
	for (size_t p = 0; p < POINTS; p++)
		store(points.at + p * points.matrix + row * points.row + column, tile[p]);
}

INLINE void points_load(struct points points, size_t row, size_t column, vector *tile)
{
#pragma GCC unroll 36
	for (size_t p = 0; p < POINTS; p++)
		tile[p] = load(points.at + p * points.matrix + row * points.row + column);
}

#endif
