/* SPDX-License-Identifier: BSD-3-Clause */
/* Hang detection. If there is neither a step nor a line of output for too long, the controller
 * asks the agents for stacks and reports which rank is behind. */
#include "controller/hang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "process/heartbeat.h"

#define STACKS_MS 15000	 /* for the agents' answers; reading stacks takes time */
#define STACK_LINES 60	 /* lines of stacks that are printed; the report has all of them */
#define NAMED_AT_MOST 64 /* how many ranks' stacks are requested */

struct job_rank {
	double steps; /* -1: it has reported nothing */
	char status_text[HEARTBEAT_STATUS_BYTES];
	char state; /* the state from /proc when the stacks were read; 0: unknown */
	int node;
};

int job_hang_open(struct job_hang *hang, const struct job_request *request, const struct plan *plan,
		  struct controller *controller, const struct job_sink *sink, struct error *err)
{
	*hang = (struct job_hang){.request = request,
				  .plan = plan,
				  .controller = controller,
				  .sink = sink,
				  .most_steps = -1};
	hang->ranks = calloc((size_t)plan->world_size, sizeof *hang->ranks);
	if (!hang->ranks)
		return error_memory(err, "the ranks' heartbeats");
	for (size_t n = 0; n < plan->node_count; n++) {
		hang->nodes_with_ranks += plan->nodes[n].rank_count > 0;
		for (size_t i = 0; i < plan->nodes[n].rank_count; i++) {
			hang->ranks[plan->nodes[n].ranks[i].rank].steps = -1;
			hang->ranks[plan->nodes[n].ranks[i].rank].node = (int)n;
		}
	}
	job_hang_mark_active(hang);
	return 0;
}

void job_hang_close(struct job_hang *hang)
{
	free(hang->ranks);
	free(hang->stacks);
	memset(hang, 0, sizeof *hang);
}

void job_hang_mark_active(struct job_hang *hang)
{
	hang->active_ms = clock_now_ms();
}

/* The ranks of a node in the plan; NULL before there is a plan. */
static const struct plan_node *node_of(const struct job_hang *hang, size_t node)
{
	return hang->ranks && node < hang->plan->node_count && hang->plan->nodes[node].rank_count
		       ? &hang->plan->nodes[node]
		       : NULL;
}

void job_hang_handle_progress(struct job_hang *hang, size_t node, const json_t *text)
{
	const struct plan_node *at = node_of(hang, node);
	const json_t *steps = json_object_get(text, "steps"),
		     *statuses = json_object_get(text, "words");

	job_hang_mark_active(hang);
	for (size_t i = 0; at && i < at->rank_count; i++) {
		struct job_rank *rank = &hang->ranks[at->ranks[i].rank];
		const json_t *value = json_array_get(steps, i);
		const char *status = json_string_value(json_array_get(statuses, i));

		if (!json_is_number(value))
			continue;
		rank->steps = json_number_value(value);
		snprintf(rank->status_text, sizeof rank->status_text, "%s", status ? status : "");
		if (rank->steps > hang->most_steps)
			hang->most_steps = rank->steps;
	}
}

/* Are some ranks behind others? least and most are the lowest and the highest number of steps
 * reported. If a few ranks have reported none, least is -1: they are behind. If most ranks
 * report none, the program probably means that, and they are ignored. */
static bool steps_differ(const struct job_hang *hang, double *least, double *most)
{
	int reported = 0;

	*least = *most = -1;
	for (int i = 0; i < hang->plan->world_size; i++) {
		double steps = hang->ranks[i].steps;

		if (steps < 0)
			continue;
		reported++;
		*least = *least >= 0 && *least < steps ? *least : steps;
		*most = *most > steps ? *most : steps;
	}
	if (reported < hang->plan->world_size && hang->plan->world_size - reported <= reported)
		*least = -1;
	return *least < *most;
}

static void request_stacks(struct job_hang *hang, int64_t now_ms)
{
	json_t *ranks = json_array();
	double least, most;

	if (steps_differ(hang, &least, &most))
		for (int i = 0; i < hang->plan->world_size; i++)
			if (hang->ranks[i].steps == least && json_array_size(ranks) < NAMED_AT_MOST)
				json_array_append_new(ranks, json_integer(i));
	hang->stacks_requested_ms = now_ms;
	hang->stacks_received = 0;
	job_note(hang->sink, LOG_WARNING,
		 "no step and no output for %d s (--hang-timeout): looking for the "
		 "rank that is behind",
		 hang->request->hang_timeout_ms / 1000);
	controller_send(hang->controller, MESSAGE_DUMP_STACKS, WIRE_ALL, 0, 0,
			json_pack("{s:o}", "ranks", ranks), NULL, 0, NULL);
}

static void append_stacks(struct job_hang *hang, const char *text)
{
	size_t used = hang->stacks ? strlen(hang->stacks) : 0;
	char *grown = realloc(hang->stacks, used + strlen(text) + 1);

	if (!grown)
		return;
	strcpy(grown + used, text);
	hang->stacks = grown;
}

