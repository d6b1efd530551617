/* SPDX-License-Identifier: BSD-3-Clause */
/* Functions of a library that is loaded at run time, into a table of pointers. */
#ifndef BERTH_BASE_SYMBOLS_H
#define BERTH_BASE_SYMBOLS_H

#include <stdbool.h>
#include <stddef.h>

struct symbol {
	const char *name;
	void *to;    /* the pointer to fill: NULL where the library has no such function */
	bool needed; /* an older library without it is of no use */
};

/* library: dlopen's. NULL, or the first name that is needed and not there; all are looked up. */
const char *symbols_find(void *library, const struct symbol *symbols, size_t count);

#endif
