/* SPDX-License-Identifier: BSD-3-Clause */
/* Which of the controller's addresses this node reaches (PROBE): tries all of them at once, until
 * the deadline. The answers of a subtree go up as one. */
#ifndef BERTH_AGENT_ADDRESS_PROBE_H
#define BERTH_AGENT_ADDRESS_PROBE_H

#include "agent/downlinks.h"
#include "agent/uplink.h"
#include "inventory/inventory.h"

struct agent_probes; /* NULL, before start, is fine everywhere */

/* Start what question (PROBE) asks of this node. *out must be NULL: there is one PROBE for a
 * connection; -ERR_DATA otherwise. */
int agent_probes_start(struct loop *loop, struct agent_uplink *uplink,
		       const struct agent_downlinks *downlinks, const struct agent_params *params,
		       const struct inventory *inventory, const json_t *question,
		       struct agent_probes **out, struct error *err);
/* Add the answer of a subtree below; send PROBED when all are in. */
void agent_probes_merge(struct agent_probes *round, const struct wire_message *message);
void agent_probes_tick(struct agent_probes *round, int64_t now_ms);
/* When tick is to be called; INT64_MAX: no need. */
int64_t agent_probes_due_ms(const struct agent_probes *round);
void agent_probes_free(struct agent_probes *round);

#endif
