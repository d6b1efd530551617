/* SPDX-License-Identifier: BSD-3-Clause */
#include "explain/explain.h"

#include <string.h>

static int matches(const struct explain_row *row, const char *line)
{
	for (int i = 0; i < EXPLAIN_PARTS && row->parts[i]; i++)
		if (!strstr(line, row->parts[i]))
			return 0;
	return 1;
}

const struct explain_row *explain_line(const char *line)
{
	for (size_t i = 0; line && i < explain_row_count; i++)
		if (matches(&explain_rows[i], line))
			return &explain_rows[i];
	return NULL;
}

json_t *explain_row_json(const struct explain_row *row)
{
	json_t *parts;

	if (!row)
		return json_null();
	parts = json_array();
	for (int i = 0; i < EXPLAIN_PARTS && row->parts[i]; i++)
		json_array_append_new(parts, json_string(row->parts[i]));
	return json_pack("{s:o, s:s, s:s, s:s}", "pattern", parts, "cause", row->cause, "fix",
			 row->mend, "source", row->source);
}
