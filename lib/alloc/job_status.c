/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether a scheduler still knows a job. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/alloc.h"
#include "alloc/pbs.h"
#include "alloc/scheduler_tool.h"

#define ANSWER_MAX (1 << 20)

/* The states in which squeue lists a job that is over, for some minutes. */
static const char *const ended[] = {
	"BOOT_FAIL",	 "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
	"OUT_OF_MEMORY", "PREEMPTED", "REVOKED",   "TIMEOUT",  NULL};

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

/* OpenPBS: "Unknown Job Id" or "Job has finished". Torque lists a completed job as C for a
 * while. */
static int pbs_job_over(const struct env *env, const char *job_id, int timeout_ms)
{
	char tool[4096];
	char *const argv[] = {tool, (char *)"-f", (char *)job_id, NULL};
	struct scheduler_tool_output answer;
	int is_over = -1;

	if (!*job_id || *job_id == '-' || pbs_find_tool(env, "qstat", tool, sizeof tool) ||
	    scheduler_tool_run(argv, env, timeout_ms, ANSWER_MAX, &answer) != SCHEDULER_TOOL_EXITED)
		return -1;
	const char *state = strstr(answer.text, "job_state = ");

	if (state)
		is_over = strchr("CFX", state[strlen("job_state = ")]) != NULL;
	else if (strcasestr(answer.stderr_text, "Unknown Job") ||
		 strcasestr(answer.stderr_text, "has finished"))
		is_over = 1;
	free(answer.text);
	return is_over;
}

int job_status_is_over(const struct env *env, const char *scheduler, const char *job_id,
		       int timeout_ms)
{
	char state[32];

	if (!strcmp(scheduler, alloc_from_name(ALLOC_FROM_SLURM)))
		return slurm_job_state(env, job_id, timeout_ms, state, sizeof state)
			       ? !*state || env_name_matches(state, ended)
			       : -1;
	return strcmp(scheduler, alloc_from_name(ALLOC_FROM_PBS))
		       ? -1
		       : pbs_job_over(env, job_id, timeout_ms);
}

bool job_status_is_suspended(const struct env *env, const struct alloc *alloc, int timeout_ms)
{
	char state[32];

	return alloc->source == ALLOC_FROM_SLURM &&
	       slurm_job_state(env, alloc->job_id, timeout_ms, state, sizeof state) &&
	       (!strcmp(state, "SUSPENDED") || !strcmp(state, "STOPPED"));
}
