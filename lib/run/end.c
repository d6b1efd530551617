/* SPDX-License-Identifier: BSD-3-Clause */
/* Why a job has ended: found and reported. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/pbs.h"
#include "alloc/scheduler_tool.h"
#include "alloc/slurm.h"
#include "base/json.h"
#include "explain/explain.h"
#include "run/run.h"

#define QUERY_MS 2000
#define ANSWER_MAX (1 << 20)
/* How early a signal may be and still mean the time limit. The user or Slurm's --signal may warn
 * the job; Slurm is up to 60 s early then. */
#define EARLY_S 90
/* PBS sends nothing before the limit, so this is for clocks that differ. The same if Slurm does not
 * answer: a job that its user has deleted must not be requeued. */
#define EXACT_S 3

/* Ask Slurm why the job received a signal or lost a node. Return the kind of its end,
 * RUN_END_ENDED if the job simply runs, or -1 if Slurm does not answer. *left_ms: the time left as
 * known so far; updated. */
static int query_slurm(const struct run_setup *setup, int64_t *left_ms)
{
	char *const argv[] = {(char *)"scontrol", (char *)"-o",	       (char *)"show",
			      (char *)"job",	  setup->alloc.job_id, NULL};
	struct scheduler_tool_output answer;
	char state[40], preempt[40], restarts[40];
	int64_t left;

	if (scheduler_tool_run(argv, setup->env, QUERY_MS, ANSWER_MAX, &answer) !=
	    SCHEDULER_TOOL_EXITED)
		return -1;
	slurm_job_field(answer.text, "JobState", state, sizeof state);
	slurm_job_field(answer.text, "PreemptTime", preempt, sizeof preempt);
	slurm_job_field(answer.text, "Restarts", restarts, sizeof restarts);
	/* Slurm counts at once. The job's times are then those of its next start. */
	if (atoi(restarts) <= setup->alloc.restarts && !slurm_job_time_left(answer.text, &left))
		*left_ms = left * 1000;
	free(answer.text);
	if (atoi(restarts) > setup->alloc.restarts)
		return RUN_END_REQUEUED;
	if (!strncmp(state, "CANCELLED", 9))
		return RUN_END_CANCELLED;
	if (!strncmp(state, "PREEMPTED", 9) || (preempt[0] >= '0' && preempt[0] <= '9'))
		return RUN_END_PREEMPTED;
	if (!strncmp(state, "TIMEOUT", 7))
		return RUN_END_WALLTIME;
	/* While Slurm waits for the ranks, it shows only this. It never enforces the limit early.
	 */
	if (!strncmp(state, "COMPLETING", 10))
		return *left_ms > 0 ? RUN_END_CANCELLED : RUN_END_WALLTIME;
	return *state ? RUN_END_ENDED : -1;
}

/* The kind of end that OpenPBS reports, or RUN_END_ENDED. After qdel the comment is "Job run at ...
 * and terminated by USER@HOST", and after qdel -W force the server does not know the job. Substates
 * 60 to 63 are those of qrerun. */
static enum run_end_kind query_pbs(const struct run_setup *setup)
{
	char path[600], why[400];
	char *argv[] = {path,		(char *)"-f",	     (char *)"-F",
			(char *)"json", setup->alloc.job_id, NULL};
	struct scheduler_tool_output answer;

	if (pbs_find_tool(setup->env, "qstat", path, sizeof path) ||
	    scheduler_tool_run(argv, setup->env, QUERY_MS, ANSWER_MAX, &answer) !=
		    SCHEDULER_TOOL_EXITED)
		return RUN_END_ENDED;
	JSON_AUTO job = pbs_attributes(answer.text, setup->alloc.job_id, why, sizeof why);
	const char *comment = json_string_value(json_object_get(job, "comment"));
	json_int_t substate = json_integer_value(json_object_get(job, "substate"));

	free(answer.text);
	if (job ? comment && strstr(comment, "terminated by")
		: strstr(answer.stderr_text, " Job ") != NULL)
		return RUN_END_CANCELLED;
	return substate >= 60 && substate <= 63 ? RUN_END_REQUEUED : RUN_END_ENDED;
}

static enum run_end_kind kind_of_signal(const struct run_setup *setup, int64_t *left_ms)
{
	int64_t given_ms = *left_ms;
	int early_s = EARLY_S, kind = RUN_END_ENDED;

