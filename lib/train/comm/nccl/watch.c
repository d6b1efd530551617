/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/nccl/watch.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define NAMED_MAX 8 /* ranks in a text */

void watch_done(const volatile int64_t *slots, int count, struct watch_place *out)
{
	/* The first bucket is the first to be done: its slot is never behind another's. */
	int64_t newest = count > 0 ? slots[0] : 0;
	int bucket = 0;

	while (bucket < count && slots[bucket] >= newest && newest > 0)
		bucket++;
	out->step = newest;
	out->bucket = bucket;
}

static bool steps_under_way(const struct watch_seen *seen)
{
	return seen->done.step < seen->begun.step
		       ? seen->begun.bucket > 0 ||
				 (seen->done.step && seen->done.bucket < seen->buckets)
		       : seen->done.bucket < seen->begun.bucket;
}

bool watch_under_way(const struct watch_seen *seen)
{
	return steps_under_way(seen) || seen->done.calls < seen->begun.calls;
}

struct watch_place watch_next(const struct watch_seen *seen, bool *call)
{
	struct watch_place next = seen->done;

	*call = !steps_under_way(seen) && seen->done.calls < seen->begun.calls;
	if (!next.step) {
		/* Not one bucket of this run is done: what was begun first is the newest, or near
		 * it. */
		next.step = seen->begun.step;
		next.bucket = 0;
	} else if (next.step < seen->begun.step && next.bucket >= seen->buckets) {
		next.step++;
		next.bucket = 0;
	}
	next.calls = seen->done.calls;
	return next;
}

static bool same(const struct watch_place *a, const struct watch_place *b)
{
	return a->step == b->step && a->bucket == b->bucket && a->calls == b->calls;
}

enum watch_verdict watch_look(struct watch_state *state, const struct watch_seen *seen,
			      int timeout_ms)
{
	bool moved = !state->begun || !same(&state->last_done, &seen->done);
	bool under_way = watch_under_way(seen);

	if (seen->broken)
		return WATCH_BROKEN;
	/* What is handed over anew gives time only where nothing was under way before: a host that
	 * runs ahead must not hide a GPU that stands still. */
	if (!same(&state->last_begun, &seen->begun)) {
		struct watch_seen before = *seen;

		before.begun = state->last_begun;
		moved = moved || !watch_under_way(&before);
	}
	if (moved || seen->capturing)
		state->since_ms = seen->now_ms;
	state->begun = true;
	state->last_begun = seen->begun;
	state->last_done = seen->done;
	if (seen->now_ms - state->since_ms < timeout_ms)
		return WATCH_FINE;
	return under_way ? WATCH_LATE : WATCH_IDLE;
}

/* ---- words ---- */

struct text {
	char *at;
	size_t left;
};

static void __attribute__((format(printf, 2, 3))) add(struct text *text, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(text->at, text->left, format, ap);
	va_end(ap);
	size_t used = n < 0		       ? 0
		      : (size_t)n < text->left ? (size_t)n
		      : text->left	       ? text->left - 1
					       : 0;

	text->at += used;
	text->left -= used;
}

static void add_place(struct text *text, const struct watch_word *word)
{
	if (word->call)
		add(text, "collective %" PRIu64 " (after step %" PRId64 ")", word->next.calls + 1,
		    word->next.step);
	else
		add(text, "step %" PRId64 ", bucket %d", word->next.step, word->next.bucket);
}

static bool same_word(const struct watch_word *a, const struct watch_word *b)
{
	return a->idle == b->idle && a->call == b->call && same(&a->next, &b->next);
}

void watch_text(int rank, int size, const char (*hosts)[64], const struct watch_word *own,
		const struct watch_word *const *words, int timeout_ms, char *text, size_t text_size)
{
	struct text out = {text, text_size};
	int named = 0, more = 0;

	add(&out, "rank %d on %s waited %d s at ", rank, hosts[rank], timeout_ms / 1000);
	add_place(&out, own);
	for (int other = 0; other < size; other++) {
		if (other == rank || (words[other] && same_word(words[other], own)))
			continue;
		if (named == NAMED_MAX) {
			more++;
			continue;
		}
		add(&out, "%s rank %d on %s ", named++ ? ";" : " for", other, hosts[other]);
		if (!words[other]) {
			add(&out, "(says nothing: ended, or hangs)");
		} else {
			add(&out, words[other]->idle ? "(works elsewhere, last at " : "(at ");
			add_place(&out, words[other]);
			add(&out, ")");
		}
	}
	if (more)
		add(&out, " and %d more", more);
	if (!named)
		add(&out, ", and all other ranks with it: the network or a GPU stands still");
	add(&out, "; look at %s last lines, or give more time by --comm-timeout",
	    named == 1 ? "that rank's" : "the ranks'");
}
