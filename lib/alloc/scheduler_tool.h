/* SPDX-License-Identifier: BSD-3-Clause */
/* Asking a scheduler's own tool: squeue, qstat. */
#ifndef BERTH_ALLOC_SCHEDULER_TOOL_H
#define BERTH_ALLOC_SCHEDULER_TOOL_H

#include <stddef.h>

#include "base/env.h"

#define ASK_WORDS 200 /* what is kept of standard error */

struct ask_answer {
	char *text;            /* standard output, at most limit bytes; malloced */
	char words[ASK_WORDS]; /* standard error's beginning, on one line */
	int code;              /* exit code; 128+N of a signal */
};

enum ask_end {
	ASK_ANSWERED, /* it ended in time; see code */
	ASK_LATE,     /* not within timeout_ms: it was killed */
	ASK_NONE,     /* it cannot be started (there is none), or memory is out */
};

/* Run argv (argv[0] looked up in PATH) in env, standard input empty, and wait for its end, at most
 * timeout_ms. out is filled in where ASK_ANSWERED: free its text. Starts a process and reaps it;
 * SIGCHLD is the caller's to bear. */
enum ask_end ask_tool(char *const argv[], const struct env *env, int timeout_ms, size_t limit,
		      struct ask_answer *out);

#endif
