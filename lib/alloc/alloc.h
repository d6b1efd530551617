/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage alloc: what the scheduler gave us, as a value. */
#ifndef BERTH_ALLOC_ALLOC_H
#define BERTH_ALLOC_ALLOC_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/error.h"

struct alloc_node {
	char *name; /* as the scheduler spells it: what engines must say to reach it */
	int slots;  /* tasks the scheduler granted here; 0: not said */
	int gpus;   /* GPUs granted here; -1: not said */
};

/* The end of the year 9999: what is later is no time, and a thousand times as much has room. */
#define ALLOC_END_MAX 253402300799

/* An allocation. Owned by whoever read it; freed by alloc_free. */
struct alloc {
	char *source;		  /* "local", "hand", "hosts", "slurm", "pbs", "openpai" */
	char *job_id;		  /* the scheduler's, or one of ours: "local-HOST-PID-TIME" */
	size_t node_count;	  /* >= 1 */
	struct alloc_node *nodes; /* in the scheduler's order; nodes[0] is the head */
	int this_node;	  /* the node this process is on; -1: none of them (a login node), or
			     not said */
	int64_t end_time; /* Unix seconds at which the job is ended; 0: unknown */
	char *end_reason; /* where end_time is from, or why it is unknown; NULL: not said */
	int restarts;	  /* how often the scheduler has started the job before */
	char *rendezvous; /* "HOST:PORT" at which the head is to be met, where nobody starts agents
		       for us: by hand, OpenPAI; else NULL */
	char *array_task; /* of an array of jobs: "1234_7" (PBS: "64[7].server"), else NULL */
	char *why;	  /* for people: "SLURM_JOB_ID is set", "no scheduler's variables" */
};

/* What the user asked for that bears on the allocation; zeros where not asked. */
struct alloc_request {
	const char *hosts;	/* a host list, or NULL */
	const char *hostfile;	/* a host file, or NULL */
	int nnodes;		/* by hand: machines on which berth run is started; 0: not so */
	int node_rank;		/* which of them this is; -1: not said */
	const char *rendezvous; /* by hand: the first one's HOST:PORT, or NULL */
};

/* A source of allocations: one row of the table in alloc.c, one file a source. */
struct alloc_source {
	const char *name;
	/* Is this source meant? Pure: looks at env and request only. */
	int (*present)(const struct env *env, const struct alloc_request *request);
	int (*read)(const struct env *env, const struct alloc_request *request, struct alloc *out,
		    struct error *err);
};
extern const struct alloc_source alloc_source_hand, alloc_source_hosts, alloc_source_slurm,
	alloc_source_pbs, alloc_source_openpai, alloc_source_local;

/* Read the allocation from the first source that is present (the user's hosts before a
 * scheduler, the local machine last). 0, or negative: err names the variable and the value. */
int alloc_read(const struct env *env, const struct alloc_request *request, struct alloc *out,
	       struct error *err);
/* Ask the scheduler's own tool for what its variables leave out (when the job ends), for a few
 * seconds at most. Never an error: end_reason says what came of it. Starts processes. */
void alloc_query(const struct env *env, struct alloc *alloc);
/* Is a job of that source ("slurm", "pbs") gone? 1: its tool says so; 0: it is queued, runs or is
 * ending; -1: nobody can say (no such tool, no answer within timeout_ms, another source). Starts a
 * process. */
int job_status_is_over(const struct env *env, const char *source, const char *job_id,
		       int timeout_ms);
void alloc_free(struct alloc *alloc); /* frees what it holds and clears it; NULL is fine */

/* "HOST:PORT", "[fd00::1]:PORT": is it one? host (may be NULL): its part in front, of size bytes.
 * name: what it is in err. 0 or -ERR_USAGE. */
int alloc_parse_rendezvous(const char *name, const char *text, char *host, size_t size, int *port,
			   struct error *err);

/* JSON: {"source","job_id","nodes":[{"name","slots","gpus"}],"this_node","end_time","end_why",
 * "restarts","array_task","rdzv_endpoint","why"}; null where unknown. A new reference (NULL: memory
 * out); alloc_from_json reads its own kind, also without the members that came later (this_node,
 * end_why, restarts, array_task, rdzv_endpoint). */
json_t *alloc_to_json(const struct alloc *alloc);
int alloc_from_json(const json_t *json, struct alloc *out, struct error *err);

#endif
