/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of this node: their environment, start, output, signals and exit. */
#ifndef BERTH_AGENT_RANKS_H
#define BERTH_AGENT_RANKS_H

#include "agent/heartbeats.h"
#include "agent/job_state.h"
#include "agent/pmix_relay.h"
#include "agent/stdin.h"
#include "agent/uplink.h"
#include "base/bytes.h"
#include "base/loop.h"

/* Used by ranks.c. agent.c reserves port_fd and passes messages to inputs and heartbeats. */
struct agent_ranks {
	struct loop *loop;
	struct agent_uplink *uplink;
	struct agent_pmix *pmix;
	const char *dir;
	int at_end_fd; /* of guardian_at_end */
	bool removes;  /* which has the command that removes containers */
	int port_fd;   /* reserves MASTER_PORT until the ranks start, or to the end if JOB asks for
			  that; -1: none */
	struct agent_job job; /* text is NULL before JOB */
	bool this_system;     /* the plan was made for this host, so bind to its cores */
	struct supervise *supervise;
	struct agent_stdin *inputs; /* NULL unless the controller writes to ranks */
	struct agent_heartbeats *heartbeats;
	struct logs *logs;
	struct loop_source logs_source;
	int64_t finished_ms; /* when all processes had ended; 0: not yet */
	char *left;	     /* the processes that could not be killed, for DONE; NULL: none */
	size_t started_count;
	bool started_sent, done_sent;
	bool paused; /* do not read the ranks' output; it stays in their pipes */
	struct bytes output;
	struct {
		bool waits;    /* START has arrived, but the PMIx server has not started yet */
		json_t *ranks; /* the list and data of START, until then */
		struct bytes data;
		uint64_t signals; /* bit N: signal N has arrived meanwhile */
	} pending;
};

/* dir, the agent's temporary directory, is borrowed; at_end_fd: see guardian_at_end. */
void agent_ranks_init(struct agent_ranks *ranks, struct loop *loop, struct agent_uplink *uplink,
		      struct agent_pmix *pmix, const char *dir, int at_end_fd);
/* Take ownership of what job holds. -ERR_DATA if ranks are already running; the caller then
 * keeps job. */
int agent_ranks_set_job(struct agent_ranks *ranks, const struct agent_job *job, struct error *err);
/* Start the ranks (START), after the PMIx server, which may still be starting when this returns.
 * this_system: see supervise_options. */
int agent_ranks_start(struct agent_ranks *ranks, const struct message *message, bool this_system,
		      struct error *err);
/* Continue a start that waited for the PMIx server. Call it after each round of the loop. */
void agent_ranks_resume_start(struct agent_ranks *ranks);
/* Send output. full: stop reading the ranks' pipes. Call it after each round of the loop. */
void agent_ranks_flush(struct agent_ranks *ranks, bool full);
/* Report the ranks that have ended by now, then MESSAGE_SETTLED. */
void agent_ranks_settle(struct agent_ranks *ranks);
/* Signal all ranks. Ranks that are about to start get the signal after their start. */
void agent_ranks_signal(struct agent_ranks *ranks, int number);
/* Write the stop file (see files.h). Do nothing on a node without ranks. */
void agent_ranks_write_stop_file(struct agent_ranks *ranks, const char *why);
/* End all ranks within grace_ms, then send DONE. */
void agent_ranks_stop(struct agent_ranks *ranks, int grace_ms);
/* Have all processes of the ranks ended? */
bool agent_ranks_are_over(const struct agent_ranks *ranks);
void agent_ranks_free(struct agent_ranks *ranks); /* kills all processes that still run */

#endif
