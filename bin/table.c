/* SPDX-License-Identifier: BSD-3-Clause */
#include "table.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"

#define WIDTH_DEFAULT 100
#define WIDTH_LEAST 60
#define LAST_LEAST 30 /* columns the last cell needs to stay in the row */

void paint_init(const struct env *env, struct paint *out)
{
	static const struct paint plain = {"", "", "", "", WIDTH_DEFAULT};
	static const struct paint colours = {"\033[1m", "\033[2m", "\033[33m", "\033[0m",
					     WIDTH_DEFAULT};
	bool terminal = isatty(STDOUT_FILENO);
	struct winsize size;

	*out = log_fd_has_colour(STDOUT_FILENO, env) ? colours : plain;
	if (terminal && !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col)
		out->width = size.ws_col < WIDTH_LEAST ? WIDTH_LEAST : size.ws_col;
}

void text_wrap(const char *text, int column, int width)
{
	int at = column;

	for (bool first = true; *text; first = false) {
		int length = (int)strcspn(text, " \n");

		if (!first && at + 1 + length > width) {
			printf("\n%*s", column, "");
			at = column;
		} else if (!first) {
			putchar(' ');
			at++;
		}
		printf("%.*s", length, text);
		at += length;
		text += length;
		text += strspn(text, " \n");
	}
	putchar('\n');
}

void table_row(struct table *table, const char *const *cells)
{
	if (!array_reserve(&table->rows, table->row_count, &table->room, sizeof *table->rows)) {
		table->short_of_memory = true;
		return;
	}

	char **row = table->rows[table->row_count];

	memset(row, 0, sizeof *table->rows);
	for (int column = 0; column < TABLE_COLUMNS && cells[column]; column++) {
		row[column] = strdup(*cells[column] ? cells[column] : "-");
		table->short_of_memory |= !row[column];
		if (!row[column])
			continue;
		text_replace_controls(row[column], ' ', "");

		int length = (int)strlen(row[column]);

		if (length > table->widths[column])
			table->widths[column] = length;
		if (column >= table->columns)
			table->columns = column + 1;
	}
	table->row_count++;
}

static void row_print(const struct table *table, char *const *row, int indent, int width)
{
	const int *widths = table->widths, columns = table->columns;
	int at = indent;

	printf("%*s", indent, "");
	for (int column = 0; column < columns - 1; column++) {
		printf("%-*s", widths[column], row[column] ? row[column] : "");
		at += widths[column];
		if (column + 1 < columns - 1 || (row[columns - 1] && *row[columns - 1])) {
			fputs("  ", stdout);
			at += 2;
		}
	}

	const char *last = row[columns - 1] ? row[columns - 1] : "";

	if (at + LAST_LEAST > width && at + (int)strlen(last) > width) {
		at = indent + 4;
		printf("\n%*s", at, "");
	}
	text_wrap(last, at, width);
}

void table_print(struct table *table, const struct paint *paint, int indent)
{
	if (table->short_of_memory)
		printf("%*s(out of memory: rows are missing)\n", indent, "");
	for (size_t i = 0; i < table->row_count; i++) {
		char **row = table->rows[i];

		if (table->row_count > 1) {
			fputs(i ? "" : paint->dim, stdout);
			row_print(table, row, indent, paint->width);
			fputs(i ? "" : paint->off, stdout);
		}
		for (int column = 0; column < TABLE_COLUMNS; column++)
			free(row[column]);
	}
	free(table->rows);
}
