/* SPDX-License-Identifier: BSD-3-Clause */
/* Handles what the agents report, and what the controller reports about them: that they
 * connected or were lost. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "controller/job_internal.h"
#include "hostlist/hostlist.h"
#include "overlay/messages.h"
#include "process/logs.h"
#include "process/supervise.h"

#define START_MS 60000 /* how long a node may take to start its ranks; PMIx may use half of it */

/* Continue once the tree is complete and every inventory has arrived. A node that has moved
 * sends its inventory through its parent, and that may arrive before its last message on the old
 * connection. A message sent to it before then would go to the old connection, unread. */
static void start_when_complete(struct job *job)
{
	if (job->phase != JOB_PHASE_INVENTORIES || job->inventory_received < job->node_count)
		return;
	job_continue(job,
		     !job->request->role && (job->node_count == 1 || job->request->any_master_addr)
			     ? JOB_STEP_PLAN
			     : JOB_STEP_PROBE);
}

/* ---- messages ---- */

/* A launcher may find nodes by their place in a list that is not the allocation's. A name that no
 * node has proves nothing: it may be another one of the same machine. */
static bool runs_elsewhere(struct job *job, size_t node, const char *host)
{
	for (size_t i = 0; host && i < job->node_count; i++)
		if (hostlist_same_host(host, job_node_name(job, i))) {
			job_fail(job, ERR_DATA, (long)node,
				 "the agent for %s was started on %s: launcher %s takes nodes by "
				 "their place in a list that is not in berth's order; leave the "
				 "scheduler's list of nodes as it is",
				 job_node_name(job, node), host,
				 job->request->launch->launcher->name);
			return true;
		}
	return false;
}

static void handle_inventory(struct job *job, size_t node, const struct message *message)
{
	struct error err = {0};

	if (job->phase > JOB_PHASE_INVENTORIES || job->nodes[node].inventory_received)
		return;
	job->nodes[node].port = message->inventory.port;
	if (inventory_from_json(message->inventory.inventory, &job->inventories[node], &err)) {
		job_fail(job, err.code, (long)node, "cannot read the inventory of %s: %s",
			 job_node_name(job, node), err.text);
		return;
	}
	if (runs_elsewhere(job, node, message->inventory.host))
		return;
	job->blocks &= message->inventory.blocks;
	if (job->request->launch->ports && !job->blocks) {
		job_fail(
			job, ERR_UNAVAILABLE, (long)node,
			"no block of %d ports%s is free on all nodes (--ports); the last one asked "
			"was %s",
			job->request->launch->ports,
			job->request->launch->first_port ? ", the one from before the restart,"
							 : "",
			job_node_name(job, node));
		return;
	}
	job->nodes[node].inventory_received = true;
	job->inventory_received++;
	start_when_complete(job);
}

static void handle_output(struct job *job, size_t node, const struct message *message)
{
	const unsigned char *at = message->wire->data;
	size_t left = message->wire->data_size;
	struct message_output output;

	while (message_next_output(&at, &left, &output, NULL) > 0) {
		/* A rank may rewrite its status line without making progress. */
		if (!logs_is_status(output.text, output.size))
			job_hang_mark_active(&job->hang);
		job->sink->output(job->sink->context, (int)output.rank,
				  output.stream == SUPERVISE_STDERR, output.text, output.size,
				  output.newline);
	}
}

static void handle_gather(struct job *job, size_t node, const struct message *message)
{
	const struct wire_message *wire = message->wire;
	struct gather *gather = gathers_get(&job->gathers, wire->sequence);
	struct error err = {0};
	void *joined = NULL;
	size_t size;

	if (!gather) {
		error_memory(&err, "a collective");
	} else if (!gather_merge(gather, wire->data, wire->data_size, job->node_count, &err) &&
		   gather->nodes >= job->plan.nodes_with_ranks &&
		   !gather_join(gather, job->node_count, &joined, &size, &err)) {
		controller_send(job->controller, MESSAGE_GATHERED, WIRE_ALL, wire->attempt,
				wire->sequence, NULL, joined, size, &err);
		gathers_drop(&job->gathers, gather);
	}
	free(joined);
	if (err.code)
		job_fail(job, err.code, (long)node, "%s", err.text);
}

