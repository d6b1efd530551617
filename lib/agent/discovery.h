/* SPDX-License-Identifier: BSD-3-Clause */
/* Finds this node's inventory in a thread, so that heartbeats continue while a driver takes its
 * time. */
#ifndef BERTH_AGENT_DISCOVERY_H
#define BERTH_AGENT_DISCOVERY_H

#include "base/env.h"
#include "base/loop.h"
#include "inventory/inventory.h"

struct agent_discovery;

/* Start to discover. done(context) is called once, from loop, when the result is in. env is
 * borrowed until the thread ends. name, or NULL, becomes the inventory's name of this node.
 * -ERR_UNAVAILABLE: descriptors, threads or memory. */
int agent_discovery_start(struct loop *loop, const struct env *env, const char *name,
			  void (*done)(void *context), void *context, struct agent_discovery **out,
			  struct error *err);
/* Is the result in? false for NULL. */
bool agent_discovery_done(const struct agent_discovery *discovery);
/* The inventory, borrowed. It is empty if discovery failed: then err, which may be NULL, receives
 * the reason; it is cleared otherwise. Valid once agent_discovery_done. */
const struct inventory *agent_discovery_result(const struct agent_discovery *discovery,
					       struct error *err);
/* Wait at most 2 s for the thread, then free all. A thread that a driver holds keeps its memory.
 * NULL is fine. */
void agent_discovery_free(struct agent_discovery *discovery);

#endif
