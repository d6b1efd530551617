/* SPDX-License-Identifier: BSD-3-Clause */
/* What the parts of a job and its handlers call: notes, messages to the ranks, the first cause, the
 * end. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ports.h"
#include "alloc/query.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/job_internal.h"
#include "process/supervise.h"

#define SETTLE_MS 250	   /* see enum job_cause */
#define SETTLE_MAX_MS 5000 /* for agents on busy nodes */
#define NEVER_MS (INT64_MAX / 2)
#define END_MS (SUPERVISE_GRACE_MS + SUPERVISE_KILL_MS + 3000) /* from STOP to the last DONE */

void job_note(const struct job_sink *sink, enum log_level level, const char *format, ...)
{
	char text[1400];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	log_info(LOG_CONTROLLER, "%s", text);
	sink->note(sink->context, level, text);
}

static void drop_note(void *context, enum log_level level, const char *text)
{
	(void)context;
	(void)level;
	(void)text;
}

const struct job_sink *job_common_sink(const struct job *job)
{
	static const struct job_sink silent = {.note = drop_note};

	return job->request->role && job->request->role->quiet ? &silent : job->sink;
}

const char *job_node_name(const struct job *job, size_t node)
{
	return job->request->launch->alloc->nodes[node].name;
}

long job_node_of_rank(const struct job *job, int64_t rank)
{
	for (size_t i = 0; i < job->plan.node_count; i++) {
		const struct plan_node *node = &job->plan.nodes[i];

		if (node->rank_count && rank >= node->ranks[0].rank &&
		    rank < node->ranks[0].rank + (int64_t)node->rank_count)
			return (long)i;
	}
	return -1;
}

int job_attempt(const struct job_request *request)
{
	const struct alloc *alloc =
		request->calls.query ? request->calls.query->alloc : request->launch->alloc;

	return request->plan.attempt + alloc->restarts * (request->plan.max_restarts + 1);
}

enum agent_job_stdin job_input_kind(const struct job_request *request)
{
	if (request->driver)
		return AGENT_JOB_STDIN_ALL;
	if (!request->pass_stdin)
		return AGENT_JOB_STDIN_NONE;
	if (isatty(STDIN_FILENO))
		return request->pty ? AGENT_JOB_STDIN_PTY : AGENT_JOB_STDIN_TERMINAL;
	return request->launch->launcher->shape == LAUNCH_HERE ? AGENT_JOB_STDIN_INHERIT
							       : AGENT_JOB_STDIN_FIRST;
}

bool job_waits_for_listener(const struct job *job)
{
	const struct job_role *role = job->request->role;

	return role && role->ready && role->ready->staged && !job->listens;
}

bool job_node_is_due(const struct job *job, size_t node)
{
	return !job_waits_for_listener(job) || (long)node == job_node_of_rank(job, 0);
}

void job_enter(struct job *job, enum job_phase phase)
{
	static const char *const names[] = {"queue", "launch", "inventories", "probe",
					    "claim", "run",    "end",	      "over"};
	int64_t now = clock_now_ms();

	if (job->phase == phase)
		return;
	log_info(LOG_CONTROLLER, "job state: %s, was %s", names[phase], names[job->phase]);
	job->times.phase_ms[job->phase] = now - job->times.phase_begin_ms;
	job->times.phase_begin_ms = now;
	job->phase = phase;
}

void job_continue(struct job *job, enum job_step next)
{
	job->next = next;
	job->times.next_ms = clock_now_ms();
}

void job_set_deadline(struct job *job, int64_t ms)
{
	loop_timer_after(job->loop, &job->deadline, ms);
}

void job_signal_ranks(struct job *job, int number, const char *why)
{
	const struct job_role *role = job->request->role;

	/* What saves its work may need a service for that: it serves until the others have ended.
	 */
	if (role && role->service && number != SIGSTOP && number != SIGCONT)
		number = 0;
	log_info(LOG_CONTROLLER, "to all ranks: signal %d, stop file: %s", number,
		 why ? why : "none");
	controller_send(job->controller, MESSAGE_SIGNAL, WIRE_ALL, 0, 0,
			&(struct message_signal){number, why}, NULL, 0, NULL);
}

int job_write_stdin(struct job *job, long node, const void *data, size_t size, struct error *err)
{
	return controller_send(job->controller, MESSAGE_STDIN, node < 0 ? WIRE_ALL : (uint32_t)node,
			       (uint32_t)job->plan.attempt, 0, NULL, data, size, err);
}

int job_port_block(const struct job *job)
{
	int block = 0;

	while (!(job->blocks >> block & 1) && block < AGENT_PORTS_BLOCKS - 1)
		block++;
	return block;
}

int job_first_port(const struct job *job)
{
	return job->request->launch->ports
		       ? controller_first_port(job->controller, job_port_block(job))
		       : 0;
}

void job_ports(const struct job *job, char *out, size_t size)
{
	int count = job->request->launch->ports, first = job_first_port(job);

	*out = '\0';
	if (count)
		snprintf(out, size, count > 1 ? "%d-%d" : "%d", first, first + count - 1);
}

void job_record_time_left(struct job *job)
{
	job->result.time_left_known = job->end_ms != 0;
	job->result.time_left_ms = job->end_ms - clock_now_ms();
}

/* ---- the first cause ---- */

