/* SPDX-License-Identifier: BSD-3-Clause */
/* Reports the progress of this node's ranks: their heartbeat files (process/heartbeat.h), and their
 * stacks if the controller sees no more progress of any rank. */
#ifndef BERTH_AGENT_HEARTBEATS_H
#define BERTH_AGENT_HEARTBEATS_H

#include <sys/types.h>

#include "agent/job_state.h"
#include "agent/uplink.h"
#include "base/env.h"
#include "base/loop.h"

struct agent_heartbeats;

/* dir, in which the ranks write their files, and job are borrowed. port: where the ranks meet; 0:
 * nowhere that this process could watch. */
int agent_heartbeats_new(struct loop *loop, struct agent_uplink *uplink, const char *dir,
			 const struct agent_job *job, int port, struct agent_heartbeats **out,
			 struct error *err);
/* Record the process of a rank that has started. */
void agent_heartbeats_started(struct agent_heartbeats *heartbeats, int local_rank, pid_t pid);
/* All ranks have started: from now on, see which have met the others (joined.h), and report
 * changes, at first every 250 ms, for short programs. */
void agent_heartbeats_watch_joined(struct agent_heartbeats *heartbeats);
/* Read the files and report changes. It is done once a second, too. */
void agent_heartbeats_poll(struct agent_heartbeats *heartbeats);
/* Call it when all ranks of the node have ended, before the end of the last one is reported. */
void agent_heartbeats_ended(struct agent_heartbeats *heartbeats);
/* Handle DUMP_STACKS; the answer is sent once the tool, which gets env, has ended. Ignored while
 * an earlier one is under way, and for NULL: no ranks. */
void agent_heartbeats_dump_stacks(struct agent_heartbeats *heartbeats, const struct env *env,
				  const struct message_dump_stacks *request);
void agent_heartbeats_free(struct agent_heartbeats *heartbeats); /* NULL is allowed */

#endif