/* What a rank has published is requested from the rank's node. */
static void handle_fetch(struct job *job, size_t node, const struct message *message)
{
	long holder = job_node_of_rank(job, message->fetch.rank);

	if (holder >= 0)
		controller_send(job->controller, MESSAGE_FETCH, (uint32_t)holder,
				message->wire->attempt, message->wire->sequence,
				&(struct message_fetch){message->fetch.rank, (int)node}, NULL, 0,
				NULL);
}

/* The answer goes to the node that asked. */
static void handle_fetched(struct job *job, size_t node, const struct message *message)
{
	const struct wire_message *wire = message->wire;

	if ((size_t)message->fetched.to < job->node_count)
		controller_send(job->controller, MESSAGE_FETCHED, (uint32_t)message->fetched.to,
				wire->attempt, wire->sequence, &message->fetched, wire->data,
				wire->data_size, NULL);
}

static void handle_failed(struct job *job, size_t node, const struct message *message)
{
	job->port_taken |= message->failed.port_taken;
	job_fail(job, message->failed.code, (long)node, "%s: %s", job_node_name(job, node),
		 message->failed.text);
}

static void handle_started(struct job *job, size_t node, const struct message *message)
{
	/* Count nodes with ranks only: a spare node may be lost before it reports this. */
	bool counts = !job->nodes[node].started && node < job->plan.node_count &&
		      job->plan.nodes[node].rank_count;

	job->nodes[node].started = true;
	if (counts && ++job->started == job->plan.nodes_with_ranks) {
		job->times.started_ms = clock_now_ms();
		job_note(job->sink, LOG_DEBUG, "all ranks are running");
	}
}

static void handle_settled(struct job *job, size_t node, const struct message *message)
{
	job->nodes[node].settled = true;
	job_check_settled(job);
}

static void handle_done(struct job *job, size_t node, const struct message *message)
{
	if (message->done.left)
		job_note(job->sink, LOG_WARNING, "%s: cannot kill %s", job_node_name(job, node),
			 message->done.left);
	job->nodes[node].done = true;
}

static void handle_note(struct job *job, size_t node, const struct message *message)
{
	node_notes_add(&job->notes, node, message->note.text);
}

static void handle_progress(struct job *job, size_t node, const struct message *message)
{
	job_hang_handle_progress(&job->hang, node, &message->progress);
}

static void handle_joined(struct job *job, size_t node, const struct message *message)
{
	job_hang_handle_joined(&job->hang, node, &message->joined);
}

static void handle_stacks(struct job *job, size_t node, const struct message *message)
{
	job_hang_handle_stacks(&job->hang, node, &message->stacks);
}

/* The core's own, after those of the parts. */
static const struct job_handler handlers[] = {
	{MESSAGE_INVENTORY, handle_inventory},
	{MESSAGE_STARTED, handle_started},
	{MESSAGE_OUTPUT, handle_output},
	{MESSAGE_PROGRESS, handle_progress},
	{MESSAGE_JOINED, handle_joined},
	{MESSAGE_STACKS, handle_stacks},
	{MESSAGE_GATHER, handle_gather},
	{MESSAGE_FETCH, handle_fetch},
	{MESSAGE_FETCHED, handle_fetched},
	{MESSAGE_NOTE, handle_note},
	{MESSAGE_ENDED, job_handle_rank_ended},
	{MESSAGE_ABORT, job_handle_abort},
	{MESSAGE_FAILED, handle_failed},
	{MESSAGE_SETTLED, handle_settled},
	{MESSAGE_DONE, handle_done},
	{0},
};

static bool dispatch(const struct job_handler *list, struct job *job, size_t node,
		     const struct message *message)
{
	bool handled = false;

	for (; list && list->handle; list++)
		if (list->type == message->wire->type) {
			list->handle(job, node, message);
			handled = true;
		}
	return handled;
}

static void on_message(void *context, size_t node, const struct message *message)
{
	struct job *job = context;
	bool handled = false;

	for (size_t i = 0; i < job->part_count; i++)
		handled |= dispatch(job->parts[i]->handlers, job, node, message);
	/* Both may want the same message. */
	handled |= dispatch(handlers, job, node, message);
	if (!handled)
		job_note(job->sink, LOG_DEBUG, "%s sent an unexpected %s", job_node_name(job, node),
			 message_name(message->wire->type));
}

static void on_failed(void *context, size_t node, const struct error *why)
{
	struct job *job = context;

	job_fail(job, why->code, (long)node, "%s: %s", job_node_name(job, node), why->text);
}

