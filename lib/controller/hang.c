/* SPDX-License-Identifier: BSD-3-Clause */
/* Hang detection. If there is neither a step nor a line of output for too long, the controller
 * asks the agents for stacks and reports which rank is behind. */
#include "controller/hang.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/joined.h"
#include "base/bytes.h"
#include "explain/stacks.h"
#include "hostlist/idset.h"
#include "process/heartbeat.h"

#define STACKS_MS 25000	      /* for the agents' answers; reading stacks takes time */
#define STACKS_MAX (8u << 20) /* bytes of all nodes; further ones are dropped */
#define STACK_LINES 60	      /* lines of stacks that are printed; the report has all of them */
#define NOTE_MS 600000	      /* of silence, then a note, unless --hang-timeout ends the job */
#define MISSING_MS 30000      /* for all ranks to meet */
#define NAMED_AT_MOST 64      /* how many ranks' stacks are requested */

struct job_rank {
	double steps; /* -1: it has reported nothing */
	char status_text[HEARTBEAT_STATUS_BYTES];
	char state;  /* the state from /proc when the stacks were read; 0: unknown */
	char joined; /* JOINED_*; 0: not reported yet */
	int node;
};

int job_hang_open(struct job_hang *hang, const struct job_request *request, const struct plan *plan,
		  struct controller *controller, const struct job_sink *sink,
		  const struct loop *loop, struct error *err)
{
	*hang = (struct job_hang){.request = request,
				  .plan = plan,
				  .controller = controller,
				  .sink = sink,
				  .loop = loop,
				  .most_steps = -1};
	hang->ranks = calloc((size_t)plan->world_size, sizeof *hang->ranks);
	if (!hang->ranks)
		return error_memory(err, "the ranks' heartbeats");
	for (size_t n = 0; n < plan->node_count; n++)
		for (size_t i = 0; i < plan->nodes[n].rank_count; i++) {
			hang->ranks[plan->nodes[n].ranks[i].rank].steps = -1;
			hang->ranks[plan->nodes[n].ranks[i].rank].node = (int)n;
		}
	job_hang_mark_active(hang);
	hang->begin_ms = hang->active_ms;
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
	if (hang->loop)
		hang->active_ms = loop_now_ms(hang->loop);
}

/* The ranks of a node in the plan; NULL before there is a plan. */
static const struct plan_node *node_of(const struct job_hang *hang, size_t node)
{
	return hang->ranks && node < hang->plan->node_count && hang->plan->nodes[node].rank_count
		       ? &hang->plan->nodes[node]
		       : NULL;
}

