/* SPDX-License-Identifier: BSD-3-Clause */
#include "roles/decide.h"

#define SILENT_MS 60000

/* A role that is not a service is a step of the work: what comes after it needs its result. */
static bool is_done(const struct role_view *role)
{
	return role->state == ROLE_READY ? role->rule->service || role->rule->offers
					 : role->state == ROLE_OVER && !role->rule->service;
}

static bool has_done_its_part(const struct role_view *roles, size_t count, size_t i)
{
	int done = 0;

	for (size_t k = 0; k < count; k++)
		done += roles[k].rule->group == roles[i].rule->group && is_done(&roles[k]);
	return roles[i].rule->need ? done >= roles[i].rule->need : is_done(&roles[i]);
}

/* Are enough replicas left without this one? */
static bool is_spare(const struct role_view *roles, size_t count, size_t i)
{
	int left = 0;

	for (size_t k = 0; k < count; k++)
		left += roles[k].rule->group == roles[i].rule->group && !roles[k].failed &&
			roles[k].state < ROLE_ENDING;
	return roles[i].rule->need && left >= roles[i].rule->need;
}

static bool has(uint64_t mask, int group)
{
	return mask >> group & 1;
}

/* All roles in a mask, and those that they wait for. */
static uint64_t all_before(const struct role_rule *rules, size_t count, uint64_t all)
{
	uint64_t last = 0;

	while (all != last) {
		last = all;
		for (size_t a = 0; a < count; a++)
			all |= has(last, (int)a) ? rules[a].waits : 0;
	}
	return all;
}

long roles_order(struct role_rule *rules, size_t count)
{
	uint64_t before[ROLES_MAX], before_services = 0, services = 0;

	for (size_t i = 0; i < count; i++) {
		rules[i].waits = rules[i].after;
		services |= (uint64_t)rules[i].service << rules[i].group;
	}
	for (size_t i = 0; i < count; i++) {
		before[i] = all_before(rules, count, rules[i].after);
		before_services |= rules[i].service ? before[i] : 0;
	}
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; rules[i].after_default && k < count; k++)
			/* What prepares for a service waits for services that need no such role. */
			if (rules[k].service &&
			    !(has(before_services, rules[i].group) && before[k] & ~services))
				rules[i].waits |= UINT64_C(1) << rules[k].group;
	for (size_t i = 0; i < count; i++)
		if (has(all_before(rules, count, rules[i].waits), rules[i].group))
			return (long)i;
	return -1;
}

static bool may_start(const struct role_view *roles, size_t count, size_t i)
{
	for (size_t k = 0; k < count; k++)
		if (has(roles[i].rule->waits, roles[k].rule->group) &&
		    !has_done_its_part(roles, count, k))
			return false;
	return true;
}

/* Does another service that still runs come after it? */
static bool is_needed(const struct role_view *roles, size_t count, size_t i)
{
	for (size_t k = 0; k < count; k++)
		if (has(roles[k].rule->after, roles[i].rule->group) && roles[k].rule->service &&
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

		if (roles[i].rule->service)
			continue;
		if (role->finished || role->state == ROLE_OVER) {
			client |= role->finished;
			continue;
		}
		if (role->state != ROLE_READY || roles[i].rule->after ||
		    role->silent_ms < SILENT_MS)
			return -1;
		found = (long)i;
	}
	return client ? found : -1;
}

/* work: roles that are not services still have something to do. */
static bool is_failure(const struct role_view *roles, size_t count, size_t i, bool work, long first)
{
	return roles[i].failed && !roles[i].restarts && !is_spare(roles, count, i) &&
	       (work || !roles[i].rule->service || first == (long)i);
}

void roles_decide(const struct role_view *roles, size_t count, bool interrupted, long *first,
		  enum role_action *actions)
{
	bool failed = false, stopped = false, work = false, known = true, prepared = true;

	for (size_t i = 0; i < count; i++) {
		stopped |= roles[i].stopped && roles[i].state == ROLE_OVER;
		work |= !roles[i].rule->service && !roles[i].finished &&
			roles[i].state != ROLE_OVER;
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
		if (!work && roles[i].rule->service && (interrupted || (!failed && !counts)))
			actions[i] = is_needed(roles, count, i) ? ROLE_WAIT : ROLE_DISMISS;
		else if (interrupted)
			continue;
		else if (failed)
			actions[i] = ROLE_END;
		else if (stopped && !roles[i].rule->service)
			actions[i] = ROLE_STOP;
		else if (role->state == ROLE_KNOWN && known)
			/* One after the other, because each claims what it uses. */
			actions[i] = has_turn(roles, count, i) ? ROLE_PLAN : ROLE_PROBE;
		/* The ranks of each role learn where all others are. */
		else if (role->state == ROLE_PREPARED && prepared && may_start(roles, count, i))
			actions[i] = ROLE_START;
	}
}
