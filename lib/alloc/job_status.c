/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether a scheduler still knows a job. */
#include <stdlib.h>
#include <string.h>

#include "alloc/alloc.h"
#include "alloc/pbs.h"
#include "alloc/scheduler_tool.h"

#define ANSWER_MAX (1 << 20)

/* squeue lists jobs that wait, run or end. For other ids it prints nothing, or that the id is
 * invalid. */
static int slurm_job_over(const struct env *env, const char *job_id, int timeout_ms)
{
	char *const argv[] = {(char *)"squeue", (char *)"-h", (char *)"-j", (char *)job_id,
			      (char *)"-o",	(char *)"%T", NULL};
	struct scheduler_tool_output answer;
	int is_over = -1;

	if (scheduler_tool_run(argv, env, timeout_ms, ANSWER_MAX, &answer) != SCHEDULER_TOOL_EXITED)
		return -1;
	if (!answer.code)
		is_over = !answer.text[strspn(answer.text, " \n")];
	else if (strstr(answer.stderr_text, "Invalid job id"))
		is_over = 1;
	free(answer.text);
	return is_over;
}

/* OpenPBS: "Unknown Job Id" or "Job has finished". Torque lists a completed job as C for a
 * while. */
static int pbs_job_over(const struct env *env, const char *job_id, int timeout_ms)
{
	char tool[4096];
	char *const argv[] = {tool, (char *)"-f", (char *)job_id, NULL};
	struct scheduler_tool_output answer;
	int is_over = -1;

	if (pbs_find_tool(env, "qstat", tool, sizeof tool) ||
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

int job_status_is_over(const struct env *env, const char *source, const char *job_id,
		       int timeout_ms)
{
	/* An id that a tool would take for an option is not valid. */
	if (!*job_id || *job_id == '-')
		return -1;
	if (!strcmp(source, "slurm"))
		return slurm_job_over(env, job_id, timeout_ms);
	return strcmp(source, "pbs") ? -1 : pbs_job_over(env, job_id, timeout_ms);
}
