/* SPDX-License-Identifier: BSD-3-Clause */
/* Compares the nodes' clocks with the controller's. They matter for times of files and logs, and
 * for credentials that expire (munge refuses them after 5 minutes). */

#include "check/check_internal.h"

#define MUCH_US 1000000

static void judge_node(struct check *check, size_t i, const json_t *answer)
{
	const struct check_node *node = &check->nodes[i];
	int64_t off = node->clock_offset_us, error = node->clock_error_us;

	if (node->missing)
		return;
	if (check->count == 1)
		check_add(check, i, "clock", CHECK_SKIPPED, NULL, "one node");
	else if (node->clock_exchanges_left)
		check_add(check, i, "clock", CHECK_NOTE, "check the load of the node",
			  "it did not report its time before the deadline");
	else if (off - error > MUCH_US || off + error < -MUCH_US)
		check_add(check, i, "clock", CHECK_FAULT,
			  "ask an administrator to start chronyd or ntpd there",
			  "its clock is %.3f s %s that of the machine where berth check runs",
			  (double)(off < 0 ? -off : off) / 1e6, off > 0 ? "ahead of" : "behind");
	else
		check_add(check, i, "clock", CHECK_OK, NULL, "within 1 s");
}

const struct check_probe probe_clock = {"clock", .judge_node = judge_node};
