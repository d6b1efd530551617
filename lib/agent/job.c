/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/job.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "agent/job_internal.h"
#include "agent/proto.h"
#include "agent/supervise.h"
#include "base/json.h"

#define TICK_MS 1000
#define AGENTS_MS 3000 /* from the goodbye to the agents' own end */
#define SAME_SIGNAL_MS 2000

/* ---- what agents say ---- */

static void check_over(struct job *job)
{
	size_t waiting = 0;

	for (size_t i = 0; i < job->node_count; i++)
		waiting += !job->nodes[i].done && !head_is_lost(job->head, i);
	if (!waiting)
		job->phase = PHASE_OVER;
}

static void start_ranks(struct job *job)
{
	struct error err = {0};

	if (job_plan(job, &err) || job_send_start(job, &err)) {
		job->error = err;
		job_fail(job, err.code, -1, "%s", err.text);
	}
}

/* Once the tree stands and every card is here. A node that has moved sends its card through its parent,
 * and that may come before its last words on the old connection: what was sent to it by now would go
 * there, unread. */
static void all_there(struct job *job)
{
	struct error err = {0};

	if (job->phase != PHASE_CARDS || job->carded < job->node_count)
		return;
	if (job->node_count == 1 || job->request->any_head) {
		start_ranks(job);
	} else if (job_ask_reach(job, &err)) {
		job->error = err;
		job_fail(job, err.code, -1, "%s", err.text);
	}
}

static void take_card(struct job *job, size_t node, const json_t *text)
{
	struct error err = {0};
	json_t *card;
	int64_t port;

	if (job->phase > PHASE_CARDS || job->nodes[node].carded)
		return;
	if (json_get_object("CARD", text, "card", &card, &err) ||
	    json_get_int("CARD", text, "port", -1, 65535, &port, &err) ||
	    machine_from_json(card, &job->cards[node], &err)) {
		job_fail(job, err.code, (long)node, "the card of %s: %s",
			 job->request->alloc->nodes[node].name, err.text);
		return;
	}
	if (node == 0)
		job->port = (int)port;
	job->nodes[node].carded = true;
	job->carded++;
	all_there(job);
}

static void take_output(struct job *job, const struct wire_message *message)
{
	const unsigned char *at = message->data;
	size_t left = message->data_size;
	struct proto_output output;

	job_is_active(job);
	while (proto_take_output(&at, &left, &output, NULL) > 0)
		job->sink->output(job->sink->context, (int)output.rank,
				  output.stream == SUPERVISE_STDERR, output.text, output.size,
				  output.newline);
}

static void take_gather(struct job *job, const struct wire_message *message)
{
	struct gather *gather = gathers_get(&job->gathers, message->sequence);
	struct error err = {0};
	void *joined = NULL;
	size_t size;

	if (!gather) {
		error_memory(&err, "a collective");
	} else if (!gather_merge(gather, message->data, message->data_size, job->node_count,
				 &err) &&
		   gather->nodes >= job->gathering &&
		   !gather_join(gather, job->node_count, &joined, &size, &err)) {
		head_send(job->head, MESSAGE_GATHERED, WIRE_ALL, message->attempt,
			  message->sequence, NULL, joined, size, &err);
		gathers_drop(&job->gathers, gather);
	}
	free(joined);
	if (err.code)
		job_fail(job, err.code, (long)message->node, "%s", err.text);
}

/* What rank has published: asked of its node, or answered to the node that asked. */
static void pass_fetch(struct job *job, const struct wire_message *message, json_t *text)
{
	int64_t rank, to;

	if (message->type == MESSAGE_FETCHED) {
		if (!json_get_int("FETCHED", text, "to", 0, (int64_t)job->node_count - 1, &to,
				  NULL))
			head_send(job->head, MESSAGE_FETCHED, (uint32_t)to, message->attempt,
				  message->sequence, json_incref(text), message->data,
				  message->data_size, NULL);
		return;
	}
	if (json_get_int("FETCH", text, "rank", 0, INT32_MAX, &rank, NULL))
		return;
	for (size_t i = 0; i < job->plan.node_count; i++) {
		const struct plan_node *node = &job->plan.nodes[i];

		if (!node->rank_count || rank < node->ranks[0].rank ||
		    rank >= node->ranks[0].rank + (int64_t)node->rank_count)
			continue;
		head_send(job->head, MESSAGE_FETCH, (uint32_t)i, message->attempt,
			  message->sequence,
			  json_pack("{s:I, s:I}", "rank", (json_int_t)rank, "from",
				    (json_int_t)message->node),
			  NULL, 0, NULL);
		return;
	}
}

static void forward_signal(struct job *job, int number);

