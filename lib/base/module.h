/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules: shared objects of berth loaded when needed (ranks-pmix.so, comm-mpi.so...). */
#ifndef BERTH_BASE_MODULE_H
#define BERTH_BASE_MODULE_H

#include "base/error.h"

/* Load NAME.so and look up symbol in it. Searched: BERTH_MODULE_PATH (a colon list; search_path,
 * may be NULL), beside this library or program (modules/, ../lib/modules/ in a build tree), the
 * installed module folder. The module stays loaded. global: its libraries' symbols are made
 * visible (Open MPI's own plug-ins need that).
 * -ERR_UNAVAILABLE: err says which library is missing, where was looked and what to install. */
int module_load(const char *name, const char *symbol, const char *search_path, int global,
		void **out, struct error *err);

#endif
