/* SPDX-License-Identifier: BSD-3-Clause */
#include "explain/explain.h"

#include <string.h>

static int matches(const struct explain_row *row, const char *line)
{
	for (int i = 0; i < EXPLAIN_SUBSTRINGS && row->substrings[i]; i++)
		if (!strstr(line, row->substrings[i]))
			return 0;
	return 1;
}

bool explain_is_child(const char *line)
{
	return line && strstr(line, "/multiprocessing/");
}

const struct explain_row *explain_line(const char *line, bool in_child)
{
	for (size_t i = 0; line && i < explain_row_count; i++)
		if ((in_child || !explain_rows[i].in_child) && matches(&explain_rows[i], line))
			return &explain_rows[i];
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
