/* SPDX-License-Identifier: BSD-3-Clause */
/* berth --version. */
#ifndef BERTH_BIN_VERSION_H
#define BERTH_BIN_VERSION_H

#include <stdbool.h>

/* Print the version as text, or as berth.version/1. With modules, also print the libraries that are
 * loaded, and which modules can be loaded from BERTH_MODULE_PATH and the usual places; this loads
 * every module into this process. Return 0 or the exit code. */
int version_print(bool modules, bool as_json);

#endif
