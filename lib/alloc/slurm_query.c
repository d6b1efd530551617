/* SPDX-License-Identifier: BSD-3-Clause */
/* What scontrol adds to Slurm's variables: the end of the job, its GPUs per node, KillWait, and
 * what Slurm does when a node fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/query.h"
#include "alloc/slurm.h"
#include "base/number.h"
#include "hostlist/hostlist.h"

#define DAYS_MAX 36500
#define MOVED_S 3 /* rounding differs by less */
#define SCRIPT_MAX (4 << 20)
#define CONFIG_MAX (1 << 20)
#define JOB_MAX (8 << 20) /* bytes; a job of 10,000 different nodes needs about a million */
#define GPUS_MAX 4096
#define KILL_WAIT_MAX_S 65533 /* slurm.conf(5) */

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

void slurm_job_field(const char *text, const char *name, char *out, size_t size)
{
	/* The user chooses the job's name, which stands in front of this field. */
	const char *at = strstr(text, " JobState=");

	for (; at; at = strchr(at + 1, ' '))
		if (!strncmp(at + 1, name, strlen(name)) && at[1 + strlen(name)] == '=')
			break;
	at = at ? at + strlen(name) + 2 : "";
	snprintf(out, size, "%.*s", (int)strcspn(at, " \n"), at);
}

int slurm_job_time_left(const char *text, int64_t *seconds)
{
	char limit_text[40], used_text[40];
	int64_t limit, used;
	int rc;

	slurm_job_field(text, "TimeLimit", limit_text, sizeof limit_text);
	slurm_job_field(text, "RunTime", used_text, sizeof used_text);
	rc = slurm_time_left(limit_text, &limit, NULL);
	if (!rc)
		rc = slurm_time_left(used_text, &used, NULL) ? -ERR_DATA : 0;
	if (!rc)
		*seconds = limit - used;
	return rc;
}

