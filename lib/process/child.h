/* SPDX-License-Identifier: BSD-3-Clause */
/* From fork to exec of one rank. Internal to the stage agent. */
#ifndef BERTH_PROCESS_CHILD_H
#define BERTH_PROCESS_CHILD_H

#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/error.h"

/* Where a start failed, and what the child writes to report_fd before it gives up. */
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

/* Everything the child needs, made before the fork: afterwards it allocates nothing. */
struct child_spec {
	const char *const *argv;
	char *const *envp;
	const char *cwd;	    /* or NULL */
	char **candidates;	    /* what to try to exec, in order; NULL-terminated */
	char **shell_argv;	    /* for a script without "#!": [1] is put in by the child */
	const struct rlimit *files; /* the program's limit of open files; NULL: ours */
	int stdin_fd, stdout_fd, stderr_fd, report_fd; /* all but stdin_fd above 2 */
	pid_t parent;
};

/* Look argv[0] up in envp's PATH (execvp's rules). argv and envp are borrowed.
 * 0, -ERR_USAGE for an empty argv, -ERR_UNAVAILABLE for memory. child_spec_free frees. */
int child_spec_make(const char *const *argv, char *const *envp, const char *cwd,
		    struct child_spec *out, struct error *err);
void child_spec_free(struct child_spec *spec);

/* In the child, with all signals blocked. Async-signal-safe calls only; never returns. */
_Noreturn void child_run(const struct child_spec *spec);

/* The sentence for a report: "cannot start ./x: Permission denied (...)"; program is argv[0],
 * path envp's PATH. Returns the exit code a shell would give: 127 or 126. */
int child_report_text(const struct child_report *report, const struct child_spec *spec, char *text,
		      size_t size);

#endif
