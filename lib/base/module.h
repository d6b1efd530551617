/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules: shared objects of berth, loaded on demand (ranks-pmix.so, comm-mpi.so...). */
#ifndef BERTH_BASE_MODULE_H
#define BERTH_BASE_MODULE_H

#include "base/error.h"

/* Load NAME.so and look up symbol in it. The search covers, in order: search_path
 * (BERTH_MODULE_PATH, a colon-separated list; may be NULL), the directory of this library or
 * program (modules/, or ../lib/modules/ in a build tree), and the installed module directory. The
 * module stays loaded. If global is set, the symbols of its libraries become visible; Open MPI's
 * own plug-ins need that. Return 0, or -ERR_UNAVAILABLE: err says which library is missing, where
 * berth looked and what to install. */
int module_load(const char *name, const char *symbol, const char *search_path, int global,
		void **out, struct error *err);

#endif
