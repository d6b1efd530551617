/* SPDX-License-Identifier: BSD-3-Clause */
/* The order of the questions is the order of their worth: what this machine knows for certain comes
 * before what the job's identity implies, then the scheduler's word, and only then a date, since
 * clocks jump. */
#include "train/checkpoint/lease_state.h"

#include <stdio.h>
#include <string.h>

#define RUNNING "that process is running"

const struct lease_rule lease_rules[] = {
	[LEASE_RELEASED] = {.stale = true},
	[LEASE_FORCED] = {.stale = true, .why_stale = "--take-over"},
	[LEASE_HERE] = {.watch = LEASE_WATCH_PROCESS, .why_alive = RUNNING},
	/* A requeued job's last attempt may still be ending. */
	[LEASE_HERE_SAME_JOB] = {.watch = LEASE_WATCH_PROCESS,
				 .process_ms = 10000,
				 .why_alive = RUNNING},
	[LEASE_PREDECESSOR] = {.stale = true}, /* a predecessor's lease is this job's own */
	[LEASE_SAME_JOB] = {.watch = LEASE_WATCH_RENEWALS,
			    .why_alive = "its lease is being renewed, so another run of the same "
					 "job is alive"},
	[LEASE_JOB_ENDED] = {.stale = true},
	[LEASE_JOB_LISTED] = {.why_alive = "its scheduler still lists that job"},
	/* A clock may have jumped since: a live run renews its lease. */
	[LEASE_EXPIRED] = {.watch = LEASE_WATCH_RENEWALS,
			   .why_alive = "its lease is being renewed, so that run is alive"},
};

/* Is word in the comma-separated list? */
static bool list_contains(const char *list, const char *word)
{
	size_t size = strlen(word);

	for (const char *at = list; size && *at; at += strspn(at, ", ")) {
		size_t length = strcspn(at, ", ");

		if (length == size && !strncmp(at, word, size))
			return true;
		at += length;
	}
	return false;
}

enum lease_state lease_state_of(const struct lease_facts *facts)
{
	const struct lease_record *record = facts->record;
	const struct lease_identity *self = facts->self;
	bool same = *record->job && !strcmp(record->job, self->job) &&
		    !strcmp(record->scheduler, self->scheduler);

	if (record->released)
		return LEASE_RELEASED;
	if (facts->take_over)
		return LEASE_FORCED;
	if (*record->boot && !strcmp(record->boot, facts->boot))
		return same ? LEASE_HERE_SAME_JOB : LEASE_HERE;
	if (list_contains(self->predecessors, record->job) ||
	    (same && record->attempt < self->attempt))
		return LEASE_PREDECESSOR;
	if (same)
		return LEASE_SAME_JOB;
	if (!facts->has_asked)
		return LEASE_NEEDS_SCHEDULER;
	if (facts->ended >= 0)
		return facts->ended ? LEASE_JOB_ENDED : LEASE_JOB_LISTED;
	if (!facts->has_age)
		return LEASE_NEEDS_AGE;
	if (facts->age_s < -60)
		return LEASE_FUTURE;
	return facts->age_s < LEASE_STALE_MS * 1e-3 ? LEASE_FRESH : LEASE_EXPIRED;
}

void lease_state_text(const struct lease_facts *facts, enum lease_state state, bool stale,
		      char *text, size_t size)
{
	const struct lease_rule *rule = &lease_rules[state];
	const char *why = stale ? rule->why_stale : rule->why_alive;

	snprintf(text, size, "%s", why ? why : "");
	if (state == LEASE_JOB_ENDED)
		snprintf(text, size, "%s reports that the job has ended", facts->record->scheduler);
	else if (state == LEASE_FUTURE)
		snprintf(text, size,
			 "its lease is dated %.0f s in the future: a clock has jumped, so the "
			 "file's age is meaningless",
			 -facts->age_s);
	else if (state == LEASE_FRESH)
		snprintf(text, size,
			 "its lease was renewed %.0f s ago and expires %.0f s after the last "
			 "renewal",
			 facts->age_s > 0 ? facts->age_s : 0, LEASE_STALE_MS * 1e-3);
	else if (state == LEASE_EXPIRED && stale)
		snprintf(text, size, "its lease has not been renewed for %.0f s", facts->age_s);
}
