/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage check: the preflight of berth check. One prober per node, started as a rank by the same
 * launcher and agents as a job's, examines its node, tries the other nodes and reports what it saw;
 * the controller compares and judges.
 *
 *   check.c     the controller: what is asked when, deadlines, who is missing
 *   prober.c    one node's side
 *   probes.c    the table of probes; probe_NAME.c: one each, what is looked at and how it is judged
 *   check_plan.c      the plan that a job would have
 *   ring.c      the all-reduce, a node's side
 *   result.c    berth.check/1
 *   text.c     results, and what probes ask about the nodes */
#ifndef BERTH_CHECK_CHECK_H
#define BERTH_CHECK_CHECK_H

#include <jansson.h>
#include <stddef.h>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "launch/launcher.h"
#include "plan/plan.h"

/* What to check. Borrowed during check_run. */
struct check_request {
	const struct launch_options *launch;
	const char *const *prober; /* the command that calls check_prober on a node */
	const char *version;	   /* of this berth */
	const json_t *container;   /* container_to_json; NULL: none */
	const char *checkpoint;	   /* the directory that all nodes must see, absolute; or NULL */
	struct plan_request plan_request; /* iface, subnet, master_addr, port: as for a job */
	void (*note)(void *context, enum log_level level, const char *text); /* may be NULL */
	void *context;
};

/* Run the preflight test. It takes seconds; every wait has a deadline. Signals and children are
 * handled as in jobs_run. *out is berth.check/1, a new reference:
 *
 *   {schema, nodes: [{node, addresses: [{iface, address, speed_mbps, kind}],
 *                     probes: [{name, result: "ok|fault|skipped", seen, fix, note}]}],
 *    reach: [[[outcome per address of node j] for each j] for each node i], network, faults}
 *
 * note is true if nothing is broken but the user should read the result. An outcome is one of
 *   "ok", "refused",
 *   "timeout"           no answer to a connect,
 *   "no-reply"          connected, but no answer,
 *   "unauthenticated"   the answer lacks this check's secret,
 *   "host-unreachable"  no such neighbour,
 *   "unreachable"       no route,
 *   "self",
 *   "-"                 not tried,
 *   null                the node did not report it; for all addresses of a node: not tried, as a
 *                       node of more than 64 tries a sample.
 * Return 0 even if there are faults. A negative code means that the check could not start or was
 * interrupted. */
int check_run(const struct check_request *request, json_t **out, struct error *err);

/* The number of probes in a berth.check/1 whose result is "fault". */
size_t check_faults(const json_t *check);

/* One node's side: questions on stdin, answers on stdout, until it is asked to end or stdin ends.
 * Does not return: ends the process (threads may hang in a file system or a driver).
 * version: of this berth. env: the process's environment. */
void check_prober(const struct env *env, const char *version) __attribute__((noreturn));

#endif
