/* SPDX-License-Identifier: BSD-3-Clause */
/* Options that several verbs share: which ranks to start, and what the user requests of the plan.
 */
#ifndef BERTH_BIN_OPTIONS_H
#define BERTH_BIN_OPTIONS_H

#include "arguments.h"
#include "plan/plan.h"

/* -n/--ranks, --ranks-per-node (--nproc-per-node), --gpus-per-rank, --gpus-visible, --all-cores,
 * --iface, --subnet, --hosts, --hostfile; they fill a struct plan_options, whose strings
 * then point into argv. */
extern const struct arguments_option options_table[];

#define OPTIONS_RANKS_MAX 1000000

/* Add --env's text to *list, an array of *count that realloc may move. -ERR_USAGE unless it is
 * NAME=VALUE with a name that berth does not set itself. */
int options_add_env(const char ***list, size_t *count, const char *text, struct error *err);
#endif
