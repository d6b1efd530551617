/* SPDX-License-Identifier: BSD-3-Clause */
/* The known failures of known.txt, which is part of the program. */
#include <stdlib.h>
#include <string.h>

#include "explain/explain.h"
#include "known.h" /* generated: file_text, from known.txt */

static struct explain_row *rows;
static size_t row_count;

/* Add one "key: value" to a row. */
static void read_line(struct explain_row *row, char *line)
{
	char *value = strstr(line, ": ");
	int i = 0;

	if (!value)
		return;
	*value = '\0';
	value += 2;
	while (i < EXPLAIN_SUBSTRINGS - 1 && row->substrings[i])
		i++;
	if (!strcmp(line, "match"))
		row->substrings[i] = value;
	else if (!strcmp(line, "cause"))
		row->cause = value;
	else if (!strcmp(line, "fix"))
		row->fix = value;
	else if (!strcmp(line, "source"))
		row->source = value;
	else if (!strcmp(line, "of"))
		row->of_other = !strcmp(value, "another rank");
	else if (!strcmp(line, "in"))
		row->in_child = !strcmp(value, "child");
}

size_t explain_rows(const struct explain_row **out)
{
	size_t most = 1;
	char *rest, *line;

	*out = rows;
	if (rows)
		return row_count;
	for (const char *at = file_text; (at = strstr(at, "\n\n")); at += 2)
		most++;
	rest = strdup(file_text); /* the rows' strings */
	rows = rest ? calloc(most, sizeof *rows) : NULL;
	while (rows && (line = strsep(&rest, "\n")))
		if (*line)
			read_line(&rows[row_count], line);
		else
			row_count += rows[row_count].source != NULL;
	if (rows)
		row_count += rows[row_count].source != NULL;
	*out = rows;
	return row_count;
}
