/* SPDX-License-Identifier: BSD-3-Clause */
/* The standard input of this node's ranks, if it comes from the controller. A rank that does not
 * read delays no other one: what it has not taken waits here, at most WIRE_MAX_QUEUE. */
#ifndef BERTH_AGENT_STDIN_H
#define BERTH_AGENT_STDIN_H

#include "agent/uplink.h"
#include "base/loop.h"

struct agent_stdin; /* NULL is fine wherever no rank is named */

/* Make a pipe for each of count ranks. SIGPIPE must be ignored. -ERR_UNAVAILABLE. */
int agent_stdin_new(struct loop *loop, struct agent_uplink *uplink, size_t count,
		    struct agent_stdin **out, struct error *err);
/* The rank's end of its pipe, which remains ours. */
int agent_stdin_rank_fd(const struct agent_stdin *inputs, size_t local_rank);
/* The ranks have started and have their ends: close ours. */
void agent_stdin_close_rank_ends(struct agent_stdin *inputs);
/* Hand data to every rank that still reads. A rank whose queue is full loses its input, with a
 * note. */
void agent_stdin_receive(struct agent_stdin *inputs, const void *data, size_t size);
/* Close all pipes, so that the ranks see the end. */
void agent_stdin_free(struct agent_stdin *inputs);

#endif
