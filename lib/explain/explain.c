/* SPDX-License-Identifier: BSD-3-Clause */
#include "explain/explain.h"

#include <string.h>

/* Is it in the line? After "^" at its beginning, which may follow PyTorch's "[rank0]: ". */
static bool has(const char *line, const char *substring)
{
	const char *at = strstr(line, substring + (*substring == '^'));

	return at && (*substring != '^' || at == line ||
		      (*line == '[' && at - line > 2 && !strncmp(at - 3, "]: ", 3)));
}

static bool matches(const struct explain_row *row, const char *line)
{
	for (int i = 0; i < EXPLAIN_SUBSTRINGS && row->substrings[i]; i++)
		if (!has(line, row->substrings[i]))
			return false;
	return true;
}

bool explain_is_child(const char *line)
{
	return line && strstr(line, "/multiprocessing/");
}

const struct explain_row *explain_line(const char *line, bool in_child)
{
	const struct explain_row *rows;
	size_t count = line ? explain_rows(&rows) : 0;

	for (size_t i = 0; i < count; i++)
		if ((in_child || !rows[i].in_child) && matches(&rows[i], line))
			return &rows[i];
	return NULL;
}

json_t *explain_row_json(const struct explain_row *row)
{
	json_t *substrings;

	if (!row)
		return json_null();
	substrings = json_array();
	for (int i = 0; i < EXPLAIN_SUBSTRINGS && row->substrings[i]; i++)
		json_array_append_new(substrings, json_string(row->substrings[i]));
	return json_pack("{s:o, s:s, s:s, s:s}", "pattern", substrings, "cause", row->cause, "fix",
			 row->fix, "source", row->source);
}
