/* SPDX-License-Identifier: BSD-3-Clause */
/* Look up functions of a library loaded at run time and store them in a table of pointers. */
#ifndef BERTH_BASE_SYMBOLS_H
#define BERTH_BASE_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

struct symbol {
	const char *name;
	void *to;    /* the pointer to fill; NULL if the library lacks the function */
	bool needed; /* an older library without it cannot be used */
};

/* Look up all symbols in library (from dlopen). Return NULL, or the name of the first needed symbol
 * that is missing. */
const char *symbols_find(void *library, const struct symbol *symbols, size_t count);

#endif
