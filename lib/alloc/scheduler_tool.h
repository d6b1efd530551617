/* SPDX-License-Identifier: BSD-3-Clause */
/* Asking a scheduler's own tool: squeue, qstat. */
#ifndef BERTH_ALLOC_SCHEDULER_TOOL_H
#define BERTH_ALLOC_SCHEDULER_TOOL_H

#include <stddef.h>

#include "base/env.h"

#define SCHEDULER_TOOL_STDERR_BYTES 200 /* what is kept of standard error */

struct scheduler_tool_output {
	char *text; /* standard output, at most limit bytes; malloced */
	char stderr_text[SCHEDULER_TOOL_STDERR_BYTES]; /* standard error's beginning, on one line */
	int code;				       /* exit code; 128+N of a signal */
};

enum scheduler_tool_result {
	SCHEDULER_TOOL_EXITED,	    /* it ended in time; see code */
	SCHEDULER_TOOL_TIMEOUT,	    /* not within timeout_ms: it was killed */
	SCHEDULER_TOOL_UNAVAILABLE, /* it cannot be started (there is none), or memory is out */
};

/* Run argv (argv[0] looked up in PATH) in env, standard input empty, and wait for its end, at most
 * timeout_ms. out is filled in where SCHEDULER_TOOL_EXITED: free its text. Starts a process and
 * reaps it; SIGCHLD is the caller's to bear. */
enum scheduler_tool_result scheduler_tool_run(char *const argv[], const struct env *env,
					      int timeout_ms, size_t limit,
					      struct scheduler_tool_output *out);

#endif