void job_request_end(struct job *job, int grace_ms)
{
	int64_t deadline = loop_now_ms(job->loop) + grace_ms + END_MS - SUPERVISE_GRACE_MS;

	log_info(LOG_CONTROLLER, "ending the ranks, SIGKILL after %d ms: %s", grace_ms,
		 job->result.cause.text ? job->result.cause.text : "a second signal");
	loop_timer_stop(&job->first.settle);
	if (job->phase == JOB_PHASE_OVER)
		return;
	/* Before JOB was sent, only the agents have to be ended. */
	if (job->phase < JOB_PHASE_RUN) {
		job_enter(job, JOB_PHASE_OVER);
		return;
	}
	if (job->phase != JOB_PHASE_END || deadline < job->deadline.due_ms)
		loop_timer_set(job->loop, &job->deadline, deadline);
	job_enter(job, JOB_PHASE_END);
	controller_send(job->controller, MESSAGE_STOP, WIRE_ALL, 0, 0,
			&(struct message_stop){grace_ms}, NULL, 0, NULL);
}

void job_settle(struct job *job)
{
	if (job->first.settle.due_ms && job->first.cause >= CAUSE_SIGNAL && !job->stop_begun_ms)
		job_request_end(job, SUPERVISE_GRACE_MS);
}

void job_clear_cause(struct job_first_cause *cause)
{
	free(cause->node);
	free(cause->text);
	json_decref(cause->output_tail);
	json_decref(cause->traceback);
	*cause = (struct job_first_cause){.rank = -1, .node_index = -1};
}

int job_stop_grace_ms(const struct job *job)
{
	return job->request->end.stop_grace_ms ? job->request->end.stop_grace_ms
					       : JOB_STOP_GRACE_MS;
}

/* Wait for stronger causes. On a busy node an agent may not know yet that a rank has ended, so ask
 * all agents. */
static void begin_settling(struct job *job, enum job_cause cause)
{
	if (job->stop_begun_ms) {
		loop_timer_set(job->loop, &job->first.settle, NEVER_MS);
	} else if (cause == CAUSE_STOPPED) {
		loop_timer_after(job->loop, &job->first.settle, job_stop_grace_ms(job));
	} else {
		job->first.settled_ms = loop_now_ms(job->loop) + SETTLE_MS;
		loop_timer_after(job->loop, &job->first.settle, SETTLE_MAX_MS);
		if (job->phase >= JOB_PHASE_RUN)
			controller_send(job->controller, MESSAGE_SETTLE, WIRE_ALL, 0, 0, NULL, NULL,
					0, NULL);
	}
}

void job_check_settled(struct job *job)
{
	for (size_t i = 0; i < job->node_count; i++)
		if (!job->nodes[i].settled && !job->nodes[i].done)
			return;
	if (job->first.settle.due_ms)
		loop_timer_set(job->loop, &job->first.settle, job->first.settled_ms);
}

void job_stop_begins(struct job *job)
{
	job->stop_begun_ms = loop_now_ms(job->loop);
	/* The stop gives ranks that have not saved yet the same time. */
	if (job->first.settle.due_ms && job->first.cause == CAUSE_STOPPED)
		loop_timer_set(job->loop, &job->first.settle, NEVER_MS);
}

/* Return true if this is the first cause, or if it explains the one recorded so far. The caller
 * then fills in the rest of result. */
bool job_is_first_cause(struct job *job, enum job_cause cause, int code, long node)
{
	/* All ranks have time to save, so only a crash is more than what came before it. */
	if (job->stop_begun_ms && job->first.cause >= CAUSE_SIGNAL)
		cause = CAUSE_CODE;
	if (job->first.failed && (!job->first.settle.due_ms || cause <= job->first.cause))
		return false;
	if (job->first.failed)
		job_clear_cause(&job->result.cause);
	if (!job->first.failed || job->first.cause == CAUSE_STOPPED)
		begin_settling(job, cause);
	job->first.failed = true;
	job->first.cause = cause;
	job->result.code = code;
	job->result.cause.node_index = node;
	if (node >= 0)
		job->result.cause.node = strdup(job_node_name(job, (size_t)node));
	return true;
}

bool job_fail(struct job *job, int code, long node, const char *format, ...)
{
	char text[1200];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	if (!job_is_first_cause(job, CAUSE_BERTH, code, node)) {
		job_note(job->sink, LOG_DEBUG, "after the first failure: %s", text);
		return false;
	}
	job->result.cause.text = strdup(text);
	job_settle(job);
	return true;
}

bool job_has_failed(const struct job *job)
{
	return job->first.failed;
}

bool job_lost_port(const struct job *job)
{
	return job->port_taken;
}

const char *job_first_cause(const struct job *job)
{
	return job->result.cause.text ? job->result.cause.text : "it has failed";
}

bool job_has_finished(const struct job *job)
{
	return job->planned && !job->first.failed &&
	       json_array_size(job->result.ranks) >= (size_t)job->plan.world_size;
}

int64_t job_silent_ms(const struct job *job)
{
	return job->hang.ranks ? loop_now_ms(job->loop) - job->hang.active_ms : 0;
}

bool job_has_stopped(const struct job *job)
{
	return job->first.failed && job->first.cause == CAUSE_STOPPED;
}

bool job_is_interrupted(const struct job *job)
{
	return job->result.interrupted != 0;
}

bool job_has_started(const struct job *job)
{
	return job->times.started_ms != 0;
}