void job_hang_handle_progress(struct job_hang *hang, size_t node,
			      const struct message_progress *progress)
{
	const struct plan_node *at = node_of(hang, node);

	job_hang_mark_active(hang);
	for (size_t i = 0; at && i < at->rank_count; i++) {
		struct job_rank *rank = &hang->ranks[at->ranks[i].rank];
		const json_t *value = json_array_get(progress->steps, i);
		const char *status = json_string_value(json_array_get(progress->status_texts, i));

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

/* Without --hang-timeout the user gets a note. */
static int silence_ms(const struct job_hang *hang)
{
	return hang->request->hang_timeout_ms ? hang->request->hang_timeout_ms : NOTE_MS;
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
	if (hang->request->hang_timeout_ms)
		job_note(hang->sink, LOG_WARNING,
			 "no step and no output for %d s (--hang-timeout): looking for the rank "
			 "that is behind",
			 silence_ms(hang) / 1000);
	controller_send(hang->controller, MESSAGE_DUMP_STACKS, WIRE_ALL, 0, 0,
			&(struct message_dump_stacks){ranks, !hang->request->hang_timeout_ms}, NULL,
			0, NULL);
}

static void append_stacks(struct job_hang *hang, const char *text)
{
	size_t used = hang->stacks ? strlen(hang->stacks) : 0, size = strlen(text);
	char *grown = used + size > STACKS_MAX ? NULL : realloc(hang->stacks, used + size + 1);

	if (!grown)
		return;
	strcpy(grown + used, text);
	hang->stacks = grown;
}

void job_hang_handle_stacks(struct job_hang *hang, size_t node, const struct message_stacks *answer)
{
	const struct plan_node *at = node_of(hang, node);

	if (!at || (!hang->stacks_requested_ms && !hang->missing_stacks_ms))
		return;
	for (size_t i = 0; i < at->rank_count; i++) {
		const char *state = json_string_value(json_array_get(answer->states, i));

		hang->ranks[at->ranks[i].rank].state = (char)(state ? state[0] : 0);
	}
	if (answer->stacks)
		append_stacks(hang, answer->stacks);
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

/* Append to out how far the rank is behind, and in which state. */
static void describe_rank(const struct job_hang *hang, int number, char *out, size_t size)
{
	const struct job_rank *rank = &hang->ranks[number];
	double least, most;
	bool differ = steps_differ(hang, &least, &most);

	if (rank->steps >= 0 && differ)
		text_append(out, size, " at %.15g%s%s%s, others at %.15g", rank->steps,
			    rank->status_text[0] ? " (" : "", rank->status_text,
			    rank->status_text[0] ? ")" : "", most);
	else if (differ)
		text_append(out, size, ": it has reported no step, others are at %.15g", most);
	else if (rank->status_text[0])
		text_append(out, size, " at: %s", rank->status_text);
	if (rank->state == 'T' || rank->state == 't')
		text_append(out, size, "; its process is stopped (by SIGSTOP or a debugger)");
	else if (rank->state == 'D')
		text_append(out, size,
			    "; its process is blocked in the kernel (state D: waiting for a file "
			    "system or device)");
}

static bool is_missing(const struct job_hang *hang, int rank)
{
	return rank >= 0 && rank < hang->plan->world_size && hang->ranks[rank].joined == JOINED_NO;
}

/* Print the stack of a rank's main thread, at most *left lines of it. */
static void print_stack(const struct job_hang *hang, int rank, int *left)
{
	const char *at = hang->stacks ? hang->stacks : "", *end, *text;
	bool main_thread = true;
	char name[32];

	snprintf(name, sizeof name, "rank %d,", rank);
	while (*at && strncmp(at, name, strlen(name)) != 0)
		at = stack_end(at);
	text = at;
	for (end = stack_end(at); at < end && 0 < *left;) {
		int size = (int)strcspn(at, "\n");

		stack_thread(text, at, &main_thread);
		if (main_thread) {
			job_note(hang->sink, LOG_NOTE, "  | %.*s", size, at);
			--*left;
		}
		at += size + (at[size] == '\n');
	}
	if (at < end && main_thread && (*left)-- == 0)
		job_note(hang->sink, LOG_NOTE, "  | ... (--report FILE keeps all stacks)");
}

static const char *node_name(const struct job_hang *hang, int rank)
{
	return hang->request->launch->alloc->nodes[hang->ranks[rank].node].name;
}

/* places: malloced; NULL if there is none, or memory is out. */
static struct stack_place *read_places(struct job_hang *hang, size_t *count)
{
	const char *text = hang->stacks ? hang->stacks : "";
	struct stack_place *places = calloc((size_t)hang->plan->world_size, sizeof *places);

	for (*count = 0; places && *text && *count < (size_t)hang->plan->world_size;
	     text = stack_end(text)) {
		struct stack_place place = stack_place(text, stack_end(text));

		if (place.rank < 0 || place.rank >= hang->plan->world_size)
			continue;
		place.node = node_name(hang, place.rank);
		if (place.blocked)
			hang->ranks[place.rank].state = 'D';
		places[(*count)++] = place;
	}
	return places;
}

static void find_hang(struct job_hang *hang, struct job_hang_finding *out)
{
	char how[300] = "", where[500] = "", begin[100];
	int left = STACK_LINES;
	size_t count;
	bool unique;
	struct stack_place *places = read_places(hang, &count);
	int odd = places ? stacks_culprit(places, count, where, sizeof where) : -1;
	int rank = find_rank_behind(hang, &unique);

	snprintf(begin, sizeof begin, "the job hangs: no step and no output for %d s",
		 silence_ms(hang) / 1000);
	*out = (struct job_hang_finding){.rank = rank < 0 ? odd : rank, .node = -1};
	if (hang->request->hang_timeout_ms) {
		print_stack(hang, out->rank, &left);
		/* One of each place: thousands of ranks may wait in the same one. */
		for (size_t i = 0; i < count; i += places[i].like ? places[i].like : 1)
			if (places[i].rank != out->rank)
				print_stack(hang, places[i].rank, &left);
	}
	free(places);
	out->stacks = hang->stacks;
	hang->stacks = NULL;
	if (rank < 0) {
		snprintf(out->text, sizeof out->text, "%s%s%s%s", begin,
			 odd < 0 ? ", and no rank is behind the others" : "", where[0] ? "; " : "",
			 where);
		return;
	}
	describe_rank(hang, rank, how, sizeof how);
	if (hang->ranks[rank].state == 'T' || hang->ranks[rank].state == 't')
		where[0] = '\0'; /* that of a stopped process does not matter */
	snprintf(out->text, sizeof out->text, "%s; rank %d on %s is behind%s%s%s%s", begin, rank,
		 node_name(hang, rank), unique ? "" : ", and so are others", how,
		 where[0] ? "; " : "", where);
	/* Only a process that is blocked in the kernel speaks against its node. */
	if (hang->ranks[rank].state == 'D')
		out->node = hang->ranks[rank].node;
}

/* ---- ranks that have not met the others ---- */

void job_hang_handle_joined(struct job_hang *hang, size_t node, const struct message_joined *joined)
{
	const struct plan_node *at = node_of(hang, node);
	const char *states = joined->states;

	for (size_t i = 0; at && i < at->rank_count && states[i]; i++)
		hang->ranks[at->ranks[i].rank].joined = states[i];
}

static int count_joined(const struct job_hang *hang, char joined)
{
	int count = 0;

	for (int i = 0; i < hang->plan->world_size; i++)
		count += hang->ranks[i].joined == joined;
	return count;
}

static void name_missing(struct job_hang *hang, int64_t now_ms)
{
	int missing = count_joined(hang, JOINED_NO), joined = count_joined(hang, JOINED_YES);
	json_t *ranks = json_array();
	struct idset *set = idset_new();
	char *names;

	for (int i = 0; i < hang->plan->world_size; i++)
		if (is_missing(hang, i) && set && !idset_add(set, i) &&
		    json_array_size(ranks) < NAMED_AT_MOST)
			json_array_append_new(ranks, json_integer(i));
	names = idset_format(set);
	job_note(hang->sink, LOG_WARNING,
		 "after %d s, %d ranks have connected to MASTER_PORT, and %d %s not: %.200s. "
		 "Do all ranks call init_process_group, with the MASTER_ADDR that berth run has "
		 "set? Their stacks follow",
		 MISSING_MS / 1000, joined, missing, missing == 1 ? "has" : "have",
		 names ? names : "?");
	free(names);
	idset_free(set);
	hang->missing_stacks_ms = now_ms;
	hang->stacks_received = 0;
	controller_send(hang->controller, MESSAGE_DUMP_STACKS, WIRE_ALL, 0, 0,
			&(struct message_dump_stacks){ranks, false}, NULL, 0, NULL);
}

/* Rank 0 listens at localhost, so ranks on other nodes find no listener on theirs. */
static void name_local(const struct job_hang *hang)
{
	const struct job_rank *ranks = hang->ranks;
	int local = 0, missing = 0, size = hang->plan->world_size;

	while (local < size && ranks[local].joined != JOINED_LOCAL)
		local++;
	while (local < size && missing < size &&
	       (ranks[missing].joined != JOINED_NO || ranks[missing].node == ranks[local].node))
		missing++;
	if (local == size || missing == size)
		return;
	job_note(hang->sink, LOG_WARNING,
		 "after %d s, rank %d on %s listens at localhost, and ranks on other nodes (such "
		 "as rank %d on %s) have not connected. Does the program set MASTER_ADDR to "
		 "localhost? Remove its lines that set MASTER_ADDR and MASTER_PORT; berth run sets "
		 "both",
		 MISSING_MS / 1000, local, node_name(hang, local), missing,
		 node_name(hang, missing));
}

static void check_missing(struct job_hang *hang, int64_t now_ms)
{
	int left = STACK_LINES;

	if (!hang->missing_named && now_ms - hang->begin_ms >= MISSING_MS &&
	    !count_joined(hang, 0)) {
		hang->missing_named = true;
		if (count_joined(hang, JOINED_YES) && count_joined(hang, JOINED_NO))
			name_missing(hang, now_ms);
		else
			name_local(hang);
		if (count_joined(hang, JOINED_ALONE))
			job_hang_check_apart(hang);
	}
	if (!hang->missing_stacks_ms || (hang->stacks_received < hang->plan->nodes_with_ranks &&
					 now_ms - hang->missing_stacks_ms < STACKS_MS))
		return;
	for (int i = 0; i < hang->plan->world_size; i++)
		if (is_missing(hang, i))
			print_stack(hang, i, &left);
	free(hang->stacks);
	hang->stacks = NULL;
	hang->missing_stacks_ms = 0;
}

void job_hang_check_apart(const struct job_hang *hang)
{
	int size = hang->ranks ? hang->plan->world_size : 1;

	if (size < 2)
		return;
	if (count_joined(hang, JOINED_ALONE) == size)
		job_note(hang->sink, LOG_WARNING,
			 "%d ranks have loaded MPICH or a relative of it without PMIx, so each may "
			 "be "
			 "a world of one: use an MPI that was built with PMIx, as Open MPI is, or "
			 "start this one with its own mpiexec in front of berth exec",
			 size);
	/* Each that serves itself may be a world of one, too. */
	if (count_joined(hang, JOINED_NO) < size && count_joined(hang, JOINED_LOCAL) < size)
		return;
	/* They may have met at another role's address. */
	if (hang->request->role)
		return;
	job_note(hang->sink, LOG_WARNING,
		 "%d ranks have loaded PyTorch or JAX, but none has connected to another one at "
		 "MASTER_PORT: each may have trained alone. With JAX, call berth.jax.initialize(); "
		 "with Lightning, leave out devices= and num_nodes=, or set the ranks per node and "
		 "the number of nodes",
		 size);
}

bool job_hang_check(struct job_hang *hang, int64_t now_ms, struct job_hang_finding *out)
{
	bool only_note = !hang->request || !hang->request->hang_timeout_ms;

	if (hang->ranks && !hang->stacks_requested_ms)
		check_missing(hang, now_ms);
	if (!hang->ranks || hang->missing_stacks_ms || (only_note && hang->request->pty))
		return false;
	if (!hang->stacks_requested_ms) {
		if (now_ms - hang->active_ms >= silence_ms(hang) &&
		    hang->noted_ms <= hang->active_ms)
			request_stacks(hang, now_ms);
		return false;
	}
	if (hang->active_ms > hang->stacks_requested_ms) {
		if (!only_note)
			job_note(hang->sink, LOG_NOTE, "the ranks made progress again");
		hang->stacks_requested_ms = 0;
		free(hang->stacks);
		hang->stacks = NULL;
		return false;
	}
	if (hang->stacks_received < hang->plan->nodes_with_ranks &&
	    now_ms - hang->stacks_requested_ms < STACKS_MS)
		return false;
	find_hang(hang, out);
	if (!only_note)
		return true;
	job_note(hang->sink, LOG_NOTE, "%s. berth run ends such a job only with --hang-timeout",
		 out->text);
	free(out->stacks);
	hang->stacks_requested_ms = 0;
	hang->noted_ms = now_ms;
	return false;
}