static void on_attached(void *context)
{
	struct job *job = context;

	if (job->phase != JOB_PHASE_LAUNCH)
		return;
	job_enter(job, JOB_PHASE_INVENTORIES);
	start_when_complete(job);
}

static void on_lost(void *context, size_t node, const char *why)
{
	struct job *job = context;

	/* An agent that has sent HELLO has sent its directory. */
	bool greeted = controller_tmpdir(job->controller, node)[0];

	job->result.lost[node] |= !greeted || !controller_tool_gave_up(job->controller);
	/* Until the ranks run, the job waits for all nodes, spares included. */
	if (node >= job->node_count - job->request->spares && job->phase >= JOB_PHASE_RUN) {
		job_note(job->sink, LOG_WARNING, "spare node %s was lost: %s",
			 job_node_name(job, node), why);
		return;
	}
	if (job_fail(job, ERR_NETWORK, (long)node,
		     greeted ? "node %s was lost: %s" : "no agent on %s: %s",
		     job_node_name(job, node), why) &&
	    (greeted || controller_tool_gave_up(job->controller)))
		job->result.cause.end = JOB_END_NODE;
}

static void on_note(void *context, const char *text)
{
	const struct job *job = context;

	job_note(job->sink, LOG_NOTE, "%s", text);
}

/* ---- nodes that report nothing in time ---- */

int job_ranks_timeout_ms(const struct job *job)
{
	return job->request->ranks_timeout_ms ? job->request->ranks_timeout_ms : START_MS;
}

/* A rank may hang in chdir or exec. Which of them is unknown: agents send nothing in between. */
void job_fail_not_started(struct job *job)
{
	const char *cwd = job->request->cwd;
	char names[512] = "";
	long first_late = -1;

	for (size_t i = 0; i < job->node_count; i++) {
		if (job->nodes[i].started || !job_node_is_due(job, i) ||
		    controller_is_lost(job->controller, i))
			continue;
		if (first_late < 0)
			first_late = (long)i;
		if (strlen(names) < 400)
			text_append(names, sizeof names, "%s%.64s", *names ? ", " : "",
				    job_node_name(job, i));
	}
	if (first_late >= 0)
		job_fail(
			job, ERR_NETWORK, first_late,
			"%s did not report within %d s that its ranks were started; check that the "
			"file systems of the program and of its directory%s%.300s respond there",
			names, job_ranks_timeout_ms(job) / 1000, cwd ? " " : "", cwd ? cwd : "");
}

bool job_fail_without_agents(struct job *job)
{
	const struct launch_options *launch = job->request->launch;
	char output_tail[700];

	for (size_t i = 0; i < job->node_count; i++)
		if (controller_tmpdir(job->controller, i)[0])
			return false;
	controller_launcher_output(job->controller, output_tail, sizeof output_tail);
	return job_fail(job, ERR_NETWORK, -1, "%s has started no agent within %g s%s%s",
			launch->launcher->name, launch->launch_timeout_ms / 1e3,
			output_tail[0] ? "; its last output: " : "", output_tail);
}

void job_fail_missing(struct job *job)
{
	const struct job_driver *driver = job->request->driver;
	char missing[512], output_tail[700];
	long absent = -1;
	size_t absent_count = 0;
	bool none = !controller_missing(job->controller, missing, sizeof missing);

	controller_launcher_output(job->controller, output_tail, sizeof output_tail);
	for (size_t i = 0; i < job->node_count; i++) {
		bool late = !job->nodes[i].inventory_received;

		if (late && driver)
			driver->missing(driver->context, i, output_tail);
		if (late && none && strlen(missing) < 400)
			text_append(missing, sizeof missing, "%s%.64s", *missing ? ", " : "",
				    job_node_name(job, i));
		if (controller_tmpdir(job->controller, i)[0])
			continue;
		job->result.lost[i] = true;
		absent = (long)i;
		absent_count++;
	}
	/* Where other agents came, the nodes are to blame. */
	if (job_fail(job, ERR_NETWORK, absent_count == 1 ? absent : -1,
		     "no agent or no inventory from %s within %d s%s%s", missing,
		     job->request->launch->start_timeout_ms / 1000, output_tail[0] ? "; " : "",
		     output_tail) &&
	    absent_count && absent_count < job->node_count)
		job->result.cause.end = JOB_END_NODE;
}

struct controller_events job_controller_events(struct job *job)
{
	return (struct controller_events){job,	     on_attached, on_message,
					  on_failed, on_lost,	  on_note};
}
