/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether a scheduler still knows a job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/alloc.h"
#include "alloc/scheduler_tool.h"

#define ANSWER_MAX (1 << 20)

/* The job's state, or "" if squeue calls its id invalid. Return false if it does not answer, or not
 * about this job: of an array it lists all tasks. */
static bool slurm_job_state(const struct env *env, const char *job_id, int timeout_ms, char *state,
			    size_t size)
{
	char *const argv[] = {(char *)"squeue", (char *)"-h",	 (char *)"-t",
			      (char *)"all",	(char *)"-j",	 (char *)job_id,
			      (char *)"-o",	(char *)"%A %T", NULL};
	struct scheduler_tool_output answer;
	size_t length = strlen(job_id);
	const char *line;
	bool known;

	/* An id that a tool would take for an option is not valid. */
	if (!*job_id || *job_id == '-' ||
	    scheduler_tool_run(argv, env, timeout_ms, ANSWER_MAX, &answer) != SCHEDULER_TOOL_EXITED)
		return false;
	known = answer.code && strstr(answer.stderr_text, "Invalid job id");
	*state = '\0';
	for (line = answer.text; !known && *line;
	     line += strcspn(line, "\n"), line += *line == '\n')
		if (!strncmp(line, job_id, length) && line[length] == ' ') {
			line += length + 1;
			snprintf(state, size, "%.*s", (int)strcspn(line, " \n"), line);
			known = true;
		}
	free(answer.text);
	return known;
}

bool job_status_is_suspended(const struct env *env, const struct alloc *alloc, int timeout_ms)
{
	char state[32];

	return alloc->source == ALLOC_FROM_SLURM &&
	       slurm_job_state(env, alloc->job_id, timeout_ms, state, sizeof state) &&
	       (!strcmp(state, "SUSPENDED") || !strcmp(state, "STOPPED"));
}
