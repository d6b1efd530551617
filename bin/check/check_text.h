/* SPDX-License-Identifier: BSD-3-Clause */
/* The results of berth check, as text for people. */
#ifndef BERTH_BIN_CHECK_CHECK_TEXT_H
#define BERTH_BIN_CHECK_CHECK_TEXT_H

#include <jansson.h>

#include "base/env.h"

/* Print a table of berth.check/1: problems first, then what is fine. Nodes with the same result
 * share a row. */
void check_print(const json_t *check, const struct env *env);

#endif
