/* SPDX-License-Identifier: BSD-3-Clause */
/* Captured environments and answers of schedulers, in the directory CAPTURES, and the same with
 * something changed. Each function fails the running test on any error. */
#ifndef BERTH_TESTS_CAPTURE_H
#define BERTH_TESTS_CAPTURE_H

#include "alloc/alloc.h"

/* Return the text of a captured file; free() it. */
char *capture_text(const char *file);
/* Return the variables of a captured file, one per line, or none if file is NULL. */
struct env *capture_env(const char *file);
/* Apply changes separated by any of separators: "NAME=VALUE" sets, "NAME" removes. NULL changes
 * nothing. */
void capture_change(struct env *env, const char *changes, const char *separators);
/* Return "NAME:SLOTS:GPUS ..." of all nodes, which the next call overwrites. */
const char *capture_nodes(const struct alloc *alloc);

#endif
