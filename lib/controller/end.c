/* SPDX-License-Identifier: BSD-3-Clause */
/* What the end of a rank means: how strong a cause it is, and how the user reads it. core.c decides
 * which cause is the first. */
#include "controller/job_internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "process/child.h"
#include "process/supervise.h"

#define CANCELLED_MS 2000 /* for srun's line about a cancelled step, */
#define ALL_LOST_MS 10000 /* or if no agent is left, so that srun ends on a busy node, too */
#define OUTPUT_MAX 700

static enum job_cause cause_of(int number)
{
	switch (number) {
	case 0:
		return CAUSE_CODE;
	case SIGABRT:
	case SIGTERM:
	case SIGPIPE:
	case SIGHUP:
	case SIGINT:
		/* Programs end like this, too, if they lose a rank that was killed. See enum
		 * job_cause. */
		return CAUSE_RAISED;
	default:
		return CAUSE_SIGNAL;
	}
}

/* "was killed by signal 11 (Segmentation fault), core dumped" */
static void describe_end(const struct message_ended *ended, char *out, size_t size)
{
	if (ended->start_error)
		snprintf(out, size, "could not be started: %s", ended->start_error);
	else if (ended->signal)
		snprintf(out, size, "was killed by signal %d (%s)%s%s", ended->signal,
			 strsignal(ended->signal), ended->core ? ", core dumped" : "",
			 ended->oom == SUPERVISE_OOM_YES ? " by the kernel's out-of-memory killer"
			 : ended->oom == SUPERVISE_OOM_LIKELY
				 ? ", probably by the kernel's out-of-memory killer"
				 : "");
	else if (ended->code == ERR_STOPPED)
		snprintf(out, size, "saved its work and stopped early (code %d)", ended->code);
	else if (!ended->code)
		snprintf(out, size,
			 "ended, but it is a service that others use. A server that puts "
			 "itself into the background needs its option for the foreground");
	else
		snprintf(out, size, "exited with code %d%s", ended->code,
			 ended->oom ? ", and the kernel's out-of-memory killer has probably ended "
				      "a process of it"
				    : "");
}

/* Read what the program has written to BERTH_REPORT on its node; a later report overrides
 * earlier ones. */
static void read_report(struct job_result *result, const json_t *report)
{
	const struct {
		const char *name;
		char **target;
	} fields[] = {{"saved", &result->saved}, {"next", &result->next}};

	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
		const char *text = json_string_value(json_object_get(report, fields[i].name));

		if (!text)
			continue;
		free(*fields[i].target);
		*fields[i].target = strdup(text);
	}
}

/* The last line that a rank printed, without the "[rank1]: " of PyTorch. */
static const char *last_line(const json_t *lines)
{
	const char *line = json_string_value(json_array_get(lines, json_array_size(lines) - 1));
	const char *end = line && !strncmp(line, "[rank", 5) ? strstr(line, "]: ") : NULL;

	return end ? end + 3 : line ? line : "";
}

/* Name all ranks as the first cause if they have failed in the same way. how: as describe. */
static void count_alike(struct job *job, const json_t *last, const char *how)
{
	struct job_result *result = &job->result;
	const char *first = result->cause.text ? strstr(result->cause.text, how) : NULL;
	char *text;

	/* A missing module or a wrong option fails everywhere. One rank as the cause would send the
	 * reader to one node. */
	if (job->first.cause != CAUSE_CODE || !first || strcmp(first, how) != 0 ||
	    strcmp(last_line(last), last_line(result->cause.output_tail)) != 0 ||
	    ++job->first.alike < job->plan.world_size ||
	    asprintf(&text, "%d of %d ranks %s", job->first.alike, job->plan.world_size, how) < 0)
		return;
	free(result->cause.text);
	result->cause.text = text;
}

/* A service's ranks may not end by themselves, however well. */
static bool is_missed(const struct job *job)
{
	return job->request->role && job->request->role->service && !job->result.interrupted;
}

