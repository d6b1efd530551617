/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "controller/attempts.h"

#define MOST_FAILURES 2 /* that begin on a node before it is left out */

int attempts_check(const struct attempts_policy *policy, const struct alloc *alloc,
		   struct error *err)
{
	size_t nodes = alloc->node_count, spares = policy->spares, least = policy->min_nodes;

	if (!policy->max_restarts && (spares || least))
		return error_set(err, ERR_USAGE,
				 "%s is about what is started again: it needs --max-restarts R",
				 spares ? "--spares" : "--min-nodes");
	if (spares >= nodes)
		return error_set(err, ERR_USAGE,
				 "--spares %zu leaves no node for the ranks: there %s %zu; ask the "
				 "scheduler for more, or for fewer spares",
				 spares, nodes == 1 ? "is" : "are", nodes);
	if (least > nodes - spares)
		return error_set(err, ERR_USAGE,
				 "--min-nodes %zu: the ranks have %zu node%s from the start%s; expected "
				 "at most that",
				 least, nodes - spares, nodes - spares == 1 ? "" : "s",
				 spares ? ", without the spares" : "");
	if (alloc->meet && (spares || (least && least < nodes)))
		return error_set(err, ERR_USAGE,
				 "%s: here each machine was started by itself, and the job needs all "
				 "of them; a machine that was lost may come back to it",
				 spares ? "--spares" : "--min-nodes");
	return 0;
}

int pool_new(const struct alloc *alloc, const struct attempts_policy *policy, struct pool *out,
	     struct error *err)
{
	size_t count = alloc->node_count;
	struct pool pool = {.alloc = alloc,
			    .active = calloc(count, sizeof *pool.active),
			    .spares = calloc(count, sizeof *pool.spares),
			    .failures = calloc(count, sizeof *pool.failures),
			    .left_out = json_array()};

	if (!pool.active || !pool.spares || !pool.failures || !pool.left_out) {
		pool_free(&pool);
		return error_memory(err, "the nodes");
	}
	for (size_t i = 0; i < count; i++) {
		if (i < count - policy->spares)
			pool.active[pool.active_count++] = i;
		else
			pool.spares[pool.spare_count++] = i;
	}
	pool.min_nodes = policy->min_nodes ? policy->min_nodes : pool.active_count;
	*out = pool;
	return 0;
}

void pool_free(struct pool *pool)
{
	free(pool->active);
	free(pool->spares);
	free(pool->failures);
	json_decref(pool->left_out);
	memset(pool, 0, sizeof *pool);
}

int pool_alloc(const struct pool *pool, struct alloc *out, struct error *err)
{
	*out = *pool->alloc;
	out->node_count = pool->active_count + pool->spare_count;
	out->this_node = -1;
	out->nodes = calloc(out->node_count, sizeof *out->nodes);
	if (!out->nodes)
		return error_memory(err, "the nodes");
	for (size_t i = 0; i < out->node_count; i++) {
		size_t node = i < pool->active_count ? pool->active[i]
						     : pool->spares[i - pool->active_count];

		out->nodes[i] = pool->alloc->nodes[node];
		if ((int)node == pool->alloc->this_node)
			out->this_node = (int)i;
	}
	return 0;
}

struct teller {
	void (*note)(void *context, const char *text);
	void *context;
};

static void tell(const struct teller *teller, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
static void tell(const struct teller *teller, const char *format, ...)
{
	char text[600];
	va_list ap;

	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	teller->note(teller->context, text);
}

static void leave_out(struct pool *pool, size_t node, const char *why, int attempt)
{
	json_array_append_new(pool->left_out,
			      json_pack("{s:s, s:s, s:i}", "node", pool->alloc->nodes[node].name,
					"why", why, "attempt", attempt));
}

static void drop(size_t *list, size_t *count, size_t at)
{
	memmove(&list[at], &list[at + 1], (--*count - at) * sizeof *list);
}

/* Do without the node at a place of active. 1, or 0 where that cannot be. */
static size_t replace(struct pool *pool, size_t at, bool lost, int attempt,
		      const struct teller *teller)
{
	const char *why = lost ? "lost" : "it failed twice";
	size_t node = pool->active[at];
	const char *name = pool->alloc->nodes[node].name;

	if (pool->spare_count) {
		pool->active[at] = pool->spares[0];
		drop(pool->spares, &pool->spare_count, 0);
		tell(teller, "%s is left out (%s): %s, a spare, takes its place", name, why,
		     pool->alloc->nodes[pool->active[at]].name);
	} else if (pool->active_count > pool->min_nodes) {
		drop(pool->active, &pool->active_count, at);
		tell(teller, "%s is left out (%s): the job goes on with %zu node%s", name, why,
		     pool->active_count, pool->active_count == 1 ? "" : "s");
	} else {
		if (lost)
			tell(teller, "%s is lost and tried again: no spare is there, and %zu node%s "
				     "needed (--min-nodes)",
			     name, pool->min_nodes, pool->min_nodes == 1 ? " is" : "s are");
		return 0;
	}
	leave_out(pool, node, why, attempt);
	return 1;
}

size_t pool_learn(struct pool *pool, const struct job_result *result,
		  void (*note)(void *context, const char *text), void *context)
{
	const struct teller teller = {note, context};
	size_t active = pool->active_count, gone = 0, out = 0;

	/* Spares first: a lost one takes nobody's place. */
	for (size_t i = pool->spare_count; i-- > 0;) {
		if (!result->lost || !result->lost[active + i])
			continue;
		tell(&teller, "%s, a spare, is lost and left out",
		     pool->alloc->nodes[pool->spares[i]].name);
		leave_out(pool, pool->spares[i], "lost, a spare", result->attempt);
		drop(pool->spares, &pool->spare_count, i);
		out++;
	}
	for (size_t i = 0; i < active; i++) {
		size_t at = i - gone, before = pool->active_count;
		bool lost = result->lost && result->lost[i];

		if ((long)i == result->node_index)
			pool->failures[pool->active[at]]++;
		if (!lost && ((long)i != result->node_index ||
			      pool->failures[pool->active[at]] < MOST_FAILURES))
			continue;
		out += replace(pool, at, lost, result->attempt, &teller);
		gone += before - pool->active_count;
	}
	return out;
}
