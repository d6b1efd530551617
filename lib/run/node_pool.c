/* SPDX-License-Identifier: BSD-3-Clause */
/* Which nodes take part in the next attempt. A spare takes the index of the node that it replaces,
 * so all others keep their ranks. */
#include <stdlib.h>
#include <string.h>

#include "run/attempts.h"

#define MOST_FAILURES 2 /* failures that begin on a node before it is excluded */

int attempts_check(const struct attempts_policy *policy, const struct alloc *alloc,
		   struct error *err)
{
	size_t nodes = alloc->node_count, spares = (size_t)policy->spares,
	       least = (size_t)policy->min_nodes;

	if (!policy->max_restarts && (spares || least))
		return error_set(err, ERR_USAGE, "%s requires --max-restarts R",
				 spares ? "--spares" : "--min-nodes");
	if (spares >= nodes)
		return error_set(err, ERR_USAGE,
				 "--spares %zu leaves no node for the ranks: there %s %zu in the "
				 "job. Request more nodes or fewer spares.",
				 spares, nodes == 1 ? "is" : "are", nodes);
	if (least > nodes - spares)
		return error_set(
			err, ERR_USAGE,
			"--min-nodes %zu: the ranks start on %zu node%s%s; use at most that number",
			least, nodes - spares, nodes - spares == 1 ? "" : "s",
			spares ? ", not counting spares" : "");
	if (alloc->rendezvous && (spares || (least && least < nodes)))
		return error_set(err, ERR_USAGE,
				 "%s cannot be used when every machine is started by hand: the job "
				 "needs all of them. A lost machine may join again.",
				 spares ? "--spares" : "--min-nodes");
	return 0;
}

int node_pool_new(const struct alloc *alloc, const struct attempts_policy *policy,
		  struct node_pool *out, struct error *err)
{
	size_t count = alloc->node_count, spares = (size_t)policy->spares;
	struct node_pool node_pool = {
		.alloc = alloc,
		.min_nodes = policy->min_nodes ? (size_t)policy->min_nodes : count - spares,
		.nodes = calloc(count, sizeof *node_pool.nodes),
		.active_count = count - spares,
		.spare_count = spares,
		.failures = calloc(count, sizeof *node_pool.failures),
		.excluded_nodes = json_array(),
	};

	if (!node_pool.nodes || !node_pool.failures || !node_pool.excluded_nodes) {
		node_pool_free(&node_pool);
		return error_memory(err, "the nodes");
	}
	for (size_t i = 0; i < count; i++)
		node_pool.nodes[i] = i;
	*out = node_pool;
	return 0;
}

void node_pool_free(struct node_pool *node_pool)
{
	free(node_pool->nodes);
	free(node_pool->failures);
	json_decref(node_pool->excluded_nodes);
	memset(node_pool, 0, sizeof *node_pool);
}

int node_pool_alloc(const struct node_pool *node_pool, struct alloc *out, struct error *err)
{
	*out = *node_pool->alloc;
	out->node_count = node_pool->active_count + node_pool->spare_count;
	out->this_node = -1;
	out->nodes = calloc(out->node_count, sizeof *out->nodes);
	if (!out->nodes)
		return error_memory(err, "the nodes");
	for (size_t i = 0; i < out->node_count; i++) {
		out->nodes[i] = node_pool->alloc->nodes[node_pool->nodes[i]];
		if ((int)node_pool->nodes[i] == node_pool->alloc->this_node)
			out->this_node = (int)i;
	}
	return 0;
}

static void exclude_node(struct node_pool *node_pool, size_t node, const char *why, int attempt)
{
	json_array_append_new(node_pool->excluded_nodes,
			      json_pack("{s:s, s:s, s:i}", "node",
					node_pool->alloc->nodes[node].name, "why", why, "attempt",
					attempt));
}

/* Remove the node at index at of nodes. count is active_count or spare_count, depending on where
 * it is. */
static void drop(struct node_pool *node_pool, size_t at, size_t *count)
{
	size_t after = node_pool->active_count + node_pool->spare_count - at - 1;

	memmove(&node_pool->nodes[at], &node_pool->nodes[at + 1], after * sizeof *node_pool->nodes);
	--*count;
}

/* Exclude the active node at index at. Return 1, or 0 if the job cannot run without it. */
static size_t replace(struct node_pool *node_pool, size_t at, bool lost, int attempt,
		      const struct job_sink *sink)
{
	const char *why = lost ? "lost" : "it failed twice";
	size_t node = node_pool->nodes[at];
	const char *name = node_pool->alloc->nodes[node].name;

	if (node_pool->spare_count) {
		node_pool->nodes[at] = node_pool->nodes[node_pool->active_count];
		drop(node_pool, node_pool->active_count, &node_pool->spare_count);
		job_note(sink, LOG_WARNING, "%s is excluded (%s): spare node %s replaces it", name,
			 why, node_pool->alloc->nodes[node_pool->nodes[at]].name);
	} else if (node_pool->active_count > node_pool->min_nodes) {
		drop(node_pool, at, &node_pool->active_count);
		job_note(sink, LOG_WARNING, "%s is excluded (%s): the job continues on %zu node%s",
			 name, why, node_pool->active_count,
			 node_pool->active_count == 1 ? "" : "s");
	} else {
		if (lost)
			job_note(sink, LOG_WARNING,
				 "%s was lost, but the job will try it again: there is no spare, "
				 "and %zu node%s required (--min-nodes)",
				 name, node_pool->min_nodes,
				 node_pool->min_nodes == 1 ? " is" : "s are");
		return 0;
	}
	exclude_node(node_pool, node, why, attempt);
	return 1;
}

size_t node_pool_update(struct node_pool *node_pool, const struct job_result *result,
			const struct job_sink *sink)
{
	size_t active = node_pool->active_count, gone = 0, out = 0;

	/* Handle spares first: a lost one must not replace another node. */
	/* From the last one: drop moves those behind it. */
	for (size_t i = active + node_pool->spare_count; i-- > active;) {
		if (!result->lost || !result->lost[i])
			continue;
		job_note(sink, LOG_WARNING, "spare node %s was lost and is excluded",
			 node_pool->alloc->nodes[node_pool->nodes[i]].name);
		exclude_node(node_pool, node_pool->nodes[i], "lost spare", result->attempt);
		drop(node_pool, i, &node_pool->spare_count);
		out++;
	}
	for (size_t i = 0; i < active; i++) {
		/* result has the indices of before, and gone nodes of those are dropped by now. */
		size_t at = i - gone, before = node_pool->active_count;
		bool lost = result->lost && result->lost[i];

		if ((long)i == result->cause.node_index)
			node_pool->failures[node_pool->nodes[at]]++;
		if (!lost && ((long)i != result->cause.node_index ||
			      node_pool->failures[node_pool->nodes[at]] < MOST_FAILURES))
			continue;
		out += replace(node_pool, at, lost, result->attempt, sink);
		gone += before - node_pool->active_count;
	}
	return out;
}
