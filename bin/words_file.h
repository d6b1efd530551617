/* SPDX-License-Identifier: BSD-3-Clause */
/* A command line in a file, berth run @FILE: words as a shell reads them, over several lines, with
 * comments and quotes, and without expansions. */
#ifndef BERTH_BIN_WORDS_FILE_H
#define BERTH_BIN_WORDS_FILE_H

#include <stddef.h>

#include "base/error.h"

struct words_file {
	const char *path;
	char *text;   /* malloced: what words point into */
	char **words; /* malloced; before a NULL */
	int *lines;   /* on which each begins, from 1; 0: it is not in the file */
	size_t count;
};

/* Read "@FILE" in at[0] as a command line: first, the words of the file, and those that follow it,
 * at[1] up to a NULL. What is passed is borrowed, and what out holds lives as long as the process.
 * Return 0, -ERR_INPUT, -ERR_DATA (a quote without an end, a NUL) or -ERR_UNAVAILABLE; err names
 * the file and the line. */
int words_file_read(char *first, char *const *at, struct words_file *out, struct error *err);

#endif
