/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage alloc: what the scheduler granted, as a value. */
#ifndef BERTH_ALLOC_ALLOC_H
#define BERTH_ALLOC_ALLOC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/error.h"

struct hosts;

enum alloc_from {
	ALLOC_FROM_NOWHERE,
	ALLOC_FROM_LOCAL,
	ALLOC_FROM_HAND,
	ALLOC_FROM_HOSTS,
	ALLOC_FROM_SLURM,
	ALLOC_FROM_PBS,
	ALLOC_FROM_OPENPAI,
	ALLOC_FROM_PLAN,     /* of a running rank */
	ALLOC_FROM_LAUNCHER, /* of berth exec */
};
/* Its name in JSON and for people: "slurm"; "berth" for a plan. */
const char *alloc_from_name(int from);

struct alloc_node {
	char *name; /* as the scheduler spells it; launchers pass this name */
	int slots;  /* tasks the scheduler granted here; 0: unknown */
	int gpus;   /* GPUs granted here; -1: unknown */
	int group;  /* of a heterogeneous job, from 0; under PBS: the part of its select */
};

/* The end of the year 9999. A later value is not a time; even a thousand times this fits in
 * int64_t. */
#define ALLOC_END_MAX 253402300799

/* An allocation. The caller that read it owns it and frees it with alloc_free. */
struct alloc {
	enum alloc_from source;
	char *job_id;		  /* the scheduler's, or berth's own: "local-HOST-PID-TIME" */
	size_t node_count;	  /* >= 1 */
	struct alloc_node *nodes; /* in the scheduler's order; nodes[0] is the first node */
	bool simulated; /* several nodes on this machine; also in the part of a role that has one */
	int groups;	/* of a heterogeneous job, or under PBS, once qstat has answered; else 0 */
	/* The index in nodes of the node this process runs on. -1: none of them (a login node), or
	 * unknown. */
	int this_node;
	int64_t end_time; /* when the job ends, in Unix seconds; 0: unknown */
	bool end_given;	  /* end_time is the user's, not the scheduler's */
	char *end_reason; /* where end_time comes from, or why it is unknown; may be NULL */
	int restarts;	  /* how often the scheduler has started the job before */
	/* Where the first machine waits, as "HOST:PORT". Set if the user or OpenPAI starts berth
	 * run on every machine, else NULL. */
	char *rendezvous;
	char *array_task; /* for a job array: "1234_7" (PBS: "64[7].server"), else NULL */
	char *why;	  /* the reason for source, for people: "SLURM_JOB_ID is set"; never NULL */
};

/* The options that affect the allocation. Zero or NULL: option absent, unless noted otherwise. */
struct alloc_request {
	const char *hosts;    /* a host list, or NULL */
	const char *hostfile; /* a host file, or NULL */
	int nnodes; /* --nnodes: machines on which the user starts berth run; 0: not started by hand
		     */
	int node_rank;		/* which of those machines this is; -1: unknown */
	const char *rendezvous; /* if started by hand: HOST:PORT of the first machine, or NULL */
};

/* A source of allocations: one row of the table in alloc.c, one file per source. */
struct alloc_source {
	enum alloc_from from;
	/* Does this source apply? Pure: reads only env and request. */
	int (*present)(const struct env *env, const struct alloc_request *request);
	/* Fill in *out, which is empty with this_node -1. After a failure alloc_read_from frees it.
	 */
	int (*read)(const struct env *env, const struct alloc_request *request, struct alloc *out,
		    struct error *err);
};
extern const struct alloc_source alloc_source_hand, alloc_source_hosts, alloc_source_slurm,
	alloc_source_pbs, alloc_source_openpai, alloc_source_local;

/* For the sources: the variable's value, or NULL if it is unset or empty. */
const char *alloc_env(const struct env *env, const char *name);
/* For the sources: make nodes of the hosts, whose names they take over, with slots if slots_given.
 * GPUs are unknown. Return 0 or -ERR_UNAVAILABLE. */
int alloc_set_nodes(struct alloc *alloc, struct hosts *hosts, bool slots_given, struct error *err);

/* Set end_reason. If memory is out, it becomes NULL. */
void alloc_set_end_reason(struct alloc *alloc, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Read the allocation from one source, which is present. Return as alloc_read; *out is untouched on
 * failure. */
int alloc_read_from(const struct alloc_source *source, const struct env *env,
		    const struct alloc_request *request, struct alloc *out, struct error *err);
/* Read the allocation from the first source that applies. The user's hosts precede a scheduler; the
 * local machine comes last. Return 0, or a negative code with the variable and its value in err. */
int alloc_read(const struct env *env, const struct alloc_request *request, struct alloc *out,
	       struct error *err);
/* If the end time that the scheduler gave has passed, although the job runs, forget it and write a
 * warning. Return whether it has. Reads the clock. */
bool alloc_drop_past_end(struct alloc *alloc, char *text, size_t size);
/* Has Slurm suspended or stopped the job? No, if it does not answer. Under PBS this process is
 * suspended, too. */
bool job_status_is_suspended(const struct env *env, const struct alloc *alloc, int timeout_ms);
/* The names of the chosen nodes (NULL: of all) as a host list, "n[1-3]"; malloced, NULL if memory
 * is out. */
char *alloc_node_list(const struct alloc *alloc, const bool *chosen);
void alloc_free(struct alloc *alloc); /* frees what it holds and clears it; NULL is allowed */

/* Check that text is "HOST:PORT" or "[fd00::1]:PORT". On success copy the host into host (size
 * bytes; may be NULL) and the port into *port. err calls the text by name. Return 0 or
 * -ERR_USAGE. */
int alloc_parse_rendezvous(const char *name, const char *text, char *host, size_t size, int *port,
			   struct error *err);

/* JSON: {"source","job_id","nodes":[{"name","slots","gpus"}],"this_node","end_time","end_why",
 * "restarts","array_task","rdzv_endpoint","why"}; null where unknown. A new reference; NULL if
 * memory is out. */
json_t *alloc_to_json(const struct alloc *alloc);

#endif
