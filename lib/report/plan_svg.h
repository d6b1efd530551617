/* SPDX-License-Identifier: BSD-3-Clause */
/* The plan of one node as a picture. */
#ifndef BERTH_REPORT_PLAN_SVG_H
#define BERTH_REPORT_PLAN_SVG_H

#include "base/bytes.h"
#include "inventory/inventory.h"
#include "plan/plan.h"

/* Append an SVG document with NUMA nodes, cores by rank, GPUs, NICs and the path from each rank's
 * GPU to its NICs. It needs nothing else, has a text alternative, and suits light and dark
 * backgrounds. -ERR_UNAVAILABLE if memory is out. */
int plan_svg(const struct inventory *inventory, const struct plan_node *node, struct bytes *out,
	     struct error *err);

#endif
