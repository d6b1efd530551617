/* SPDX-License-Identifier: BSD-3-Clause */
/* The agent of one node: connects to the controller, sends its inventory, starts its ranks and
 * supervises them to the end. The other side is controller/controller.h.
 *
 * agent.c owns one struct of each module below and decides what a message from the controller
 * means. A module's header says who may reach into its struct. A module knows only those above it:
 *
 *   uplink         the connection to the controller or the parent, for all reports
 *   signals        signals to this process, each counted once
 *   discovery      this node's inventory, found in a thread
 *   probes         which of the controller's addresses this node reaches
 *   job_state      the contents of JOB: what the ranks need to start
 *   pmix_relay     the PMIx server of the ranks, and its requests to other nodes
 *   heartbeats     the ranks' progress; stdin: their standard input; files: their files
 *   ranks          the ranks: environment, start, output, exit
 *
 * params.c reads struct agent_params. Above the agent is its guardian (process/guardian.h). */
#ifndef BERTH_AGENT_AGENT_H
#define BERTH_AGENT_AGENT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"
#include "overlay/wire.h"

/* How the job ended, as reported by the controller. If the connection broke before a report
 * arrived, reported is false and the other fields are meaningless. */
struct job_outcome {
	bool reported;
	bool restart;  /* the controller wants this agent for the next attempt */
	int exit_code; /* of the whole job */
};

struct agent_params {
	size_t node_index;
	const char *name; /* of the node, in the allocation */
	const char *job;
	struct secret secret;
	int fd; /* one end of a socket pair with the controller, or -1 */
	/* "10.0.0.1:4711,[fd00::1]:4711", tried in turn. NULL if fd is given. */
	const char *controller_addresses;
	int node_timeout_ms;
	int connect_timeout_ms;	     /* how long the controller may take to start; 0: it has */
	const struct env *env;	     /* the agent's own environment, borrowed */
	struct job_outcome *outcome; /* or NULL: set when the controller reports the job's end */
};

/* Read the parameters from the environment that the launcher made (LAUNCHER_ENV_*). Strings are
 * borrowed from env. -ERR_USAGE: a variable is missing, so no launcher started this process.
 * -ERR_DATA: this node is not one of the job's, or a value is bad. */
int agent_params_read(const struct env *env, struct agent_params *out, struct error *err);

/* Resolve "gpu01:4711" into the numeric addresses that agent_params.controller_addresses needs.
 * out has room for size bytes. Asks the resolver repeatedly for connect_timeout_ms, since a job's
 * names may come up late. -ERR_NETWORK. */
int agent_resolve(const char *rendezvous, int connect_timeout_ms, char *out, size_t size,
		  struct error *err);

/* Run the agent until the job has ended or the connection to the controller is lost. params is
 * borrowed until then. Before it returns, the ranks and everything that they started have ended.
 * Changes the process: signals, child subreaper, descriptors. Forks and returns in the child; the
 * parent becomes the guardian (process/guardian.h) and exits as the child does.
 *
 * Return 0, even if the connection was lost during the job, or an error that could not be reported
 * to the controller. */
int agent_run(const struct agent_params *params, struct error *err);

#endif
