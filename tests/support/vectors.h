/* SPDX-License-Identifier: BSD-3-Clause */
/* Tables of expected numbers, which a script beside the test prints. A line that begins with # is
 * a comment. Every other line is one row: the table's name, then the row's fields, separated by
 * blanks. Each function fails the running test on any error. */
#ifndef BERTH_TESTS_VECTORS_H
#define BERTH_TESTS_VECTORS_H

#include <stddef.h>
#include <stdint.h>

#define VECTOR_FIELDS 64

struct vector_row {
	int count;
	char *fields[VECTOR_FIELDS];
};
struct vector_table {
	size_t count;
	struct vector_row *rows;
	char *text; /* the fields point into it */
};

/* Read the rows of table, at least one, from file in the directory VECTORS. Free it with
 * vectors_free. */
struct vector_table vectors_read(const char *file, const char *table);
void vectors_free(struct vector_table *table);

/* Return field number at of row: as text, as a float64 (decimal or hexadecimal), or as a whole
 * number (decimal, or hexadecimal after 0x). */
const char *vector_text(const struct vector_row *row, int at);
double vector_real(const struct vector_row *row, int at);
int64_t vector_int(const struct vector_row *row, int at);
uint64_t vector_uint(const struct vector_row *row, int at);

#endif
