/* SPDX-License-Identifier: BSD-3-Clause */
/* Typing errors in names. */
#ifndef BERTH_BASE_SPELLING_H
#define BERTH_BASE_SPELLING_H

#include <stddef.h>

/* Levenshtein's distance, for names shorter than 63 bytes; 9 for longer ones. */
int spelling_distance(const char *a, const char *b);
/* The first of the names (NULL entries are skipped) that is closest to word, if it is within two
 * edits (one for words of up to four letters); else NULL. */
const char *spelling_closest(const char *word, const char *const *names, size_t count);

#endif
