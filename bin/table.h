/* SPDX-License-Identifier: BSD-3-Clause */
/* Text on standard output: aligned columns, and colour if wanted. */
#ifndef BERTH_BIN_TABLE_H
#define BERTH_BIN_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"

/* Escape sequences, all "" when colour is off. */
struct paint {
	const char *bold, *dim, *warn, *off;
	int width; /* columns of the terminal; 100 if standard output is not a terminal */
};

/* Colour on a terminal, unless NO_COLOR is set and not empty, or TERM is dumb. */
void paint_init(const struct env *env, struct paint *out);

/* Print text word by word between column (where the cursor already is) and width; further lines
 * begin at column. Ends the line. A word that is too long stays whole. */
void text_wrap(const char *text, int column, int width);

#define TABLE_COLUMNS 9

/* Rows of at most TABLE_COLUMNS cells; zero-initialised. table_print frees them. */
struct table {
	size_t row_count, room;
	char *(*rows)[TABLE_COLUMNS];
	int columns, widths[TABLE_COLUMNS]; /* the widest cell of each */
	bool short_of_memory;
};

/* Add a row: cells up to a NULL. Copied, with blanks for control characters; an empty cell is
 * printed as "-". The first row is the heading. If memory is out, the row is dropped and
 * table_print reports that. */
void table_row(struct table *table, const char *const *cells);
#define TABLE_ROW(table, ...) table_row(table, (const char *const[]){__VA_ARGS__, NULL})

/* Print indented by indent columns, and free the rows; the last column is wrapped at paint->width.
 * Prints nothing if there is no row besides the heading. */
void table_print(struct table *table, const struct paint *paint, int indent);

#endif
