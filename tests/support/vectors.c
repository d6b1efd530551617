/* SPDX-License-Identifier: BSD-3-Clause */
#include "vectors.h"

#include "../unit/rows.h"
#include "files.h"

#include <errno.h>

#ifndef VECTORS
#error "VECTORS is the directory of the tables"
#endif

struct vector_table vectors_read(const char *file, const char *name)
{
	struct vector_table table = {0};
	char path[512];

	snprintf(path, sizeof path, "%s/%s", VECTORS, file);
	table.text = read_text(path);
	for (char *next = table.text; next && *next;) {
		char *line = strsep(&next, "\n"), *word = strsep(&line, " ");

		if (strcmp(word, name))
			continue;
		table.rows = realloc(table.rows, (table.count + 1) * sizeof *table.rows);
		assert_non_null(table.rows);

		struct vector_row *row = &table.rows[table.count++];

		for (row->count = 0; (word = strsep(&line, " "));) {
			assert_true(row->count < VECTOR_FIELDS);
			row->fields[row->count++] = word;
		}
	}
	if (!table.count)
		fail_msg("%s has no row '%s'", path, name);
	return table;
}

void vectors_free(struct vector_table *table)
{
	free(table->rows);
	free(table->text);
	*table = (struct vector_table){0};
}

const char *vector_text(const struct vector_row *row, int at)
{
	if (at >= row->count)
		fail_msg("field %d of the row '%s ...' is missing", at, row->fields[0]);
	return row->fields[at];
}

/* Check that a conversion took the whole field. */
static void whole(const char *text, const char *end)
{
	if (errno || end == text || *end)
		fail_msg("'%s' is not a number of this kind", text);
}

double vector_real(const struct vector_row *row, int at)
{
	const char *text = vector_text(row, at);
	char *end;

	errno = 0;
	double value = strtod(text, &end);

	whole(text, end);
	return value;
}

int64_t vector_int(const struct vector_row *row, int at)
{
	const char *text = vector_text(row, at);
	char *end;

	errno = 0;
	int64_t value = strtoll(text, &end, 0);

	whole(text, end);
	return value;
}

uint64_t vector_uint(const struct vector_row *row, int at)
{
	const char *text = vector_text(row, at);
	char *end;

	errno = 0;
	uint64_t value = strtoull(text, &end, 0);

	whole(text, end);
	return value;
}