	if (setup->alloc.source == ALLOC_FROM_SLURM) {
		kind = query_slurm(setup, left_ms);
		if (setup->alloc.end_given)
			*left_ms = given_ms;
		early_s = kind < 0 ? EXACT_S : EARLY_S;
	} else if (setup->alloc.source == ALLOC_FROM_PBS) {
		kind = query_pbs(setup);
		early_s = EXACT_S;
	}
	if (kind > RUN_END_ENDED)
		return kind;
	return *left_ms < early_s * 1000 ? RUN_END_WALLTIME : RUN_END_INTERRUPTED;
}

/* Agents also end while Slurm ends a job that it has requeued. otherwise: what it is if not. */
static enum run_end_kind kind_of_loss(const struct run_setup *setup, enum run_end_kind otherwise,
				      int64_t *left_ms)
{
	int kind = setup->alloc.source == ALLOC_FROM_SLURM ? query_slurm(setup, left_ms) : -1;

	return kind == RUN_END_REQUEUED || kind == RUN_END_PREEMPTED ? (enum run_end_kind)kind
								     : otherwise;
}

static void describe_cause(const struct job_result *result, enum run_end_kind kind, int64_t left_ms,
			   bool own_program, char *why, size_t size)
{
	const char *name = strsignal(result->interrupted);
	long left = left_ms == INT64_MAX ? 0 : (long)(left_ms / 1000);

	if (kind == RUN_END_PREEMPTED)
		snprintf(why, size, "Slurm preempted the job: another job now has its nodes%s%s%s",
			 result->interrupted ? " (received signal: " : "",
			 result->interrupted ? name : "", result->interrupted ? ")" : "");
	else if (kind == RUN_END_REQUEUED)
		snprintf(why, size,
			 "the scheduler has requeued the job: it was preempted, one of its nodes "
			 "failed, or someone called scontrol requeue or qrerun");
	else if (kind == RUN_END_WALLTIME && result->interrupted)
		snprintf(why, size,
			 "the job reached its time limit: the scheduler sent %s %ld s %s the end "
			 "time",
			 name, labs(left), left < 0 ? "after" : "before");
	else if (kind == RUN_END_CANCELLED && result->interrupted)
		snprintf(why, size, "the job was cancelled (received signal: %s)", name);
	else if (kind == RUN_END_INTERRUPTED)
		snprintf(why, size, "berth received a signal from %s: %s",
			 result->sender[0] ? result->sender : "the user or the scheduler", name);
	else if (result->user_signal &&
		 (kind == RUN_END_STOPPED || result->cause.signal == result->user_signal))
		snprintf(why, size,
			 "berth received SIG%s (from the user, scancel --signal or #SBATCH "
			 "--signal) and forwarded it to the ranks",
			 error_signal_name(result->user_signal));
	else if (kind == RUN_END_STOPPED && result->warned)
		snprintf(why, size,
			 "the job's time limit is near, so berth asked the ranks to save");
	else if (kind == RUN_END_OOM)
		snprintf(
			why, size,
			"the job ran out of memory: request more, or use less (%s, fewer ranks per "
			"node)",
			own_program ? "smaller --batch, fewer --workers"
				    : "smaller batches, fewer data loader workers");
}

static const struct explain_row *find_known_failure(const json_t *output_tail)
{
	const struct explain_row *known = NULL;
	bool in_child = false;

	for (size_t i = 0; i < json_array_size(output_tail); i++)
		in_child |= explain_is_child(json_string_value(json_array_get(output_tail, i)));
	for (size_t i = 0; !known && i < json_array_size(output_tail); i++)
		known = explain_line(json_string_value(json_array_get(output_tail, i)), in_child);
	return known;
}

/* The failed rank has lost another one, which had not failed: name that one. */
static void name_ended(const struct job_result *result, char *why, size_t size)
{
	size_t i;
	json_t *it;

	json_array_foreach(result->ranks, i, it)
	{
		int rank = (int)json_integer_value(json_object_get(it, "rank"));
		int code = (int)json_integer_value(json_object_get(it, "code"));

		if (rank == result->cause.rank)
			return;
		if (json_integer_value(json_object_get(it, "signal")) ||
		    (code && code != ERR_STOPPED))
			continue;
		snprintf(why, size, "rank %d on %s had ended before, with code %d", rank,
			 json_string_value(json_object_get(it, "node")), code);
		return;
	}
}

void run_end_find(const struct run_setup *setup, const struct job_result *result,
		  struct run_end *out)
{
	int64_t left_ms = result->time_left_known ? result->time_left_ms : INT64_MAX;

