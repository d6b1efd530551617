/* SPDX-License-Identifier: BSD-3-Clause */
/* berth --version. */
#ifndef BERTH_BIN_VERSION_H
#define BERTH_BIN_VERSION_H

#include <stdbool.h>

/* Print the version, the libraries that are loaded, and which modules can be loaded from
 * search_path (BERTH_MODULE_PATH or NULL) and the usual places: as text, or as berth.version/1.
 * Loads every module into this process. Return 0 or the exit code. */
int version_print(const char *search_path, bool as_json);

#endif
