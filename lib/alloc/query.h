/* SPDX-License-Identifier: BSD-3-Clause */
/* Asking the scheduler for what its variables leave out, while the job already starts: its tools
 * may take seconds, or hang. They run one after another in the background. */
#ifndef BERTH_ALLOC_QUERY_H
#define BERTH_ALLOC_QUERY_H

#include "alloc/alloc.h"
#include "alloc/scheduler_tool.h"

#define ALLOC_QUERY_MS 60000 /* how long a tool may take in the background */

/* What to ask besides the job itself. */
enum {
	ALLOC_QUERY_KILL_WAIT = 1, /* the scheduler's limits */
	ALLOC_QUERY_SCRIPT = 2,	   /* the job script, under Slurm */
};

struct alloc_query {
	const struct env *env; /* borrowed */
	struct alloc *alloc;   /* borrowed; the answers complete it */
	unsigned also;	       /* the flags above */
	int timeout_ms;	       /* of each tool */
	/* The tools' output, NULL while it is missing. Slurm: scontrol show job, show config, and
	 * write batch_script. PBS: qstat -f, as JSON if qstat can print it, and qstat -Q -f. */
	char *job, *limits, *script;
	char why[300]; /* why job is missing */
	/* How long the scheduler waits between its stop signal and SIGKILL, by default until it has
	 * answered; 0: there is no scheduler that kills. */
	int kill_wait_ms;
	/* For query.c: */
	const struct alloc_query_step *steps;
	size_t step;
	struct scheduler_tool tool;
	int64_t deadline_ms;
	char path[600]; /* of the tool, if it is not looked up in PATH */
	char queue[80]; /* of a PBS job */
	bool answered;	/* PBS: qstat has reported the job at least once */
};

/* One tool. A table of them ends with an empty step. */
struct alloc_query_step {
	/* Write the arguments into argv, which has room for 8 and is zeroed; false: skip this step.
	 */
	bool (*command)(struct alloc_query *query, char **argv);
	/* result: see scheduler_tool_run. May take over output->text and set it to NULL. */
	void (*answer)(struct alloc_query *query, enum scheduler_tool_result result,
		       struct scheduler_tool_output *output);
	size_t limit; /* bytes of output */
};
extern const struct alloc_query_step alloc_query_slurm[], alloc_query_pbs[];

/* Start to ask. Nothing is asked about allocations without a scheduler. *query is filled in; the
 * caller frees it with alloc_query_end. Starts processes and reaps them: the caller must tolerate
 * SIGCHLD. */
void alloc_query_begin(struct alloc_query *query, const struct env *env, struct alloc *alloc,
		       unsigned also, int timeout_ms);
/* Is something being asked? Then call alloc_query_continue when tool.fd is readable, and at
 * deadline_ms (clock_now_ms). */
bool alloc_query_runs(const struct alloc_query *query);
/* Handle what the tools have written, and start the next one, unless one did not answer in time.
 * Does not block. */
void alloc_query_continue(struct alloc_query *query);
/* Wait at most timeout_ms for all answers, or only for that about the job. */
void alloc_query_wait(struct alloc_query *query, int timeout_ms, bool job_only);
/* Ask about the job once more: its limit may have been changed, or the job suspended. */
void alloc_query_again(struct alloc_query *query);
/* Ask and wait for the answer, for 2 s under Slurm and 10 s under PBS. */
void alloc_query_now(const struct env *env, struct alloc *alloc);
void alloc_query_end(struct alloc_query *query); /* ends a tool that runs, and frees the answers */

#endif