/* A scheduler that signals every task signals the head and all agents: that counts once. */
static bool is_the_same(const struct job *job, int number)
{
	return job->last_signal.signal == number &&
	       loop_now_ms() - job->last_signal.at_ms < SAME_SIGNAL_MS;
}

static void take_failed(struct job *job, size_t node, const json_t *text)
{
	const char *why = "its agent failed";
	int64_t code = ERR_INTERNAL;
	const char *name = job->request->alloc->nodes[node].name;

	json_get_string("FAILED", text, "text", &why, NULL);
	json_get_int("FAILED", text, "code", 1, 255, &code, NULL);
	job_fail(job, (int)code, (long)node, "%s: %s", name, why);
}

static void on_message(void *context, size_t node, const struct wire_message *message)
{
	struct job *job = context;
	JSON_AUTO text = NULL;
	struct error err = {0};
	const char *string;
	int64_t number;

	if (message->type == MESSAGE_OUTPUT) {
		take_output(job, message);
		return;
	}
	if (message->type == MESSAGE_GATHER) {
		take_gather(job, message);
		return;
	}
	if (message->text_size && proto_text(message, &text, &err)) {
		job_fail(job, err.code, (long)node, "%s: %s", job->request->alloc->nodes[node].name,
			 err.text);
		return;
	}
	switch (message->type) {
	case MESSAGE_CARD:
		take_card(job, node, text);
		break;
	case MESSAGE_REACHED:
		if (job->phase == PHASE_REACH && job_take_reached(job, message))
			start_ranks(job);
		break;
	case MESSAGE_STARTED:
		if (!job->nodes[node].started && ++job->started == job->node_count)
			job_note(job, LOG_DEBUG, "all ranks run");
		job->nodes[node].started = true;
		break;
	case MESSAGE_ENDED:
		job_take_ended(job, node, text);
		break;
	case MESSAGE_ABORT:
		job_take_abort(job, node, text);
		break;
	case MESSAGE_DONE:
		if (!json_get_string("DONE", text, "left", &string, NULL))
			job_note(job, LOG_WARNING, "%s: could not be ended: %s",
				 job->request->alloc->nodes[node].name, string);
		job->nodes[node].done = true;
		break;
	case MESSAGE_FAILED:
		take_failed(job, node, text);
		break;
	case MESSAGE_NOTE:
		if (!json_get_string("NOTE", text, "text", &string, NULL))
			job_note(job, LOG_WARNING, "%s: %s", job->request->alloc->nodes[node].name,
				 string);
		break;
	case MESSAGE_SIGNALLED:
		if (!json_get_int("SIGNALLED", text, "signal", 1, SIGRTMAX, &number, NULL) &&
		    !is_the_same(job, (int)number))
			forward_signal(job, (int)number);
		break;
	case MESSAGE_STEPS:
		job_take_steps(job, node, text);
		break;
	case MESSAGE_LOOKED:
		job_take_looked(job, node, text);
		break;
	case MESSAGE_FETCH:
	case MESSAGE_FETCHED:
		pass_fetch(job, message, text);
		break;
	default:
		job_note(job, LOG_DEBUG, "%s sent %s, which means nothing here",
			 job->request->alloc->nodes[node].name, proto_name(message->type));
	}
}

static void on_attached(void *context)
{
	struct job *job = context;

	if (job->phase != PHASE_LAUNCH)
		return;
	job->phase = PHASE_CARDS;
	all_there(job);
}

static void on_lost(void *context, size_t node, const char *why)
{
	struct job *job = context;

	job->result->lost[node] = true;
	if (node >= job->node_count - job->request->spares && job->phase >= PHASE_RUN) {
		job_note(job, LOG_WARNING, "node %s, a spare, was lost: %s",
			 job->request->alloc->nodes[node].name, why);
		return;
	}
	/* An agent that has greeted has told its folder. */
	bool greeted = head_folder(job->head, node)[0];
	bool first = !job->failed || job->cause < CAUSE_BERTH;

	job_fail(job, ERR_NETWORK, (long)node,
		 greeted ? "node %s was lost: %s" : "no agent on %s: %s",
		 job->request->alloc->nodes[node].name, why);
	if (first && job->failed && job->cause == CAUSE_BERTH)
		job->result->lost_node = greeted;
}

static void on_note(void *context, const char *text)
{
	job_note(context, LOG_NOTE, "%s", text);
}

/* ---- signals ---- */

static const int taken[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};

