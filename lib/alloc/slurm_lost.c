/* SPDX-License-Identifier: BSD-3-Clause */
/* What Slurm does to a job that has lost a node. Slurm 22.05 to 24.05 report neither in variables
 * nor through scontrol whether the job was submitted with --no-kill: the job's script is the only
 * source. Newer releases (seen in 25.05's output) print the command line as SubmitLine. */
#include <stdio.h>
#include <string.h>

#include "alloc/slurm.h"

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

bool slurm_lost_node_policy(const char *job, const char *config, const char *script, char *out,
			    size_t size)
{
	int seconds = slurm_config_seconds(config, "SlurmdTimeout");
	const char *state = job ? strstr(job, " JobState=") : NULL; /* behind the job's name */
	const char *line = state ? strstr(state, " SubmitLine=") : NULL;
	char requeue[4] = "", after[48] = "";

	/* On the command line, -k may also be an option of the script's own. */
	if ((script && slurm_script_no_kill(script)) || (line && strstr(line, " --no-kill "))) {
		snprintf(out, size,
			 "the job was submitted with --no-kill: Slurm lets it continue when a node "
			 "fails");
		return true;
	}
	if (job)
		slurm_job_field(job, "Requeue", requeue, sizeof requeue);
	if (seconds > 0)
		snprintf(after, sizeof after, " (after %d s)", seconds);
	snprintf(out, size,
		 "when a node of this job fails, Slurm %s the job as soon as it marks the node "
		 "down%s, unless the job was submitted with --no-kill; berth cannot tell whether "
		 "it was. To be sure, %s",
		 requeue[0] == '1' && script ? "requeues" : "ends", after,
		 script ? "add #SBATCH --no-kill to the job script"
			: "submit the job with --no-kill");
	return false;
}
