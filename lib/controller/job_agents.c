/* SPDX-License-Identifier: BSD-3-Clause */
/* What the agents say, and what the head says of them: that they are there, or lost. */
#include <signal.h>
#include <stdlib.h>

#include "base/json.h"
#include "controller/job_internal.h"
#include "overlay/messages.h"
#include "process/supervise.h"

/* Once the tree stands and every card is here. A node that has moved sends its card through its
 * parent, and that may come before its last words on the old connection: what was sent to it by now
 * would go there, unread. */
static void start_when_complete(struct job *job)
{
	struct error err = {0};

	if (job->phase != JOB_PHASE_INVENTORIES || job->inventory_received < job->node_count)
		return;
	if (job->node_count == 1 || job->request->any_master_addr) {
		job_start_ranks(job);
	} else if (job_start_probes(job, &err)) {
		job->error = err;
		job_fail(job, err.code, -1, "%s", err.text);
	}
}

static void handle_inventory(struct job *job, size_t node, const json_t *text)
{
	struct error err = {0};
	json_t *inventory;
	int64_t port;

	if (job->phase > JOB_PHASE_INVENTORIES || job->nodes[node].inventory_received)
		return;
	if (json_get_object("CARD", text, "card", &inventory, &err) ||
	    json_get_int("CARD", text, "port", -1, 65535, &port, &err) ||
	    inventory_from_json(inventory, &job->inventories[node], &err)) {
		job_fail(job, err.code, (long)node, "the card of %s: %s",
			 job->request->launch->alloc->nodes[node].name, err.text);
		return;
	}
	if (node == 0)
		job->port = (int)port;
	job->nodes[node].inventory_received = true;
	job->inventory_received++;
	start_when_complete(job);
}

static void handle_output(struct job *job, const struct wire_message *message)
{
	const unsigned char *at = message->data;
	size_t left = message->data_size;
	struct message_output output;

	job_mark_active(job);
	while (message_next_output(&at, &left, &output, NULL) > 0)
		job->sink->output(job->sink->context, (int)output.rank,
				  output.stream == SUPERVISE_STDERR, output.text, output.size,
				  output.newline);
}

static void handle_gather(struct job *job, const struct wire_message *message)
{
	struct gather *gather = gathers_get(&job->gathers, message->sequence);
	struct error err = {0};
	void *joined = NULL;
	size_t size;

	if (!gather) {
		error_memory(&err, "a collective");
	} else if (!gather_merge(gather, message->data, message->data_size, job->node_count,
				 &err) &&
		   gather->nodes >= job->nodes_with_ranks &&
		   !gather_join(gather, job->node_count, &joined, &size, &err)) {
		controller_send(job->controller, MESSAGE_GATHERED, WIRE_ALL, message->attempt,
				message->sequence, NULL, joined, size, &err);
		gathers_drop(&job->gathers, gather);
	}
	free(joined);
	if (err.code)
		job_fail(job, err.code, (long)message->node, "%s", err.text);
}

/* What rank has published: asked of its node, or answered to the node that asked. */
static void route_fetch(struct job *job, const struct wire_message *message, json_t *text)
{
	int64_t rank, to;

	if (message->type == MESSAGE_FETCHED) {
		if (!json_get_int("FETCHED", text, "to", 0, (int64_t)job->node_count - 1, &to,
				  NULL))
			controller_send(job->controller, MESSAGE_FETCHED, (uint32_t)to,
					message->attempt, message->sequence, json_incref(text),
					message->data, message->data_size, NULL);
		return;
	}
	if (json_get_int("FETCH", text, "rank", 0, INT32_MAX, &rank, NULL))
		return;
	for (size_t i = 0; i < job->plan.node_count; i++) {
		const struct plan_node *node = &job->plan.nodes[i];

		if (!node->rank_count || rank < node->ranks[0].rank ||
		    rank >= node->ranks[0].rank + (int64_t)node->rank_count)
			continue;
		controller_send(job->controller, MESSAGE_FETCH, (uint32_t)i, message->attempt,
				message->sequence,
				json_pack("{s:I, s:I}", "rank", (json_int_t)rank, "from",
					  (json_int_t)message->node),
				NULL, 0, NULL);
		return;
	}
}