void job_hang_handle_stacks(struct job_hang *hang, size_t node, const json_t *text)
{
	const struct plan_node *at = node_of(hang, node);
	const char *stacks = json_string_value(json_object_get(text, "stacks"));

	if (!at || !hang->stacks_requested_ms)
		return;
	for (size_t i = 0; i < at->rank_count; i++) {
		const char *state =
			json_string_value(json_array_get(json_object_get(text, "states"), i));

		hang->ranks[at->ranks[i].rank].state = (char)(state ? state[0] : 0);
	}
	if (stacks)
		append_stacks(hang, stacks);
	hang->stacks_received++;
}

/* Find the most suspicious rank: a stopped one first, then one with the fewest steps, then one
 * that is blocked in the kernel. *unique: no other rank is like it. Return -1 if all are alike. */
static int find_rank_behind(const struct job_hang *hang, bool *unique)
{
	double least, most;
	bool differ = steps_differ(hang, &least, &most);
	int best = -1, best_score = 0, count = 0;

	for (int i = 0; i < hang->plan->world_size; i++) {
		const struct job_rank *rank = &hang->ranks[i];
		int score = 4 * (rank->state == 'T' || rank->state == 't') +
			    2 * (differ && rank->steps == least) + (rank->state == 'D');

		if (score > best_score) {
			best_score = score;
			best = i;
			count = 0;
		}
		count += score == best_score;
	}
	*unique = count == 1;
	return best;
}

static void describe(const struct job_hang *hang, int number, char *out, size_t size)
{
	const struct job_rank *rank = &hang->ranks[number];
	double least, most;
	size_t used = 0;

	if (rank->steps >= 0 && steps_differ(hang, &least, &most))
		used = (size_t)snprintf(out, size, " at %.15g%s%s%s, others at %.15g", rank->steps,
					rank->status_text[0] ? " (" : "", rank->status_text,
					rank->status_text[0] ? ")" : "", most);
	else if (steps_differ(hang, &least, &most))
		used = (size_t)snprintf(out, size, ": it has reported no step, others are at %.15g",
					most);
	else if (rank->status_text[0])
		used = (size_t)snprintf(out, size, " at: %s", rank->status_text);
	if (used >= size)
		return;
	if (rank->state == 'T' || rank->state == 't')
		snprintf(out + used, size - used,
			 "; its process is stopped (by SIGSTOP or a debugger)");
	else if (rank->state == 'D')
		snprintf(out + used, size - used,
			 "; its process is blocked in the kernel (state D: waiting for a file "
			 "system or device)");
}

static void print_stacks(const struct job_hang *hang)
{
	char *copy = hang->stacks ? strdup(hang->stacks) : NULL, *line = copy;

	for (int i = 0; line && *line && i < STACK_LINES; i++) {
		char *end = strchr(line, '\n');

		if (end)
			*end++ = '\0';
		job_note(hang->sink, LOG_NOTE, "  | %s", line);
		line = end;
	}
	free(copy);
}

static void find(struct job_hang *hang, struct job_hang_finding *out)
{
	int seconds = hang->request->hang_timeout_ms / 1000;
	char how[300] = "";
	bool unique;
	int rank = find_rank_behind(hang, &unique);

	print_stacks(hang);
	*out = (struct job_hang_finding){.rank = rank, .node = -1, .stacks = hang->stacks};
	hang->stacks = NULL;
	if (rank < 0) {
		snprintf(out->text, sizeof out->text,
			 "the job hangs: no step and no output for %d s, and no rank is behind the "
			 "others",
			 seconds);
		return;
	}
	out->node = hang->ranks[rank].node;
	describe(hang, rank, how, sizeof how);
	snprintf(out->text, sizeof out->text,
		 "the job hangs: no step and no output for %d s; rank %d on %s is behind%s%s",
		 seconds, rank, hang->request->launch->alloc->nodes[out->node].name,
		 unique ? "" : ", and so are others", how);
}

bool job_hang_tick(struct job_hang *hang, int64_t now_ms, bool slept, struct job_hang_finding *out)
{
	int timeout_ms = hang->ranks ? hang->request->hang_timeout_ms : 0;

	if (!timeout_ms)
		return false;
	if (slept)
		hang->active_ms = now_ms;
	if (!hang->stacks_requested_ms) {
		if (now_ms - hang->active_ms >= timeout_ms)
			request_stacks(hang, now_ms);
		return false;
	}
	if (hang->active_ms > hang->stacks_requested_ms) {
		job_note(hang->sink, LOG_NOTE, "the ranks made progress again");
		hang->stacks_requested_ms = 0;
		free(hang->stacks);
		hang->stacks = NULL;
		return false;
	}
	if (hang->stacks_received < hang->nodes_with_ranks &&
	    now_ms - hang->stacks_requested_ms < STACKS_MS)
		return false;
	find(hang, out);
	return true;
}
