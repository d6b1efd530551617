/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds this node's inventory in a thread, so that heartbeats continue while a driver responds
 * slowly. */
#ifndef BERTH_AGENT_DISCOVERY_H
#define BERTH_AGENT_DISCOVERY_H

#include "base/env.h"
#include "base/loop.h"
#include "inventory/inventory.h"

struct agent_discovery;

/* Start to discover. The loop calls done(context) once, when the result is available. env is
 * borrowed until the thread ends. name (may be NULL) becomes the inventory's name of this node.
 * -ERR_UNAVAILABLE: out of descriptors, threads or memory. */
int agent_discovery_start(struct loop *loop, const struct env *env, const char *name,
			  void (*done)(void *context), void *context, struct agent_discovery **out,
			  struct error *err);
/* Is the result available? false for NULL. */
bool agent_discovery_done(const struct agent_discovery *discovery);
/* The inventory, borrowed. It is empty if discovery failed: then err, which may be NULL, receives
 * the reason; it is cleared otherwise. Valid once agent_discovery_done. */
const struct inventory *agent_discovery_result(const struct agent_discovery *discovery,
					       struct error *err);
/* Wait at most 2 s for the thread, then free everything. If a driver blocks the thread, its
 * memory is leaked on purpose. NULL is allowed. */
void agent_discovery_free(struct agent_discovery *discovery);

#endif
