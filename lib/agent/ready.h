/* SPDX-License-Identifier: BSD-3-Clause */
/* Can what a service offers be used? The controller asks, one question at a time. */
#ifndef BERTH_AGENT_READY_H
#define BERTH_AGENT_READY_H

#include "agent/job_state.h"
#include "agent/uplink.h"
#include "base/loop.h"

/* Zero-initialised, but for source.fd -1. */
struct agent_ready {
	struct loop_source source; /* what the child has found out */
	struct loop_timer late;
	struct loop *loop;
	struct agent_uplink *uplink;
	pid_t child; /* 0: no question is open */
	bool is_command;
	char text[400];
	size_t size;
};

/* Ask in a child process, for 5 s (a command: 30 s) at most, and send READY. A question while
 * another one is open is dropped: its answer follows. */
void agent_ready_ask(struct agent_ready *ready, struct loop *loop, struct agent_uplink *uplink,
		     const struct agent_job *job, const struct message_ask_ready *question);
/* Kill the child. */
void agent_ready_stop(struct agent_ready *ready);

#endif
