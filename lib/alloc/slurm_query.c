/* SPDX-License-Identifier: BSD-3-Clause */
/* Ask Slurm's tools for what its variables leave out: the end of the job (squeue), and its GPUs per
 * node (scontrol). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/scheduler_tool.h"
#include "alloc/slurm.h"
#include "base/number.h"
#include "hostlist/hostlist.h"

#define DAYS_MAX 36500
#define ANSWER_MAX 63
#define JOB_MAX (8 << 20) /* bytes; a job of 10,000 different nodes needs about a million */
#define GPUS_MAX 4096

int slurm_time_left(const char *text, int64_t *seconds, struct error *err)
{
	char copy[64], *at = copy + strspn(text, " \n"), *dash;
	int64_t days = 0, total = 0;
	size_t size;
	int fields = 0, rc = 0;

	snprintf(copy, sizeof copy, "%s", text);
	size = strcspn(at, " \n");
	if (at[size + strspn(at + size, " \n")] || strlen(text) >= sizeof copy)
		return error_set(err, ERR_DATA, "'%.60s' is not a time", text);
	at[size] = '\0';
	if (!strcmp(at, "UNLIMITED") || !strcmp(at, "NOT_SET"))
		return 1;
	dash = strchr(at, '-');
	if (dash) {
		*dash = '\0';
		rc = number_int64("the number of days", at, 0, DAYS_MAX, &days, err);
		at = dash + 1;
	}
	for (char *next = at; !rc && next && fields <= 3; fields++) {
		char *field = strsep(&next, ":");
		int64_t value;

		/* The first field may be large (minutes over an hour), the others are 0 to 59. */
		rc = number_int64("the time", field, 0, fields ? 59 : 24 * 3600, &value, err);
		total = total * 60 + (rc ? 0 : value);
	}
	if (!rc && (fields > 3 || (dash && fields != 3)))
		rc = error_set(err, ERR_DATA, "'%.60s' is not a time such as 1-02:00:00", text);
	if (rc) {
		error_prefix(err, "the time left");
		return rc;
	}
	*seconds = days * 86400 + total;
	return 0;
}

static void set_end_reason(struct alloc *alloc, const char *why)
{
	free(alloc->end_reason);
	alloc->end_reason = strdup(why); /* if memory is out, the reason is missing */
}

static void query_end_time(const struct env *env, int timeout_ms, struct alloc *alloc)
{
	char *const argv[] = {(char *)"squeue", (char *)"-h", (char *)"-j", alloc->job_id,
			      (char *)"-o",	(char *)"%L", NULL};
	struct scheduler_tool_output answer;
	char why[160];
	int64_t left;
	enum scheduler_tool_result end;
	int rc;

	end = scheduler_tool_run(argv, env, timeout_ms, ANSWER_MAX, &answer);
	if (end == SCHEDULER_TOOL_UNAVAILABLE) {
		set_end_reason(alloc,
			       "SLURM_JOB_END_TIME is not set, and squeue cannot be started");
		return;
	}
	if (end == SCHEDULER_TOOL_TIMEOUT) {
		snprintf(why, sizeof why,
			 "SLURM_JOB_END_TIME is not set, and squeue did not answer within %d ms",
			 timeout_ms);
		set_end_reason(alloc, why);
		return;
	}
	answer.text[strcspn(answer.text, "\n")] = '\0';
	rc = slurm_time_left(answer.text, &left, NULL);
	if (rc == 1) {
		set_end_reason(alloc, "squeue: the job has no time limit");
	} else if (rc) {
		snprintf(why, sizeof why,
			 "SLURM_JOB_END_TIME is not set, and squeue does not report the time left "
			 "('%.40s')",
			 answer.text);
		set_end_reason(alloc, why);
	} else {
		alloc->end_time = (int64_t)time(NULL) + left;
		snprintf(why, sizeof why, "squeue: %.40s left", answer.text);
		set_end_reason(alloc, why);
	}
	free(answer.text);
}

/* ---- GPUs ---- */

/* "gpu:h200:4(IDX:0-3),gpu:1(IDX:4),shard:2": 5 GPUs. An entry without a count adds none. */
static int gres_gpus(const char *text, size_t size)
{
	const char *end = text + size;
	long sum = 0;

	while (text < end) {
		const char *item = text, *open = NULL, *count = NULL;
		int depth = 0;

		for (; text < end && (depth || *text != ','); text++) {
			depth += (*text == '(') - (*text == ')');
			if (*text == '(' && !open)
				open = text;
			if (*text == ':' && !open)
				count = text + 1;
		}
		if (size >= 4 && !strncmp(item, "gpu:", 4) && count) {
			long value = strtol(count, NULL, 10);

			sum += value > 0 && value <= GPUS_MAX ? value : 0;
		}
		text++;
	}
	return sum <= GPUS_MAX ? (int)sum : -1;
}

static void set_gpus(struct alloc *alloc, const char *list, size_t size, int gpus)
{
	char *text = strndup(list, size);
	struct hosts hosts = {0};

	if (text && gpus >= 0 && !hostlist_expand(text, &hosts, NULL))
		for (size_t h = 0, n = 0; h < hosts.count && hosts.count <= alloc->node_count;
		     h++) {
			/* Both lists are in Slurm's order, so the next node is nearly always the
			 * match. */
			for (size_t i = 0; i < alloc->node_count;
			     i++, n = (n + 1) % alloc->node_count)
				if (!strcmp(alloc->nodes[n].name, hosts.names[h]))
					break;
			if (!strcmp(alloc->nodes[n].name, hosts.names[h]))
				alloc->nodes[n].gpus = gpus;
		}
	hosts_free(&hosts);
	free(text);
}

void slurm_job_gpus(const char *text, struct alloc *alloc)
{
	const char *at = text;

	/* "... Nodes=n[1-2] CPU_IDs=0-3 Mem=100 GRES=gpu:4(IDX:0-3) Nodes=n3 ..." */
	while ((at = strstr(at, " Nodes="))) {
		const char *list = at + strlen(" Nodes="), *next = strstr(list, " Nodes=");
		const char *gres = strstr(list, " GRES=");

		at = list;
		if (!gres || (next && gres > next))
			continue;
		gres += strlen(" GRES=");
		set_gpus(alloc, list, strcspn(list, " \n"), gres_gpus(gres, strcspn(gres, " \n")));
	}
}

static void query_gpus(const struct env *env, int timeout_ms, struct alloc *alloc)
{
	char *const argv[] = {(char *)"scontrol", (char *)"-d",	 (char *)"-o", (char *)"show",
			      (char *)"job",	  alloc->job_id, NULL};
	struct scheduler_tool_output answer;

	if (scheduler_tool_run(argv, env, timeout_ms, JOB_MAX, &answer) != SCHEDULER_TOOL_EXITED)
		return;
	slurm_job_gpus(answer.text, alloc);
	free(answer.text);
}

void slurm_query(const struct env *env, int timeout_ms, struct alloc *alloc)
{
	bool unknown = false;

	if (strcmp(alloc->source, "slurm") != 0)
		return;
	for (size_t i = 0; i < alloc->node_count; i++)
		unknown |= alloc->nodes[i].gpus < 0;
	if (!alloc->end_time)
		query_end_time(env, timeout_ms, alloc);
	/* In a step the job's GPUs are not the step's. */
	if (unknown && !slurm_in_step(env))
		query_gpus(env, timeout_ms, alloc);
}
