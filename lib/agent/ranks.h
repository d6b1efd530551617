/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of this node: their environment, start, output, signals and ends.
 *
 * JOB, for all nodes:  {world, names, first, counts, log_dir, pmix: "auto|on|off", hold, stdin,
 *                       input, watch}
 *                      data: the program's arguments, the environment, the directory
 * START, for one node: {ranks: [{rank, cpus}], plan: berth.plan/1}
 *                      data: for each rank "+NAME=VALUE" to set, "-NAME" to remove
 * ENDED:               {rank, local_rank, pid, code, signal, core, stopped, oom, start_error,
 *                      last: [lines], peak_memory_bytes, said} */
#ifndef BERTH_AGENT_RANKS_H
#define BERTH_AGENT_RANKS_H

#include "agent/heartbeats.h"
#include "agent/job_state.h"
#include "agent/pmix_relay.h"
#include "agent/stdin.h"
#include "agent/uplink.h"
#include "base/bytes.h"
#include "base/loop.h"

/* For ranks.c; agent.c reserves port_fd, and hands messages to inputs and heartbeats. */
struct agent_ranks {
	struct loop_source source; /* first: the callback's way back; supervise's */
	struct loop *loop;
	struct agent_uplink *uplink;
	struct agent_pmix *pmix;
	const char *dir;
	int port_fd; /* MASTER_PORT, held until the ranks start, or to the end if JOB asks for that;
			-1 */
	struct agent_job job; /* text is NULL before JOB */
	bool this_system;     /* the plan's cores are this machine's */
	struct supervise *supervise;
	struct agent_stdin *inputs; /* NULL unless job.input */
	struct agent_heartbeats *heartbeats;
	struct logs *logs;
	size_t started_count;
	bool started_sent, done_sent;
	bool paused; /* the ranks' output is left in their pipes */
	struct bytes output;
	struct {
		bool waits;    /* START came, the PMIx server has not started yet */
		json_t *ranks; /* START's list and data, until then */
		struct bytes data;
		uint64_t signals; /* bit N: signal N came meanwhile */
	} pending;
};

/* dir, the agent's temporary directory, is borrowed. */
void agent_ranks_init(struct agent_ranks *ranks, struct loop *loop, struct agent_uplink *uplink,
		      struct agent_pmix *pmix, const char *dir);
/* Take over what job holds. -ERR_DATA if ranks run already; job is the caller's then. */
int agent_ranks_set_job(struct agent_ranks *ranks, const struct agent_job *job, struct error *err);
/* Start the ranks (START), after the PMIx server, which may still be starting when this returns.
 * this_system: see supervise_options. */
int agent_ranks_start(struct agent_ranks *ranks, const struct wire_message *message,
		      const json_t *text, bool this_system, struct error *err);
/* Continue a start that waited for the PMIx server. To be called after each round of the loop. */
void agent_ranks_resume_start(struct agent_ranks *ranks);
/* Send output; full: leave more of it in the ranks' pipes. After each round of the loop. */
void agent_ranks_flush(struct agent_ranks *ranks, bool full);
/* Report heartbeats if the controller wants them: once a second, or at once. */
void agent_ranks_poll_heartbeats(struct agent_ranks *ranks, int64_t now_ms, bool at_once);
/* Signal all ranks, or those that are about to start once they have. */
void agent_ranks_signal(struct agent_ranks *ranks, int number);
/* See files.h. Without ranks it does nothing. */
void agent_ranks_write_stop_file(struct agent_ranks *ranks, const char *why);
/* End all ranks within grace_ms, then send DONE. */
void agent_ranks_stop(struct agent_ranks *ranks, int grace_ms);
/* Does nothing of the ranks run? */
bool agent_ranks_are_over(const struct agent_ranks *ranks);
void agent_ranks_free(struct agent_ranks *ranks); /* kills what still runs */

#endif
