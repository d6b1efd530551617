/* SPDX-License-Identifier: BSD-3-Clause */
/* Signals that this process receives, and those that the controller sends to the ranks. Each
 * counts once, even if it arrives from its sender, through the guardian and through Slurm's
 * step. */
#ifndef BERTH_AGENT_SIGNALS_H
#define BERTH_AGENT_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "agent/ranks.h"
#include "agent/uplink.h"
#include "base/loop.h"

/* Used by signals.c. agent.c also waits for source.fd, the signalfd, outside the loop. */
struct agent_signals {
	struct loop_source source;  /* first member, so that the callback can cast back */
	struct loop_timer deferred; /* a signal is due */
	struct loop *loop;
	struct agent_uplink *uplink;
	struct agent_ranks *ranks;
	pid_t guardian, launcher_pid;
	bool in_step;
	struct {
		int64_t ms;	 /* when this signal last arrived */
		bool forwarded;	 /* the guardian forwarded it */
		int64_t step_ms; /* when the launcher last sent it to this process directly, and so
				    to all of its step including the ranks */
		int64_t due_ms;	 /* when to send the controller's signal to the ranks; 0: none is
				    waiting */
	} list[NSIG];
};

/* Receive the signals that schedulers and users send to jobs, and report each to the controller.
 * guardian is the process that forwards signals to this one; launcher_pid is the guardian's
 * parent. in_step: the launcher signals all processes of its step, including the ranks. Changes the
 * process's signal handling. */
int agent_signals_open(struct agent_signals *signals, struct loop *loop,
		       struct agent_uplink *uplink, struct agent_ranks *ranks, pid_t guardian,
		       pid_t launcher_pid, bool in_step, struct error *err);
/* Handle a signal for the ranks from the controller. false: the caller sends it now. true: the
 * launcher may send it to the ranks itself; if it does not, they get it later. */
bool agent_signals_defer(struct agent_signals *signals, int number);
void agent_signals_close(struct agent_signals *signals);

#endif
