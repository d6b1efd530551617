/* SPDX-License-Identifier: BSD-3-Clause */
/* Known failures of jobs, recognised by what they print. known.txt lists them. */
#ifndef BERTH_EXPLAIN_EXPLAIN_H
#define BERTH_EXPLAIN_EXPLAIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define EXPLAIN_SUBSTRINGS 3

struct explain_row {
	/* All must occur in one line, verbatim, with "^" at its beginning; the first is never
	 * NULL. */
	const char *substrings[EXPLAIN_SUBSTRINGS];
	const char *cause, *fix; /* each a sentence without its full stop */
	const char *source;	 /* where the explanation comes from */
	bool of_other;		 /* the consequence of another rank's end */
	bool in_child; /* only if explain_is_child was true of a line of the same program */
};
/* All of them, in known.txt's order, and their number; 0 if memory is out. Not thread-safe. */
size_t explain_rows(const struct explain_row **out);

/* The first row that matches a line, or NULL. line is NUL-terminated and may hold any bytes. */
const struct explain_row *explain_line(const char *line, bool in_child);

/* Does a line of a traceback show that the program itself started the process that failed, as
 * torch.multiprocessing.spawn does? line may be NULL. */
bool explain_is_child(const char *line);

struct explain_exception {
	char text[300]; /* "ValueError: ..." */
	char file[512]; /* of the innermost frame outside Python's libraries, if there is one */
	int line;
};

/* Find the last Python exception in lines, an array of strings (NULL: none). Return false, and
 * leave *out, if there is none. */
bool explain_exception(const json_t *lines, struct explain_exception *out);

/* {"pattern": [..], "cause", "fix", "source"}, or null if row is NULL. A new reference; NULL if
 * memory is out. */
json_t *explain_row_json(const struct explain_row *row);

#endif
