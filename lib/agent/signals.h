/* SPDX-License-Identifier: BSD-3-Clause */
/* The signals that this process is sent, and those that the controller sends to the ranks. Each
 * counts once, however many ways it takes: from the sender, through the guardian, through Slurm's
 * step. */
#ifndef BERTH_AGENT_SIGNALS_H
#define BERTH_AGENT_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "agent/uplink.h"
#include "base/loop.h"

/* For signals.c; agent.c waits for source.fd, the signalfd, outside the loop. */
struct agent_signals {
	struct loop_source source; /* first: the callback's way back */
	struct loop *loop;
	struct agent_uplink *uplink;
	pid_t guardian, launcher_pid;
	bool in_step;
	struct {
		int64_t ms;	 /* when it last came */
		bool forwarded;	 /* by the guardian */
		int64_t step_ms; /* when the launcher last sent it to this process itself: so it
				  * sent it to all of its step, the ranks too */
		int64_t due_ms;	 /* when the controller's goes to the ranks; 0: none */
	} list[NSIG];
};

/* Take the signals that jobs are sent, and report each to the controller. guardian forwards
 * signals to this process; launcher_pid is the guardian's parent. in_step: the launcher signals
 * all processes of its step, the ranks too. Changes the process's signal handling. The
 * caller closes the source. */
int agent_signals_open(struct agent_signals *signals, struct loop *loop,
		       struct agent_uplink *uplink, pid_t guardian, pid_t launcher_pid,
		       bool in_step, struct error *err);
/* A signal for the ranks came from the controller. false: send it now. true: the launcher may send
 * it to the ranks itself, and agent_signals_next returns it if that does not happen. */
bool agent_signals_defer(struct agent_signals *signals, int number);
/* The next deferred signal that the ranks are to be sent now; 0 if none. */
int agent_signals_next(struct agent_signals *signals, int64_t now_ms);
/* When agent_signals_next has more to return; INT64_MAX: never. */
int64_t agent_signals_due_ms(const struct agent_signals *signals);

#endif
