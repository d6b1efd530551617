/* SPDX-License-Identifier: BSD-3-Clause */
/* The signals that this process is sent, and those that the controller sends to the ranks. Each
 * counts once, however many ways it takes: from the sender, through the guardian, through Slurm's
 * step. */
#ifndef BERTH_AGENT_SIGNALS_H
#define BERTH_AGENT_SIGNALS_H

#include <stdbool.h>
#include <sys/types.h>

#include "agent/uplink.h"
#include "base/loop.h"

struct agent_signals;

/* Take the signals that jobs are sent, and report each to the controller. guardian forwards
 * signals to this process; launcher_pid is the guardian's parent. in_step: the launcher signals
 * all processes of its step, the ranks too. Changes the process's signal handling. */
int agent_signals_open(struct loop *loop, struct agent_uplink *uplink, pid_t guardian,
		       pid_t launcher_pid, bool in_step, struct agent_signals **out,
		       struct error *err);
/* The signalfd, for waiting outside the loop. */
int agent_signals_descriptor(const struct agent_signals *signals);
/* A signal for the ranks came from the controller. false: send it now. true: the launcher may send
 * it to the ranks itself, and agent_signals_next returns it if that does not happen. */
bool agent_signals_defer(struct agent_signals *signals, int number);
/* The next deferred signal that the ranks are to be sent now; 0 if none. */
int agent_signals_next(struct agent_signals *signals, int64_t now_ms);
/* When agent_signals_next has more to return; INT64_MAX: never. */
int64_t agent_signals_due_ms(const struct agent_signals *signals);
void agent_signals_free(struct agent_signals *signals); /* NULL is fine */

#endif
