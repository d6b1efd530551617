/* SPDX-License-Identifier: BSD-3-Clause */
/* The standard input of this node's ranks, if it comes from the controller. A rank that does not
 * read does not delay the others: its data is queued here, up to WIRE_MAX_QUEUE. */
#ifndef BERTH_AGENT_STDIN_H
#define BERTH_AGENT_STDIN_H

#include "agent/job_state.h"
#include "agent/uplink.h"
#include "base/loop.h"

struct agent_stdin; /* functions that take no rank accept NULL */

/* Create a pipe for each of the first count ranks; with AGENT_JOB_STDIN_PTY, a terminal for one.
 * All kinds but AGENT_JOB_STDIN_ALL send STDIN_TAKEN whenever a rank has taken all. SIGPIPE must be
 * ignored. -ERR_UNAVAILABLE. */
int agent_stdin_new(struct loop *loop, struct agent_uplink *uplink, enum agent_job_stdin kind,
		    size_t count, struct agent_stdin **out, struct error *err);
/* Return the master of rank 0's terminal, which carries its output, too; at most 0: there is
 * none. This module keeps owning it. */
int agent_stdin_pty_fd(const struct agent_stdin *inputs);
/* The user's terminal has this size: {rows, columns}. */
void agent_stdin_resize(struct agent_stdin *inputs, const struct message_input *size);
/* Return the rank's end of its pipe; this module keeps owning it. */
int agent_stdin_rank_fd(const struct agent_stdin *inputs, size_t local_rank);
/* The ranks have started and inherited their ends: close them in this process. */
void agent_stdin_close_rank_ends(struct agent_stdin *inputs);
/* Write data to every rank that still reads; size 0: then close its input. If a rank's queue is
 * full, close its input and send a note. */
void agent_stdin_receive(struct agent_stdin *inputs, const void *data, size_t size);
/* Close all pipes, so that the ranks see the end of file. */
void agent_stdin_free(struct agent_stdin *inputs);

#endif