static void handle_failed(struct job *job, size_t node, const json_t *text)
{
	const char *why = "its agent failed";
	int64_t code = ERR_INTERNAL;
	const char *name = job->request->launch->alloc->nodes[node].name;

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
		handle_output(job, message);
		return;
	}
	if (message->type == MESSAGE_GATHER) {
		handle_gather(job, message);
		return;
	}
	if (message->text_size && message_text(message, &text, &err)) {
		job_fail(job, err.code, (long)node, "%s: %s",
			 job->request->launch->alloc->nodes[node].name, err.text);
		return;
	}
	switch (message->type) {
	case MESSAGE_INVENTORY:
		handle_inventory(job, node, text);
		break;
	case MESSAGE_PROBED:
		if (job->phase == JOB_PHASE_PROBE && job_handle_probed(job, message))
			job_start_ranks(job);
		break;
	case MESSAGE_STARTED:
		if (!job->nodes[node].started && ++job->started == job->node_count)
			job_note(job, LOG_DEBUG, "all ranks run");
		job->nodes[node].started = true;
		break;
	case MESSAGE_ENDED:
		job_handle_rank_ended(job, node, text);
		break;
	case MESSAGE_ABORT:
		job_handle_abort(job, node, text);
		break;
	case MESSAGE_DONE:
		if (!json_get_string("DONE", text, "left", &string, NULL))
			job_note(job, LOG_WARNING, "%s: could not be ended: %s",
				 job->request->launch->alloc->nodes[node].name, string);
		job->nodes[node].done = true;
		break;
	case MESSAGE_FAILED:
		handle_failed(job, node, text);
		break;
	case MESSAGE_NOTE:
		if (!json_get_string("NOTE", text, "text", &string, NULL))
			job_note(job, LOG_WARNING, "%s: %s",
				 job->request->launch->alloc->nodes[node].name, string);
		break;
	case MESSAGE_SIGNALLED:
		if (!json_get_int("SIGNALLED", text, "signal", 1, SIGRTMAX, &number, NULL))
			job_handle_signal(job, (int)number);
		break;
	case MESSAGE_PROGRESS:
		job_handle_progress(job, node, text);
		break;
	case MESSAGE_STACKS:
		job_handle_stacks(job, node, text);
		break;
	case MESSAGE_FETCH:
	case MESSAGE_FETCHED:
		route_fetch(job, message, text);
		break;
	default:
		job_note(job, LOG_DEBUG, "%s sent %s, which means nothing here",
			 job->request->launch->alloc->nodes[node].name,
			 message_name(message->type));
	}
}

static void on_attached(void *context)
{
	struct job *job = context;

	if (job->phase != JOB_PHASE_LAUNCH)
		return;
	job->phase = JOB_PHASE_INVENTORIES;
	start_when_complete(job);
}

static void on_lost(void *context, size_t node, const char *why)
{
	struct job *job = context;

	job->result->lost[node] = true;
	if (node >= job->node_count - job->request->spares && job->phase >= JOB_PHASE_RUN) {
		job_note(job, LOG_WARNING, "node %s, a spare, was lost: %s",
			 job->request->launch->alloc->nodes[node].name, why);
		return;
	}
	/* An agent that has greeted has told its folder. */
	bool greeted = controller_tmpdir(job->controller, node)[0];
	bool is_first_cause = !job->failed || job->cause < CAUSE_BERTH;

	job_fail(job, ERR_NETWORK, (long)node,
		 greeted ? "node %s was lost: %s" : "no agent on %s: %s",
		 job->request->launch->alloc->nodes[node].name, why);
	if (is_first_cause && job->failed && job->cause == CAUSE_BERTH)
		job->result->lost_node = greeted;
}

static void on_note(void *context, const char *text)
{
	job_note(context, LOG_NOTE, "%s", text);
}

struct controller_events job_controller_events(struct job *job)
{
	return (struct controller_events){job, on_attached, on_message, on_lost, on_note};
}
