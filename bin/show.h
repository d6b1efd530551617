/* SPDX-License-Identifier: BSD-3-Clause */
/* What info, plan and dry runs have in common: cells of tables, a rank's devices, its environment.
 */
#ifndef BERTH_BIN_SHOW_H
#define BERTH_BIN_SHOW_H

#include <jansson.h>
#include <stddef.h>

#include "base/env.h"
#include "hostlist/idset.h"
#include "plan/plan.h"

/* A formatted cell; longer text is cut. Long texts (reasons) are passed as they are. */
struct cell {
	char text[512];
};

/* Each fills the cell anew and returns its text. */
const char *cell(struct cell *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *cell_set(struct cell *out, const struct idset *set); /* "0-3,8" */
/* "0 0000:03:00.0, 1 0000:43:00.0": place in PCI order and PCI id of a rank's GPUs. */
const char *cell_gpus(struct cell *out, const struct plan_rank *rank);
/* "mlx5_3 PIX, mlx5_0 SYS down": its NICs, how near they are to the GPU. */
const char *cell_nics(struct cell *out, const struct plan_rank *rank);

const char *plural(size_t count); /* "" for 1, else "s" */

/* [{name, value, from, why}]: a rank's environment. A new reference; NULL when memory is out. */
json_t *environment_json(const struct env *changes);

#endif
