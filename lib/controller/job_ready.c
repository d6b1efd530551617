/* SPDX-License-Identifier: BSD-3-Clause */
/* When a role's program can be used: its first node's agent asks it, again and again, until the
 * role is ready or late. */
#include <stdlib.h>
#include <string.h>

#include "controller/job_internal.h"
#include "overlay/messages.h"

#define FIRST_PAUSE_MS 50 /* doubled each time; a server of Python needs a second */
#define MOST_PAUSE_MS 1000

struct job_ready_state {
	struct job *job;
	struct loop_timer ask, late;
	int pause_ms;
	bool ready;
	char why[400]; /* not yet: the last answer */
};

static const struct job_ready *wanted(const struct job *job)
{
	return job->request->role ? job->request->role->ready : NULL;
}

bool job_is_ready(const struct job *job)
{
	return job_has_started(job) && (!wanted(job) || job->ready->ready);
}

int job_ready_port(const struct job *job)
{
	const struct job_ready *ready = wanted(job);

	if (!ready || !ready->place)
		return 0;
	return ready->of_block ? job_first_port(job) + ready->port
	       : ready->port   ? ready->port
			       : job->plan.port;
}

static void on_ask(struct loop_timer *timer)
{
	struct job *job = LOOP_OWNER(timer, struct job_ready_state, ask)->job;
	const struct job_ready *ready = wanted(job);
	long node = job_node_of_rank(job, 0);
	bool listen = job_waits_for_listener(job), place = ready->place;

	if (job->phase != JOB_PHASE_RUN || node < 0 || !job->nodes[node].started ||
	    (!listen && !job_has_started(job)))
		return;
	if (!job->ready->late.due_ms)
		loop_timer_after(job->loop, &job->ready->late, ready->timeout_ms);
	/* A file or a command means that the program can be used, so it has to listen at the first
	 * port of --ports, if there are any. */
	controller_send(job->controller, MESSAGE_ASK_READY, (uint32_t)node, 0, 0,
			&(struct message_ask_ready){
				listen ? "listen" : ready->kind,
				*ready->host	  ? ready->host
				: listen || place ? job->request->role->network->address
						  : "",
				place ? job_ready_port(job) : job_first_port(job), ready->path},
			NULL, 0, NULL);
}

static void on_late(struct loop_timer *timer)
{
	struct job_ready_state *state = LOOP_OWNER(timer, struct job_ready_state, late);
	struct job *job = state->job;
	const struct job_ready *ready = wanted(job);

	if (job->phase == JOB_PHASE_RUN &&
	    job_fail(job, ERR_UNAVAILABLE, job_node_of_rank(job, 0),
		     "it was not ready within %d s (--ready-timeout); %s: %.300s",
		     ready->timeout_ms / 1000, ready->text, *state->why ? state->why : "no answer"))
		job->result.cause.rank = 0; /* whose last lines may tell more */
}

static void handle_started(struct job *job, size_t node, const struct message *message)
{
	/* The core counts this node after the parts have seen the message. */
	if (wanted(job) && !job->ready->ready)
		loop_timer_after(job->loop, &job->ready->ask, 0);
}

static void handle_ready(struct job *job, size_t node, const struct message *message)
{
	struct job_ready_state *state = job->ready;

	if (job->phase != JOB_PHASE_RUN)
		return;
	if (message->ready.ready && job_waits_for_listener(job)) {
		job->listens = true;
		state->pause_ms = FIRST_PAUSE_MS;
		loop_timer_after(job->loop, &state->ask, 0);
		job_continue(job, JOB_STEP_OTHERS);
		return;
	}
	if (message->ready.ready) {
		state->ready = true;
		loop_timer_stop(&state->late);
		return;
	}
	snprintf(state->why, sizeof state->why, "%s", message->ready.text);
	loop_timer_after(job->loop, &state->ask, state->pause_ms);
	state->pause_ms = state->pause_ms * 2 < MOST_PAUSE_MS ? state->pause_ms * 2 : MOST_PAUSE_MS;
}

static int open_ready(struct job *job, struct error *err)
{
	job->ready = malloc(sizeof *job->ready);
	if (!job->ready)
		return error_memory(err, "a role");
	*job->ready = (struct job_ready_state){
		.job = job, .ask.due = on_ask, .late.due = on_late, .pause_ms = FIRST_PAUSE_MS};
	return 0;
}

static void close_ready(struct job *job)
{
	loop_timer_stop(&job->ready->ask);
	loop_timer_stop(&job->ready->late);
	free(job->ready);
}

const struct job_part job_ready_part = {
	.open = open_ready,
	.handlers =
		(const struct job_handler[]){
			{MESSAGE_STARTED, handle_started},
			{MESSAGE_READY, handle_ready},
			{0},
		},
	.close = close_ready,
};