static bool ends_a_job(int number)
{
	return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

static void forward_signal(struct job *job, int number)
{
	int64_t now = loop_now_ms();

	if (ends_a_job(number) && !job->result->interrupted) {
		job->result->interrupted = number;
		job_time_mark(job);
	}
	if (job->phase < PHASE_RUN) {
		if (ends_a_job(number))
			job_fail(job, 128 + number, -1,
				 "stopped by %s before the ranks were started", strsignal(number));
		return;
	}
	job_tell_stop(job, number, number == SIGTERM ? "SIGTERM" : NULL);
	job->last_signal.signal = number;
	job->last_signal.at_ms = now;
	if (number == SIGINT || number == SIGTERM)
		job_note(job, LOG_NOTE, "%s was passed on to the ranks; the same again ends them at once",
			 number == SIGINT ? "the interrupt" : "SIGTERM");
}

static void on_signal(struct loop_source *source, uint32_t events)
{
	struct job *job = (struct job *)((char *)source - offsetof(struct job, signals));
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info) {
		int number = (int)info.ssi_signo;

		if (number == SIGCHLD) {
			head_reap(job->head);
			continue;
		}
		if ((number == SIGINT || number == SIGTERM) && ++job->interrupts > 1) {
			job_note(job, LOG_WARNING, "a second signal: ending everything at once");
			if (!job->failed)
				job_fail(job, 128 + number, -1, "stopped by a second %s",
					 strsignal(number));
			job_stop(job, 0);
			continue;
		}
		forward_signal(job, number);
	}
}

/* ---- the loop ---- */

static void on_drained(struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events; /* hold_back asks */
}

static void hold_back(struct job *job)
{
	bool full = job->sink->full && job->sink->full(job->sink->context);

	if (job->sink->full)
		head_pause(job->head, full);
	if (full)
		job_is_active(job); /* it is we who hold them back */
}

static void tell_missing(struct job *job)
{
	const struct job_driver *driver = job->request->driver;
	char words[700];

	if (!driver)
		return;
	head_words(job->head, words, sizeof words);
	for (size_t i = 0; i < job->node_count; i++)
		if (!job->nodes[i].carded)
			driver->missing(driver->context, i, words);
}

/* When the driver wants to be called next; 0: whenever. */
static int64_t drive(struct job *job, int64_t now)
{
	const struct job_driver *driver = job->request->driver;

	return driver && job->phase == PHASE_RUN ? driver->tick(driver->context, now) : 0;
}

int job_input(struct job *job, long node, const void *data, size_t size, struct error *err)
{
	return head_send(job->head, MESSAGE_INPUT, node < 0 ? WIRE_ALL : (uint32_t)node,
			 (uint32_t)job->plan.attempt, 0, NULL, data, size, err);
}

void job_end(struct job *job, int grace_ms)
{
	job_stop(job, grace_ms);
}

static void check_deadline(struct job *job, int64_t now)
{
	char missing[512];

	if (!job->deadline_ms || now < job->deadline_ms)
		return;
	job->deadline_ms = 0;
	if (job->phase == PHASE_LAUNCH || job->phase == PHASE_CARDS) {
		tell_missing(job);
		if (!head_missing(job->head, missing, sizeof missing)) {
			for (size_t i = 0; i < job->node_count; i++)
				if (!job->nodes[i].carded && strlen(missing) < 400)
					sprintf(missing + strlen(missing), "%s%.64s",
						missing[0] ? ", " : "",
						job->request->alloc->nodes[i].name);
		}
		for (size_t i = 0; i < job->node_count; i++)
			job->result->lost[i] |= !head_folder(job->head, i)[0];
		char words[700];

		head_words(job->head, words, sizeof words);
		job_fail(job, ERR_NETWORK, -1,
			 "no agent, or no word about its machine, from %s within %d s%s%s", missing,
			 job->request->start_timeout_ms / 1000, words[0] ? "; " : "", words);
	} else if (job->phase == PHASE_REACH) {
		job_note(job, LOG_WARNING,
			 "%zu of %zu nodes said in time which addresses of the head they reach",
			 job->reach_nodes, job->node_count);
		start_ranks(job);
	} else if (job->phase == PHASE_RUN) {
		job_not_started(job);
	} else if (job->phase == PHASE_END) {
		job->phase = PHASE_OVER;
	}
}