void job_handle_rank_ended(struct job *job, size_t node, const struct message *message)
{
	const struct message_ended *ended = &message->ended;
	const struct job_role *role = job->request->role;
	const char *iface = node < job->plan.node_count ? job->plan.nodes[node].iface : "";
	struct job_result *result = &job->result;
	char how[600], cause[800];
	const char *name = job_node_name(job, node);

	/* On one node, the ranks of a service use loopback, but its clients another network. */
	if (!*iface)
		iface = role && role->service && role->network ? role->network->iface
							       : job->plan.network.iface;
	json_array_append_new(result->ranks,
			      json_pack("{s:i, s:s, s:i, s:i, s:I, s:b, s:o}", "rank", ended->rank,
					"node", name, "code", ended->code, "signal", ended->signal,
					"peak_memory_bytes", (json_int_t)ended->peak_memory_bytes,
					"stopped", ended->stopped, "network", json_text(iface)));
	read_report(result, ended->said);
	for (size_t i = 0; i < job->part_count; i++)
		if (job->parts[i]->rank_ended)
			job->parts[i]->rank_ended(job, ended);
	/* berth's own cause names the rank, whose lines were not here yet. */
	if (ended->stopped && job->first.failed && result->cause.end < JOB_END_PROGRAM &&
	    !result->cause.output_tail && result->cause.rank == ended->rank)
		result->cause.output_tail = json_incref(ended->last);
	if (ended->stopped || (!ended->code && !is_missed(job)))
		return;
	if (job->first.failed && result->cause.rank == ended->rank)
		return; /* the rank already reported the reason when it called abort */
	enum job_cause kind = !ended->signal && ended->code == ERR_STOPPED ? CAUSE_STOPPED
			      : !job->stop_begun_ms			   ? cause_of(ended->signal)
			      : stop_is_crash(ended->signal, result->interrupted) ? CAUSE_SIGNAL
										  : CAUSE_CODE;

	describe_end(ended, how, sizeof how);
	if (!job_is_first_cause(job, kind, ended->code, (long)node)) {
		count_alike(job, ended->last, how);
		return;
	}
	job->first.alike = 1;
	/* A program that could not be executed has no exit code of its own. */
	if (ended->start_error)
		result->code = ended->code == CHILD_NOT_FOUND ? ERR_INPUT : ERR_UNAVAILABLE;
	else if (!ended->code)
		result->code = ERR_UNAVAILABLE;
	else
		/* A shell gives that code when its command was killed. */
		result->cause.end = ended->oom && (ended->signal || ended->code == 128 + SIGKILL)
					    ? JOB_END_OOM
					    : JOB_END_PROGRAM;
	snprintf(cause, sizeof cause, "rank %d on %s %s%s", ended->rank, name, how,
		 result->interrupted ? ", after berth run forwarded a stop signal to it" : "");
	result->cause.rank = ended->rank;
	result->cause.signal = ended->signal;
	result->cause.text = strdup(cause);
	result->cause.output_tail = json_incref(ended->last);
	result->cause.traceback = json_incref(ended->traceback);
	job_settle(job);
}

void job_handle_abort(struct job *job, size_t node, const struct message *message)
{
	const struct message_abort *abort = &message->abort;
	const char *why = abort->text;
	char cause[800];

	if (!job_is_first_cause(job, CAUSE_CODE,
				abort->status & 255 ? (int)(abort->status & 255) : 1, (long)node))
		return;
	snprintf(cause, sizeof cause, "rank %d on %s called abort with code %lld%s%.400s",
		 abort->rank, job_node_name(job, node), (long long)abort->status,
		 why && *why ? ": " : "", why ? why : "");
	job->result.cause.end = JOB_END_PROGRAM;
	job->result.cause.rank = abort->rank;
	job->result.cause.text = strdup(cause);
	job_settle(job);
}

/* May the agents be gone because their job step was cancelled? *line, of output: the launcher's
 * word that it was. */
