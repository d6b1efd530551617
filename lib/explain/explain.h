/* SPDX-License-Identifier: BSD-3-Clause */
/* Known failures of jobs, by what they print: known.c is the table. */
#ifndef BERTH_EXPLAIN_EXPLAIN_H
#define BERTH_EXPLAIN_EXPLAIN_H

#include <jansson.h>
#include <stddef.h>

#define EXPLAIN_SUBSTRINGS 3

struct explain_row {
	const char *substrings[EXPLAIN_SUBSTRINGS]; /* all must be in one line, as they are; the
						       first is there */
	const char *cause, *fix;		    /* each a sentence without its full stop */
	const char *source;			    /* where it is from */
};
extern const struct explain_row explain_rows[];
extern const size_t explain_row_count;

/* The first row that a line (NUL-terminated, any bytes) matches, or NULL. */
const struct explain_row *explain_line(const char *line);

/* {"pattern": [..], "cause", "fix", "source"}; null for NULL. A new reference; NULL: memory out. */
json_t *explain_row_json(const struct explain_row *row);

#endif
