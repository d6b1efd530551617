/* SPDX-License-Identifier: BSD-3-Clause */
/* What Slurm does to a job that has lost a node. Slurm reports nowhere whether the job was
 * submitted with --no-kill (22.05 to 24.05: neither in variables nor through scontrol). The job's
 * script is the only source. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/scheduler_tool.h"
#include "alloc/slurm.h"

#define SCRIPT_MAX (4 << 20)
#define ANSWER_MAX (1 << 20)

/* --no-kill, -k, or -k among other letters without arguments; --no-kill=off cancels it. */
static void read_option(const char *word, size_t size, bool *no_kill)
{
	static const char name[] = "--no-kill";

	if (size >= sizeof name - 1 && !strncmp(word, name, sizeof name - 1)) {
		if (size == sizeof name - 1)
			*no_kill = true;
		else if (size == sizeof name - 1 + 4 && !strncmp(word + sizeof name - 1, "=off", 4))
			*no_kill = false;
	} else if (size == 2 && !strncmp(word, "-k", 2)) {
		*no_kill = true;
	}
}

bool slurm_script_no_kill(const char *script)
{
	static const char mark[] = "#SBATCH";
	bool no_kill = false;

	while (*script) {
		const char *end = script + strcspn(script, "\n"), *at = script;

		/* sbatch reads no options after the first command. */
		at += strspn(at, " \t\r");
		if (at < end && *at != '#')
			break;
		if (!strncmp(script, mark, sizeof mark - 1))
			for (at = script + sizeof mark - 1; at < end;) {
				size_t size;

				at += strspn(at, " \t\r");
				size = strcspn(at, " \t\r\n");
				if (at >= end || *at == '#')
					break;
				read_option(at, size, &no_kill);
				at += size;
			}
		script = end + (*end == '\n');
	}
	return no_kill;
}

/* malloced, or NULL. */
static char *run_tool(const struct env *env, int timeout_ms, size_t limit, const char *const *argv)
{
	struct scheduler_tool_output answer;

	if (scheduler_tool_run((char *const *)argv, env, timeout_ms, limit, &answer) !=
	    SCHEDULER_TOOL_EXITED)
		return NULL;
	if (!answer.code)
		return answer.text;
	free(answer.text);
	return NULL;
}

/* "SlurmdTimeout           = 300 sec"; 0: unknown. */
static int timeout_of(const char *config)
{
	const char *at = config ? strstr(config, "\nSlurmdTimeout") : NULL;

	at = at ? strchr(at, '=') : NULL;
	return at ? atoi(at + 1) : 0;
}

void slurm_lost_node_policy(const struct env *env, const struct alloc *alloc, int timeout_ms,
			    char *out, size_t size)
{
	const char *id = alloc->job_id;
	char *script, *job, *config, after[48] = "";

	out[0] = '\0';
	if (strcmp(alloc->source, "slurm") != 0)
		return;
	script =
		run_tool(env, timeout_ms, SCRIPT_MAX,
			 (const char *const[]){"scontrol", "write", "batch_script", id, "-", NULL});
	if (script && slurm_script_no_kill(script)) {
		snprintf(out, size,
			 "the job script sets --no-kill: Slurm lets the job continue when a node "
			 "fails");
		free(script);
		return;
	}
	job = run_tool(env, timeout_ms, ANSWER_MAX,
		       (const char *const[]){"scontrol", "-o", "show", "job", id, NULL});
	config = run_tool(env, timeout_ms, ANSWER_MAX,
			  (const char *const[]){"scontrol", "show", "config", NULL});
	if (timeout_of(config))
		snprintf(after, sizeof after, " (after %d s)", timeout_of(config));
	snprintf(out, size,
		 "when a node of this job fails, Slurm %s the job as soon as it marks the node "
		 "down%s, unless the job was submitted with --no-kill%s",
		 job && strstr(job, " Requeue=1") && script ? "requeues" : "ends", after,
		 script ? ". The job script does not set it: add #SBATCH --no-kill"
			: ". To continue on the other nodes, use salloc --no-kill");
	free(script);
	free(job);
	free(config);
}