	*out = (struct run_end){.kind = RUN_END_ENDED};
	if (!result->code)
		return;
	if (result->code != ERR_STOPPED)
		out->known = find_known_failure(result->cause.output_tail);
	job_result_exception(result, &out->exception);
	if (result->interrupted && setup->alloc.source)
		out->kind = kind_of_signal(setup, &left_ms);
	else if (result->cause.end == JOB_END_CANCELLED)
		out->kind = kind_of_loss(setup, RUN_END_CANCELLED, &left_ms);
	else if (result->code == ERR_STOPPED)
		out->kind = RUN_END_STOPPED;
	else if (result->cause.end == JOB_END_NODE)
		out->kind = kind_of_loss(setup, RUN_END_NODE, &left_ms);
	else if (result->cause.end == JOB_END_OOM)
		out->kind = RUN_END_OOM;
	else if (result->cause.end == JOB_END_BERTH)
		out->kind = RUN_END_BERTH;
	else
		out->kind = result->cause.signal ? RUN_END_SIGNAL : RUN_END_CODE;
	describe_cause(result, out->kind, left_ms, setup->request->own_program, out->why,
		       sizeof out->why);
	if (out->known && out->known->of_other && !out->why[0] && !result->roles)
		name_ended(result, out->why, sizeof out->why);
	if (out->kind == RUN_END_REQUEUED)
		snprintf(out->next, sizeof out->next,
			 "nothing to do: the scheduler will start the job again");
	else if (result->next)
		snprintf(out->next, sizeof out->next, "%s", result->next);
	else if (result->code == ERR_STOPPED)
		snprintf(out->next, sizeof out->next,
			 "submit the job again: it resumes from the checkpoint");
}

/* ---- the report ---- */

/* The job's program and container, and those of roles. Ray's own programs are not the user's. */
static void add_programs(json_t *report, const struct run_setup *setup)
{
	const struct run_request *request = setup->request;
	json_t *roles = json_object_get(report, "roles");

	json_object_set_new(report, "program", json_texts(setup->request->program));
	if (request->job.container.image)
		json_object_set_new(report, "container",
				    container_to_json(&request->job.container, setup->env));
	for (size_t i = 0; i < request->role_count; i++) {
		const struct role *role = &request->roles[i];

		if (!request->ray)
			json_object_set_new(json_array_get(roles, i), "program",
					    json_texts(role->argv));
		if (role->container.image)
			json_object_set_new(json_array_get(roles, i), "container",
					    container_to_json(&role->container, setup->env));
	}
}

/* Advice for the report only: the messages on the terminal already show what it names. */
static const char *where_to_look(const struct job_result *result)
{
	if (!result->code)
		return NULL;
	if (result->stacks)
		return "see first_cause, and stacks for where each rank was";
	if (result->cause.end >= JOB_END_PROGRAM)
		return "see last_lines, and the rank's log if --log-dir was given";
	return result->code == ERR_NETWORK ? "run again; if the same node fails again, exclude it "
					     "from the job"
					   : "see first_cause";
}

int run_end_report(const struct run_setup *setup, const struct job_result *result,
		   const struct run_end *end, int timeout_ms, struct error *err)
{
	const char *path = setup->report;
	JSON_AUTO report = NULL;
	char *text;
	int rc;

	if (!path || setup->bad_report)
		return 0;
	report = job_report(result);
	if (report) {
		json_object_set_new(report, "version", json_string(BERTH_VERSION));
		add_programs(report, setup);
		json_object_set_new(report, "kind", json_string(run_end_names[end->kind]));
		json_object_set_new(report, "why", json_text(end->why[0] ? end->why : NULL));
		json_object_set_new(report, "known", explain_row_json(end->known));
		json_object_set_new(report, "exception",
				    end->exception.line
					    ? json_pack("{s:o, s:o, s:i}", "text",
							json_text(end->exception.text), "file",
							json_text(end->exception.file), "line",
							end->exception.line)
					    : json_null());
		json_object_set_new(report, "next",
				    json_text(end->next[0] ? end->next : where_to_look(result)));
	}
	text = report ? json_dumps(report, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
	if (!text)
		return error_memory(err, "the report");
	size_t length = strlen(text);

	text[length] = '\n'; /* ends the last line; replaces the terminating NUL */
	rc = run_write_bounded(path, text, length + 1, timeout_ms, err);
	free(text);
	return rc;
}
