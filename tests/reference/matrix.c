/* SPDX-License-Identifier: BSD-3-Clause */
/* One matrix product for convolutions and linear layers. Tiles of C stay in registers. Each element
 * is summed in the same order whatever the tile, so AVX2 and AVX-512 give the same bits. */
#include <string.h>

#include "reference.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* 16 floats; the compiler splits them if registers are narrower. Loads need no alignment. */
typedef float lane __attribute__((vector_size(64), aligned(4), may_alias));
#define LANE 16

/* One tile of C: rows x (lanes * 16), both compile-time constants. */
ALWAYS_INLINE void tile(const int rows, const int lanes, size_t depth, struct matrix a,
			const float *b, size_t b_row, float *c, size_t c_row, bool add)
{
	lane sum[8][2];

	for (int i = 0; i < rows; i++)
		for (int j = 0; j < lanes; j++)
			sum[i][j] =
				add ? *(const lane *)(c + (size_t)i * c_row + j * LANE) : (lane){0};
	for (size_t p = 0; p < depth; p++) {
		lane in[2];

		for (int j = 0; j < lanes; j++)
			in[j] = *(const lane *)(b + p * b_row + j * LANE);
		for (int i = 0; i < rows; i++) {
			float factor = a.at[(size_t)i * a.row + p * a.column];

			for (int j = 0; j < lanes; j++)
				sum[i][j] += in[j] * factor;
		}
	}
	for (int i = 0; i < rows; i++)
		for (int j = 0; j < lanes; j++)
			*(lane *)(c + (size_t)i * c_row + j * LANE) = sum[i][j];
}

ALWAYS_INLINE struct matrix from_row(struct matrix a, size_t i)
{
	a.at += i * a.row;
	return a;
}

ALWAYS_INLINE void column_of_tiles(const int max, const int lanes, size_t rows, size_t depth,
				   struct matrix a, const float *b, size_t b_row, float *c,
				   size_t c_row, bool add)
{
	size_t i = 0;

#define TILES(n)                                                                                   \
	for (; max >= n && rows - i >= n; i += n)                                                  \
	tile(n, lanes, depth, from_row(a, i), b, b_row, c + i * c_row, c_row, add)
	TILES(8);
	TILES(6);
	TILES(4);
	TILES(2);
	TILES(1);
#undef TILES
}

/* The last columns, fewer than a tile: B is packed with zeros, and C goes through a copy. */
ALWAYS_INLINE void ragged(const int max, const int lanes, size_t rows, size_t columns, size_t depth,
			  struct matrix a, const float *b, size_t b_row, float *c, size_t c_row,
			  bool add, float *pack)
{
	const size_t width = (size_t)lanes * LANE;
	float part[8 * 32];

	for (size_t p = 0; p < depth; p++) {
		memcpy(pack + p * width, b + p * b_row, columns * sizeof *b);
		memset(pack + p * width + columns, 0, (width - columns) * sizeof *b);
	}
	for (size_t i = 0; i < rows;) {
		size_t n = rows - i < (size_t)max ? rows - i : (size_t)max;

		memset(part, 0, sizeof part);
		for (size_t k = 0; add && k < n; k++)
			memcpy(part + k * width, c + (i + k) * c_row, columns * sizeof *c);
		column_of_tiles(max, lanes, n, depth, from_row(a, i), pack, width, part, width,
				add);
		for (size_t k = 0; k < n; k++)
			memcpy(c + (i + k) * c_row, part + k * width, columns * sizeof *c);
		i += n;
	}
}

ALWAYS_INLINE void multiply(const int max, const int lanes, size_t rows, size_t columns,
			    size_t depth, struct matrix a, const float *b, size_t b_row, float *c,
			    size_t c_row, bool add, float *pack)
{
	const size_t width = (size_t)lanes * LANE;
	size_t j = 0;

	for (; columns - j >= width; j += width)
		column_of_tiles(max, lanes, rows, depth, a, b + j, b_row, c + j, c_row, add);
	if (j < columns)
		ragged(max, lanes, rows, columns - j, depth, a, b + j, b_row, c + j, c_row, add,
		       pack);
}

#define MULTIPLY(name, target, max, lanes)                                                         \
	target static void name(size_t rows, size_t columns, size_t depth, struct matrix a,        \
				const float *b, size_t b_row, float *c, size_t c_row, bool add,    \
				float *pack)                                                       \
	{                                                                                          \
		multiply(max, lanes, rows, columns, depth, a, b, b_row, c, c_row, add, pack);      \
	}

MULTIPLY(multiply_plain, , 4, 1)
#if defined __x86_64__
MULTIPLY(multiply_avx2, __attribute__((target("avx2,fma"))), 6, 1)
MULTIPLY(multiply_avx512, __attribute__((target("avx512f,avx512vl,avx2,fma"))), 8, 2)
#endif

void matrix_multiply(size_t rows, size_t columns, size_t depth, struct matrix a, const float *b,
		     size_t b_row, float *c, size_t c_row, bool add, float *pack)
{
#if defined __x86_64__
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
		multiply_avx512(rows, columns, depth, a, b, b_row, c, c_row, add, pack);
	else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		multiply_avx2(rows, columns, depth, a, b, b_row, c, c_row, add, pack);
	else
#endif
		multiply_plain(rows, columns, depth, a, b, b_row, c, c_row, add, pack);
}

void matrix_transpose(size_t rows, size_t columns, const float *from, float *to)
{
	for (size_t i0 = 0; i0 < rows; i0 += 16)
		for (size_t j = 0; j < columns; j++)
			for (size_t i = i0; i < rows && i < i0 + 16; i++)
				to[j * rows + i] = from[i * columns + j];
}
