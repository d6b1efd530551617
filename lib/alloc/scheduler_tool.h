/* SPDX-License-Identifier: BSD-3-Clause */
/* Running a scheduler's own tool: squeue, qstat. */
#ifndef BERTH_ALLOC_SCHEDULER_TOOL_H
#define BERTH_ALLOC_SCHEDULER_TOOL_H

#include <stddef.h>

#include "base/env.h"

#define SCHEDULER_TOOL_STDERR_BYTES 200 /* bytes kept of standard error */

struct scheduler_tool_output {
	char *text; /* standard output, at most limit bytes; malloced */
	char stderr_text[SCHEDULER_TOOL_STDERR_BYTES]; /* the beginning of standard error, on one
							  line */
	int code;				       /* exit code; 128 + N after signal N */
};

enum scheduler_tool_result {
	SCHEDULER_TOOL_EXITED,	    /* it exited in time; see code */
	SCHEDULER_TOOL_TIMEOUT,	    /* it did not exit within timeout_ms and was killed */
	SCHEDULER_TOOL_UNAVAILABLE, /* it cannot be started (not installed), or memory is out */
};

/* Run argv (argv[0] is looked up in PATH) in env with empty standard input, and wait at most
 * timeout_ms. If the result is SCHEDULER_TOOL_EXITED, *out is filled in and the caller frees
 * out->text. Starts a process and reaps it: the caller must tolerate SIGCHLD. */
enum scheduler_tool_result scheduler_tool_run(char *const argv[], const struct env *env,
					      int timeout_ms, size_t limit,
					      struct scheduler_tool_output *out);

#endif