static bool may_be_cancelled(const struct job *job, bool *all_lost, char output[OUTPUT_MAX],
			     const char **line, size_t *size)
{
	const struct launcher *launcher = job->request->launch->launcher;
	const struct job_result *result = &job->result;
	bool came = false;

	*all_lost = true;
	for (size_t i = 0; i < job->node_count; i++) {
		*all_lost &= result->lost[i];
		came |= result->lost[i] && controller_tmpdir(job->controller, i)[0];
	}
	/* An agent may still report that its rank was killed before it is killed itself. */
	if (!came || !(result->cause.end == JOB_END_NODE || result->cause.signal == SIGKILL) ||
	    result->interrupted || !launcher->cancelled)
		return false;
	controller_launcher_output(job->controller, output, OUTPUT_MAX);
	*line = launcher->cancelled(output, size);
	return true;
}

bool job_awaits_cancelled(struct job *job)
{
	char output[OUTPUT_MAX];
	const char *line;
	bool all_lost;
	size_t size;

	if (!may_be_cancelled(job, &all_lost, output, &line, &size) || line ||
	    controller_launcher_ended(job->controller))
		return false;
	/* Slurm need not have killed the agents of all nodes yet. */
	if (!job->cancelled_due_ms)
		job->cancelled_due_ms = clock_now_ms() + (all_lost ? ALL_LOST_MS : CANCELLED_MS);
	return clock_now_ms() < job->cancelled_due_ms;
}

void job_find_cancelled(struct job *job)
{
	struct job_result *result = &job->result;
	char output[OUTPUT_MAX], text[OUTPUT_MAX + 80];
	const char *line = NULL;
	size_t size = 0;
	bool all_lost;

	if (!may_be_cancelled(job, &all_lost, output, &line, &size) || !line)
		return;
	snprintf(text, sizeof text, "the agents' job step was cancelled (scancel): %.*s", (int)size,
		 line);
	job_clear_cause(&result->cause);
	result->cause.text = strdup(text);
	result->code = 128 + SIGTERM;
	result->cause.end = JOB_END_CANCELLED;
}

const char *job_result_by(const struct job_result *result)
{
	return result->cause.end >= JOB_END_PROGRAM || !result->code ? "program" : "berth";
}

json_t *job_report(const struct job_result *result)
{
	return json_pack("{s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:O?, s:o, s:i, s:O?, s:O?, "
			 "s:O?, s:o, s:o, s:O*, s:O*}",
			 "schema", "berth.run/1", "by", job_result_by(result), "code", result->code,
			 "signal", result->cause.signal, "rank",
			 result->cause.rank >= 0 ? json_integer(result->cause.rank) : json_null(),
			 "node", json_text(result->cause.node), "first_cause",
			 json_text(result->cause.text), "last_lines", result->cause.output_tail,
			 "saved", json_text(result->saved), "attempt", result->attempt, "ranks",
			 result->ranks, "attempts", result->attempts, "left_out",
			 result->excluded_nodes, "not_restarted",
			 json_text(result->no_restart_reason), "stacks", json_text(result->stacks),
			 "roles", result->roles, "role",
			 json_object_get(json_array_get(result->roles, result->role), "role"));
}

bool job_result_exception(const struct job_result *result, struct explain_exception *out)
{
	return result->cause.end >= JOB_END_PROGRAM && result->code != ERR_STOPPED &&
	       !result->cause.signal &&
	       explain_exception(result->cause.traceback ? result->cause.traceback
							 : result->cause.output_tail,
				 out);
}

void job_result_free(struct job_result *result)
{
	if (!result)
		return;
	free(result->cause.node);
	free(result->cause.text);
	free(result->unkilled);
	free(result->saved);
	free(result->next);
	json_decref(result->cause.output_tail);
	json_decref(result->cause.traceback);
	json_decref(result->ranks);
	json_decref(result->roles);
	json_decref(result->attempts);
	json_decref(result->excluded_nodes);
	free(result->lost);
	free(result->no_restart_reason);
	free(result->stacks);
	memset(result, 0, sizeof *result);
}
