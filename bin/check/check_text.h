/* SPDX-License-Identifier: BSD-3-Clause */
/* What berth check found, for people. */
#ifndef BERTH_BIN_CHECK_CHECK_TEXT_H
#define BERTH_BIN_CHECK_CHECK_TEXT_H

#include <jansson.h>
#include <stdio.h>

#include "base/env.h"

/* A table of berth.check/1: what is amiss first, then what is well; nodes of which the same is said
 * share a row. */
void check_print(const json_t *check, const struct env *env, FILE *stream);

#endif
