/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/nccl/watch.h"

#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"

#define NAMED_MAX 8 /* ranks in one text */

int64_t watch_slot(const volatile int64_t *slots, int index)
{
	return __atomic_load_n(&slots[index], __ATOMIC_ACQUIRE);
}

void watch_done(const volatile int64_t *slots, int count, struct watch_position *out)
{
	/* The first bucket completes first: its slot is never behind another's. */
	int64_t newest = count > 0 ? watch_slot(slots, 0) : 0;
	int bucket = 0;

	while (bucket < count && watch_slot(slots, bucket) >= newest && newest > 0)
		bucket++;
	out->step = newest;
	out->bucket = bucket;
}

static bool steps_under_way(const struct watch_sample *sample)
{
	return sample->done.step < sample->begun.step
		       ? sample->begun.bucket > 0 ||
				 (sample->done.step && sample->done.bucket < sample->buckets)
		       : sample->done.bucket < sample->begun.bucket;
}

static bool under_way(const struct watch_sample *sample)
{
	return steps_under_way(sample) || sample->done.calls < sample->begun.calls;
}

struct watch_position watch_next(const struct watch_sample *sample, bool *call)
{
	struct watch_position next = sample->done;

	*call = !steps_under_way(sample) && sample->done.calls < sample->begun.calls;
	if (!next.step) {
		/* No bucket of this run is complete: the step begun first is the newest, or close
		 * to it. */
		next.step = sample->begun.step;
		next.bucket = 0;
	} else if (next.step < sample->begun.step && next.bucket >= sample->buckets) {
		next.step++;
		next.bucket = 0;
	}
	next.calls = sample->done.calls;
	return next;
}

static bool same(const struct watch_position *a, const struct watch_position *b)
{
	return a->step == b->step && a->bucket == b->bucket && a->calls == b->calls;
}

enum watch_verdict watch_check(struct watch_state *state, const struct watch_sample *sample,
			       int timeout_ms)
{
	bool moved = !state->begun || !same(&state->last_done, &sample->done);

	if (sample->broken)
		return WATCH_BROKEN;
	/* New work extends the deadline only if nothing was in progress before: a host that runs
	 * ahead must not hide a GPU that hangs. */
	if (!same(&state->last_begun, &sample->begun)) {
		struct watch_sample before = *sample;

		before.begun = state->last_begun;
		moved = moved || !under_way(&before);
	}
	if (moved || sample->capturing)
		state->since_ms = sample->now_ms;
	state->begun = true;
	state->last_begun = sample->begun;
	state->last_done = sample->done;
	if (sample->now_ms - state->since_ms < timeout_ms)
		return WATCH_FINE;
	return under_way(sample) ? WATCH_STALLED : WATCH_IDLE;
}

/* ---- text ---- */

struct text {
	char *at;
	size_t size;
};

#define append(text, ...) text_append((text)->at, (text)->size, __VA_ARGS__)

static void add_position(struct text *text, const struct watch_report *report)
{
	if (report->call)
		append(text, "collective %" PRIu64 " (after step %" PRId64 ")",
		       report->next.calls + 1, report->next.step);
	else
		append(text, "step %" PRId64 ", bucket %d", report->next.step, report->next.bucket);
}

static bool same_report(const struct watch_report *a, const struct watch_report *b)
{
	return a->idle == b->idle && a->call == b->call && same(&a->next, &b->next);
}

void watch_text(int rank, int size, const char (*hosts)[64], const struct watch_report *own,
		const struct watch_report *const *reports, int timeout_ms, char *text,
		size_t text_size)
{
	struct text out = {text, text_size};
	int named = 0, more = 0;

	*text = '\0';
	append(&out, "rank %d on %s waited %d s at ", rank, hosts[rank], timeout_ms / 1000);
	add_position(&out, own);
	for (int other = 0; other < size; other++) {
		if (other == rank || (reports[other] && same_report(reports[other], own)))
			continue;
		if (named == NAMED_MAX) {
			more++;
			continue;
		}
		append(&out, "%s rank %d on %s ", named++ ? ";" : " for", other, hosts[other]);
		if (!reports[other]) {
			append(&out, "(does not respond: it has ended or hangs)");
		} else {
			append(&out,
			       reports[other]->idle ? "(not in a collective; last at " : "(at ");
			add_position(&out, reports[other]);
			append(&out, ")");
		}
	}
	if (more)
		append(&out, " and %d more", more);
	if (!named)
		append(&out, ", and so did all other ranks: the network or a GPU has stalled");
	append(&out, ". Look for earlier errors in %s output, or raise --comm-timeout",
	       named == 1 ? "that rank's" : "those ranks'");
}