static void apply_end_time(const char *text, struct alloc *alloc)
{
	int64_t left, end;
	int rc = slurm_job_time_left(text, &left);

	if (alloc->end_given)
		return;
	if (rc == 1) {
		alloc->end_time = 0;
		alloc_set_end_reason(alloc, "scontrol: the job has no time limit");
	} else if (rc && !alloc->end_time) {
		alloc_set_end_reason(alloc,
				     "SLURM_JOB_END_TIME is not set, and scontrol does not report "
				     "the time left ('%.40s')",
				     text);
	} else if (!rc) {
		end = (int64_t)time(NULL) + left;
		if (llabs((long long)(end - alloc->end_time)) < MOVED_S)
			return;
		alloc->end_time = end;
		alloc_set_end_reason(alloc, "scontrol: %lld s left", (long long)left);
	}
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

bool slurm_lacks_gpus(const struct env *env, const struct alloc *alloc)
{
	static const char *const names[] = {"SLURM_GPUS",	   "SLURM_JOB_GPUS",
					    "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK",
					    "SLURM_GPUS_ON_NODE",  "SLURM_GPUS_PER_SOCKET",
					    "SLURM_TRES_PER_TASK"};
	/* Of a heterogeneous job, the variables describe the first group. */
	bool unknown = false, any = alloc->this_node < 0 || alloc->groups;

	for (size_t i = 0; i < alloc->node_count; i++) {
		unknown |= alloc->nodes[i].gpus < 0;
		any |= alloc->nodes[i].gpus >= 0;
	}
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		any |= alloc_env(env, names[i]) != NULL;
	/* In a step the job's GPUs are not the step's. */
	return alloc->source == ALLOC_FROM_SLURM && unknown && any && !slurm_in_step(env);
}

/* ---- asking ---- */

static bool command(char **argv, const char *const *words)
{
	for (size_t i = 0; words[i]; i++)
		argv[i] = (char *)(uintptr_t)words[i];
	return true;
}

static bool ask_job(struct alloc_query *query, char **argv)
{
	return command(argv, (const char *const[]){"scontrol", "-d", "-o", "show", "job",
						   query->alloc->job_id, NULL});
}

/* The line of the job: a heterogeneous job has several. */
static char *own_record(const char *text, const char *job_id)
{
	char begin[80];

	snprintf(begin, sizeof begin, "JobId=%s ", job_id);
	for (size_t size; *text; text += size + (text[size] == '\n')) {
		size = strcspn(text, "\n");
		if (!strncmp(text, begin, strlen(begin)))
			return strndup(text, size);
	}
	return NULL;
}

static void take_job(struct alloc_query *query, enum scheduler_tool_result result,
		     struct scheduler_tool_output *output)
{
	struct alloc *alloc = query->alloc;
	bool unknown = false;

	if (result == SCHEDULER_TOOL_EXITED)
		query->job = own_record(output->text, alloc->job_id);
	for (size_t i = 0; i < alloc->node_count; i++)
		unknown |= alloc->nodes[i].gpus < 0;
	if (query->job) {
		apply_end_time(query->job, alloc);
		if (unknown && !slurm_in_step(query->env))
			slurm_job_gpus(output->text, alloc);
		return;
	}
	if (result == SCHEDULER_TOOL_UNAVAILABLE)
		snprintf(query->why, sizeof query->why, "scontrol cannot be started");
	else if (result == SCHEDULER_TOOL_TIMEOUT)
		snprintf(query->why, sizeof query->why, "scontrol did not answer within %d ms",
			 query->timeout_ms);
	else
		snprintf(query->why, sizeof query->why, "scontrol does not report the job: %s",
			 output->stderr_text[0] ? output->stderr_text : "its output is empty");
	if (!alloc->end_time && !alloc->end_given)
		alloc_set_end_reason(alloc, "SLURM_JOB_END_TIME is not set, and %s", query->why);
}

static bool ask_config(struct alloc_query *query, char **argv)
{
	return query->also & (ALLOC_QUERY_KILL_WAIT | ALLOC_QUERY_SCRIPT) &&
	       command(argv, (const char *const[]){"scontrol", "show", "config", NULL});
}

/* "KillWait                = 30 sec"; -1: unknown. */
int slurm_config_seconds(const char *config, const char *name)
{
	size_t length = strlen(name);
	int seconds;

	for (const char *at = config; at && *at; at = strchr(at, '\n')) {
		at += strspn(at, "\n");
		if (!strncmp(at, name, length) && sscanf(at + length, " = %d", &seconds) == 1 &&
		    seconds >= 0)
			return seconds;
	}
	return -1;
}

bool slurm_requeue_truncates(const struct env *env, const char *job, const char *config, char *out,
			     size_t size)
{
	/* sbatch sets the variable ("a" or "t") if --open-mode or SBATCH_OPEN_MODE selects a mode;
	 * otherwise the site's JobFileAppend does. */
	const char *mode = env_get(env, "SLURM_OPEN_MODE");
	static const char name[] = "\nJobFileAppend ";
	const char *at = job && config ? strstr(config, name) : NULL;
	char file[300];
	int append;

	if (!at || sscanf(at + sizeof name - 1, " = %d", &append) != 1)
		return false;
	slurm_job_field(job, "StdOut", file, sizeof file);
	snprintf(out, size,
		 "--requeue: Slurm will truncate %s when it requeues the job, so this output will "
		 "be lost. Add #SBATCH --open-mode=append to the job script",
		 file);
	return *file == '/' && strcmp(file, "/dev/null") != 0 && (mode ? *mode == 't' : !append);
}

static void take_config(struct alloc_query *query, enum scheduler_tool_result result,
			struct scheduler_tool_output *output)
{
	int seconds;

	if (result != SCHEDULER_TOOL_EXITED)
		return;
	query->limits = output->text;
	output->text = NULL;
	seconds = slurm_config_seconds(query->limits, "KillWait");
	if (seconds > 0 && seconds <= KILL_WAIT_MAX_S)
		query->kill_wait_ms = seconds * 1000;
}

static bool ask_script(struct alloc_query *query, char **argv)
{
	return query->also & ALLOC_QUERY_SCRIPT &&
	       command(argv, (const char *const[]){"scontrol", "write", "batch_script",
						   query->alloc->job_id, "-", NULL});
}

static void take_script(struct alloc_query *query, enum scheduler_tool_result result,
			struct scheduler_tool_output *output)
{
	if (result != SCHEDULER_TOOL_EXITED || output->code > 0 || !*output->text)
		return;
	query->script = output->text;
	output->text = NULL;
}

const struct alloc_query_step alloc_query_slurm[] = {{ask_job, take_job, JOB_MAX},
						     {ask_config, take_config, CONFIG_MAX},
						     {ask_script, take_script, SCRIPT_MAX},
						     {0}};
