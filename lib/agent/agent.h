/* SPDX-License-Identifier: BSD-3-Clause */
/* The agent of one node: connects to the head, sends its card, starts its ranks and stays beside
 * them to the end. The other side is controller/controller.h.
 *
 *   agent.c        life: the machine, beats, signals, end
 *   process/guardian.c        the process above it that ends what it leaves when it is killed
 *   uplink.c     the connection to the head or the parent
 *   downlinks.c   the agents below: accepting them, passing messages on
 *   address_probe.c  which of the head's addresses are reached from here
 *   job_state.c    what the head says of the ranks to come
 *   ranks.c  the ranks: environment, start, output, ends
 *   stdin.c  the ranks' standard input, where the head writes it
 *   pmix_relay.c   what the PMIx server of the ranks asks of other nodes
 *   overlay/gather.c       contributions of many nodes becoming one
 *   process/supervise.c    the ranks as processes; process/logs.c what they print */
#ifndef BERTH_AGENT_AGENT_H
#define BERTH_AGENT_AGENT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"
#include "overlay/wire.h"

/* What the head has said before it went: told false: nothing. */
struct job_outcome {
	bool reported;
	bool restart;  /* the job is run again: the agent is wanted once more */
	int exit_code; /* the job's exit code */
};

struct agent_params {
	size_t node_index;
	const char *name; /* of the node, in the allocation */
	const char *job;
	struct secret secret;
	int fd;				  /* a socket pair with the head, or -1 */
	const char *controller_addresses; /* "10.0.0.1:4711,[fd00::1]:4711", tried in turn; with fd
					     NULL */
	int node_timeout_ms;
	int connect_timeout_ms;	     /* for a head that is not there yet; 0: it is */
	const struct env *env;	     /* the agent's own environment, borrowed */
	struct job_outcome *outcome; /* or NULL: set when the head says how the job ended */
};

/* From the environment that the engine made (ENGINE_ENV_*); strings are borrowed from env.
 * -ERR_USAGE: a variable is missing: this is not how an agent is started. -ERR_DATA: this node is
 * none of the job's, and other bad values. */
int agent_params_read(const struct env *env, struct agent_params *out, struct error *err);

/* "gpu01:4711" as what agent_params.head wants: the numeric addresses it stands for. out: size
 * bytes. Asks the resolver, again and again for connect_timeout_ms: a job's names may come up late.
 * -ERR_NETWORK. */
int agent_resolve(const char *rendezvous, int connect_timeout_ms, char *out, size_t size,
		  struct error *err);

/* Be the agent until the job is over or the head is gone. Ranks and whatever they started are
 * ended before it returns. Changes the process: signals, child subreaper, descriptors. Forks: it
 * returns in a child, whose parent (process/guardian.h) ends as the child does.
 * 0, also when the head went away in the middle; else an error that the head could not be told. */
int agent_run(const struct agent_params *params, struct error *err);

#endif
