/* SPDX-License-Identifier: BSD-3-Clause */
/* Running a scheduler's own tool: squeue, qstat. */
#ifndef BERTH_ALLOC_SCHEDULER_TOOL_H
#define BERTH_ALLOC_SCHEDULER_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

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

/* A tool that runs in the background. */
struct scheduler_tool {
	pid_t pid; /* also its process group; 0: none runs */
	int fd;	   /* the reading end of its standard output, non-blocking */
	int stderr_fd;
	char *text;
	size_t used, limit;
};
/* Start the tool as scheduler_tool_run does. Return 0, or -1 if it cannot be started, or memory is
 * out. */
int scheduler_tool_begin(struct scheduler_tool *tool, char *const argv[], const struct env *env,
			 size_t limit);
/* Read what it has written. Return true once it writes no more, or has reached the limit. */
bool scheduler_tool_read(struct scheduler_tool *tool);
/* Wait for its end until deadline_ms (clock_now_ms), then kill it and wait 0.2 s at most: one in
 * state D stays a child of this process. Never returns SCHEDULER_TOOL_UNAVAILABLE. Its code is -1
 * if another part of this process has reaped the tool. */
enum scheduler_tool_result scheduler_tool_end(struct scheduler_tool *tool, int64_t deadline_ms,
					      struct scheduler_tool_output *out);

/* Run argv (argv[0] is looked up in PATH) in env with empty standard input, and wait at most
 * timeout_ms. If the result is SCHEDULER_TOOL_EXITED, *out is filled in and the caller frees
 * out->text. Starts a process and reaps it as above: the caller must tolerate SIGCHLD. */
enum scheduler_tool_result scheduler_tool_run(char *const argv[], const struct env *env,
					      int timeout_ms, size_t limit,
					      struct scheduler_tool_output *out);

#endif
