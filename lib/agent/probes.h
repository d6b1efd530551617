/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds which of the controller's addresses this node reaches (PROBE). It tries all of them at
 * once until the deadline. The answers of a subtree go up as one message. */
#ifndef BERTH_AGENT_PROBES_H
#define BERTH_AGENT_PROBES_H

#include "agent/uplink.h"
#include "inventory/inventory.h"
#include "overlay/children.h"

struct agent_probes; /* every function accepts NULL, the value before start */

/* Start to probe the addresses in question, a PROBE message. *out must be NULL: a connection
 * carries only one PROBE. Otherwise return -ERR_DATA. */
int agent_probes_start(struct loop *loop, struct agent_uplink *uplink,
		       const struct children *children, const struct agent_params *params,
		       const struct inventory *inventory, const struct message_probe *question,
		       struct agent_probes **out, struct error *err);
/* Add the answer of a child's subtree; send PROBED once all answers have arrived. */
void agent_probes_merge(struct agent_probes *round, const struct message_probed *answer);
void agent_probes_free(struct agent_probes *round);

#endif
