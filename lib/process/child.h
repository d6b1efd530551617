/* SPDX-License-Identifier: BSD-3-Clause */
/* From fork to exec of one rank. Private to this stage. */
#ifndef BERTH_PROCESS_CHILD_H
#define BERTH_PROCESS_CHILD_H

#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/error.h"
#include "process/rlimits.h"

/* Where a start failed. The child writes a child_report to report_fd before it exits. */
enum child_stage {
	CHILD_STAGE_NONE,
	CHILD_STAGE_SESSION,
	CHILD_STAGE_STDIO,
	CHILD_STAGE_CHDIR,
	CHILD_STAGE_EXEC,
};
struct child_report {
	int stage; /* enum child_stage */
	int error; /* errno */
};

/* Everything the child needs, made before the fork. After it the child allocates nothing. */
struct child_spec {
	const char *const *argv;
	char *const *envp;
	const char *cwd;	    /* or NULL */
	char **candidates;	    /* paths to try to exec, in order; NULL-terminated */
	char **shell_argv;	    /* for a script without "#!"; the child fills in [1] */
	const struct rlimit *files; /* the program's RLIMIT_NOFILE; NULL: the agent's */
	const struct limits
		*limits; /* the program's other limits; NULL or not known: the agent's */
	bool service;	 /* see supervise_rank */
	int stdin_fd, stdout_fd, stderr_fd, report_fd; /* all but stdin_fd above 2 */
	bool has_terminal; /* stdin_fd is to be the controlling terminal */
	pid_t parent;
};

/* Look argv[0] up in envp's PATH by execvp's rules. argv and envp are borrowed. Return 0,
 * -ERR_USAGE for an empty argv, or -ERR_UNAVAILABLE if memory is out. child_spec_free frees
 * *out. */
int child_spec_make(const char *const *argv, char *const *envp, const char *cwd,
		    struct child_spec *out, struct error *err);
void child_spec_free(struct child_spec *spec);

/* Runs in the child, with all signals blocked. Makes async-signal-safe calls only; never
 * returns. */
_Noreturn void child_run(const struct child_spec *spec);

/* The exit codes of a program that did not start, as a shell gives them. */
enum { CHILD_CANNOT_START = 126, CHILD_NOT_FOUND = 127 };

/* Format a report on program (argv[0]), which was to start in the directory cwd (or NULL): "cannot
 * start ./x: Permission denied (...)". Return its exit code. */
int child_report_text(const struct child_report *report, const char *program, const char *cwd,
		      char *text, size_t size);

#endif
