/* SPDX-License-Identifier: BSD-3-Clause */
/* The plan that a job would get, made from the reachability matrix instead of the agents' own
 * probes. */
#include <stdlib.h>
#include <string.h>

#include "check/check_internal.h"

void check_make_plan(struct check *check, int port)
{
	const struct check_request *request = check->request;
	struct plan_request plan_request = request->plan_request;
	size_t count = check->inventories[0].address_count;
	int *reached = calloc(count + 1, sizeof *reached),
	    *shared = calloc(count + 1, sizeof *shared);
	struct plan_reach reach = {count, reached, shared};

	plan_request.ranks_per_node = 1;
	plan_request.port = port;
	plan_request.single_host = check->simulated;
	for (size_t a = 0; reached && shared && a < count; a++) {
		reached[a] = 1;
		shared[a] = -1;
		for (size_t n = 1; n < check->count; n++) {
			const char *outcome = check_reach_outcome(check, n, 0, a);

			/* Lost nodes are reported; the plan covers the others. */
			reached[a] +=
				check->nodes[n].missing || (outcome && !strcmp(outcome, "ok"));
			for (size_t b = 0; b < check->inventories[n].address_count; b++)
				if (inventory_address_equal(&check->inventories[0].addresses[a],
							    &check->inventories[n].addresses[b]) &&
				    shared[a] < 0 && !check->simulated)
					shared[a] = (int)n;
		}
	}
	if (!reached || !shared)
		error_memory(&check->plan_error, "the matrix");
	else
		check->planned =
			plan_make(request->launch->alloc, check->inventories, check->count,
				  &plan_request, check->count > 1 ? &reach : NULL,
				  request->launch->env, &check->plan, &check->plan_error) == 0;
	free(reached);
	free(shared);
}
