/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules: shared objects of berth, loaded on demand (ranks-pmix.so, comm-mpi.so...). */
#ifndef BERTH_BASE_MODULE_H
#define BERTH_BASE_MODULE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Load NAME.so and look up symbol in it. The search covers, in order: search_path
 * (BERTH_MODULE_PATH, a colon-separated list; may be NULL), the directory of this library or
 * program (modules/, or ../lib/modules/ in a build tree), and the installed module directory. The
 * module stays loaded. If global is set, the symbols of its libraries become visible; Open MPI's
 * own plug-ins need that. Return 0, or -ERR_UNAVAILABLE: err says which library is missing, where
 * berth looked and what to install. */
int module_load(const char *name, const char *symbol, const char *search_path, int global,
		void **out, struct error *err);

/* A function of a library loaded at run time, to be stored in a table of pointers. */
struct symbol {
	const char *name;
	void *to;    /* the pointer to fill; NULL if the library lacks the function */
	bool needed; /* an older library without it cannot be used */
};

/* Look up all symbols in library (from dlopen). Return NULL, or the name of the first needed symbol
 * that is missing. */
const char *symbols_find(void *library, const struct symbol *symbols, size_t count);

#endif