static void run(struct job *job)
{
	struct error err = {0};
	int64_t driver_ms = 0;

	job->woke_ms = loop_now_ms();
	job_time_begin(job);
	job->deadline_ms = job->woke_ms + job->request->start_timeout_ms;
	while (job->phase != PHASE_OVER) {
		int64_t now = loop_now_ms(), next = job->tick_ms + TICK_MS;

		if (job->deadline_ms && job->deadline_ms < next)
			next = job->deadline_ms;
		if (job->settle_ms && job->settle_ms < next)
			next = job->settle_ms;
		if (job_time_due(job) && job_time_due(job) < next)
			next = job_time_due(job);
		if (driver_ms && driver_ms < next)
			next = driver_ms;
		if (loop_once(job->loop, next > now ? (int)(next - now) : 0, &err)) {
			job_fail(job, err.code, -1, "%s", err.text);
			return;
		}
		hold_back(job);
		now = loop_now_ms();
		if (now - job->tick_ms >= TICK_MS) {
			/* Were we stopped (^Z)? Then it was us who was silent. */
			bool slept = now - job->woke_ms > 3 * TICK_MS;

			head_tick(job->head, now, slept);
			job_hang_tick(job, now, slept);
			job->tick_ms = now;
		}
		job->woke_ms = now;
		job_settle(job, now);
		check_deadline(job, now);
		job_time_check(job, now);
		driver_ms = drive(job, now);
		if (job->phase >= PHASE_RUN && job->phase != PHASE_OVER)
			check_over(job);
	}
}

static int prepare(struct job *job, struct error *err)
{
	size_t n = job->node_count;

	job->nodes = calloc(n, sizeof *job->nodes);
	job->cards = calloc(n, sizeof *job->cards);
	job->result->lost = calloc(n, sizeof *job->result->lost);
	if (!job->nodes || !job->cards || !job->result->lost)
		return error_memory(err, "the nodes");
	return loop_new(&job->loop, err);
}

static int launch(struct job *job, struct error *err)
{
	const struct job_request *request = job->request;
	struct head_options options = {
		.alloc = request->alloc,
		.engine = request->engine,
		.env = request->env,
		.program = request->program,
		.node_timeout_ms = request->node_timeout_ms,
		.fanout = request->fanout,
		.port = request->plan.port,
	};
	struct head_events events = {job, on_attached, on_message, on_lost, on_note};
	int rc = head_start(job->loop, &options, &events, &job->head, err);

	if (!rc && job->sink->full && job->sink->drained_fd >= 0) {
		job->drained.ready = on_drained;
		rc = loop_add(job->loop, &job->drained, job->sink->drained_fd, EPOLLIN, err);
	}
	return rc;
}

static void ask_again(struct job *job)
{
	const struct job_request *request = job->request;

	if (job->began_ms)
		job->result->lived_ms = loop_now_ms() - job->began_ms;
	job->result->again = request->again && request->again(request->again_context, job->result);
	head_send(job->head, MESSAGE_OVER, WIRE_ALL, 0, 0,
		  json_pack("{s:i, s:b}", "code", job->result->code, "again", job->result->again),
		  NULL, 0, NULL);
}

static void clean(struct job *job)
{
	char left[512] = "";

	loop_remove(job->loop, &job->drained);
	head_stop(job->head, AGENTS_MS, left, sizeof left);
	if (left[0])
		job->result->left = strdup(left);
	if (job->signals.fd >= 0) {
		int fd = job->signals.fd;

		loop_remove(job->loop, &job->signals);
		close(fd);
	}
	gathers_free(&job->gathers);
	job_hang_close(job);
	for (size_t i = 0; job->cards && i < job->node_count; i++)
		machine_free(&job->cards[i]);
	free(job->cards);
	free(job->nodes);
	free(job->reached);
	free(job->shared);
	if (job->planned)
		plan_free(&job->plan);
	loop_free(job->loop);
}

int job_run(const struct job_request *request, const struct job_sink *sink, struct job_result *out,
	    struct error *err)
{
	struct job job = {
		.request = request, .sink = sink, .node_count = request->alloc->node_count};
	struct job_result result = {
		.rank = -1, .node_index = -1, .steps = -1, .attempt = request->plan.attempt};
	struct sigaction ignore = {.sa_handler = SIG_IGN}, old_pipe;
	sigset_t old;
	int rc;

	job.result = &result;
	job.signals.fd = job.drained.fd = -1;
	result.ranks = json_array();
	sigprocmask(SIG_SETMASK, NULL, &old);
	sigaction(SIGPIPE, &ignore, &old_pipe);
	rc = prepare(&job, err);
	job.signals.ready = on_signal;
	if (!rc)
		rc = loop_add_signals(job.loop, &job.signals, taken, sizeof taken / sizeof *taken,
				      err);
	if (!rc)
		rc = launch(&job, err);
	if (!rc) {
		run(&job);
		ask_again(&job);
		if (!result.interrupted)
			job_time_mark(&job);
	}
	if (job.loop)
		clean(&job);
	sigaction(SIGPIPE, &old_pipe, NULL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		job_result_free(&result);
		return rc;
	}
	*out = result;
	return 0;
}
