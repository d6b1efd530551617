/* SPDX-License-Identifier: BSD-3-Clause */
#include "roles/decide.h"

#define SILENT_MS 60000

/* A role that is not a service is a step of the work: what comes after it needs its result. */
static bool is_done(const struct role_view *role)
{
	return role->state == ROLE_READY ? role->service || role->offers
					 : role->state == ROLE_OVER && !role->service;
}

static bool has_done_its_part(const struct role_view *roles, size_t count, size_t i)
{
	int done = 0;

	for (size_t k = 0; k < count; k++)
		done += roles[k].group == roles[i].group && is_done(&roles[k]);
	return roles[i].need ? done >= roles[i].need : is_done(&roles[i]);
}

/* Are enough replicas left without this one? */
static bool is_spare(const struct role_view *roles, size_t count, size_t i)
{
	int left = 0;

	for (size_t k = 0; k < count; k++)
		left += roles[k].group == roles[i].group && !roles[k].failed &&
			roles[k].state < ROLE_ENDING;
	return roles[i].need && left >= roles[i].need;
}

static bool names(uint64_t after, int group)
{
	return after >> group & 1;
}

/* All roles that role i comes after, also through others, as far as the user has named them. */
static uint64_t all_before(const struct role_view *roles, size_t count, size_t i)
{
	uint64_t all = roles[i].after, last = 0;

	while (all != last) {
		last = all;
		for (size_t a = 0; a < count; a++)
			all |= names(last, (int)a) ? roles[a].after : 0;
	}
	return all;
}

bool roles_waits_for(const struct role_view *roles, size_t count, size_t i, size_t k)
{
	uint64_t before_service = 0, before;
	bool needs_work = false;

	if (!roles[i].after_default || !roles[k].service)
		return names(roles[i].after, roles[k].group);
	for (size_t s = 0; s < count; s++)
		before_service |= roles[s].service ? all_before(roles, count, s) : 0;
	before = all_before(roles, count, k);
	for (size_t a = 0; a < count; a++)
		needs_work |= names(before, (int)a) && !roles[a].service;
	/* What prepares for a service does not wait for one that needs such a role. */
	return !(names(before_service, roles[i].group) && needs_work);
}

static bool may_start(const struct role_view *roles, size_t count, size_t i)
{
	for (size_t k = 0; k < count; k++)
		if (roles_waits_for(roles, count, i, k) && !has_done_its_part(roles, count, k))
			return false;
	return true;
}

/* Does another service that still runs come after it? */
static bool is_needed(const struct role_view *roles, size_t count, size_t i)
{
	for (size_t k = 0; k < count; k++)
		if (names(roles[k].after, roles[i].group) && roles[k].service &&
		    roles[k].state != ROLE_OVER)
			return true;
	return false;
}

/* Do all roles that plan before role i have their plans? One that takes what is left plans last. */
static bool has_turn(const struct role_view *roles, size_t count, size_t i)
{
	for (size_t k = 0; k < count; k++)
		if ((roles[k].takes_rest != roles[i].takes_rest ? roles[i].takes_rest : k < i) &&
		    roles[k].state < ROLE_PREPARED)
			return false;
	return true;
}

long roles_find_server(const struct role_view *roles, size_t count)
{
	bool client = false;
	long found = -1;

	for (size_t i = count; i-- > 0;) {
		const struct role_view *role = &roles[i];

		if (role->service)
			continue;
		if (role->finished || role->state == ROLE_OVER) {
			client |= role->finished;
			continue;
		}
		if (role->state != ROLE_READY || role->after || role->silent_ms < SILENT_MS)
			return -1;
		found = (long)i;
	}
	return client ? found : -1;
}

/* work: roles that are not services still have something to do. */
static bool is_failure(const struct role_view *roles, size_t count, size_t i, bool work, long first)
{
	return roles[i].failed && !roles[i].restarts && !is_spare(roles, count, i) &&
	       (work || !roles[i].service || first == (long)i);
}

void roles_decide(const struct role_view *roles, size_t count, bool interrupted, long *first,
		  enum role_action *actions)
{
	bool failed = false, stopped = false, work = false, known = true, prepared = true;

	for (size_t i = 0; i < count; i++) {
		stopped |= roles[i].stopped && roles[i].state == ROLE_OVER;
		work |= !roles[i].service && !roles[i].finished && roles[i].state != ROLE_OVER;
		known &= roles[i].state >= ROLE_KNOWN;
		prepared &= roles[i].state >= ROLE_PREPARED;
	}
	for (size_t i = 0; i < count; i++) {
		if (!is_failure(roles, count, i, work, *first))
			continue;
		if (*first < 0 && !interrupted)
			*first = (long)i;
		failed |= roles[i].state >= ROLE_ENDING;
	}
	for (size_t i = 0; i < count; i++) {
		const struct role_view *role = &roles[i];
		bool counts = is_failure(roles, count, i, work, *first);

		actions[i] = ROLE_WAIT;
		if (role->state == ROLE_OVER && role->failed && role->restarts && work && !failed &&
		    !stopped && !interrupted)
			actions[i] = ROLE_RESTART;
		else if (role->state == ROLE_OVER && role->failed && work &&
			 is_spare(roles, count, i))
			actions[i] = ROLE_FORGO;
		if (role->state >= ROLE_ENDING)
			continue;
		if (!work && role->service && (interrupted || (!failed && !counts)))
			actions[i] = is_needed(roles, count, i) ? ROLE_WAIT : ROLE_DISMISS;
		else if (interrupted)
			continue;
		else if (failed)
			actions[i] = ROLE_END;
		else if (stopped && !role->service)
			actions[i] = ROLE_STOP;
		else if (role->state == ROLE_KNOWN && known)
			/* One after the other, because each claims what it uses. */
			actions[i] = has_turn(roles, count, i) ? ROLE_PLAN : ROLE_PROBE;
		/* The ranks of each role learn where all others are. */
		else if (role->state == ROLE_PREPARED && prepared && may_start(roles, count, i))
			actions[i] = ROLE_START;
	}
}
