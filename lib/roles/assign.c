/* SPDX-License-Identifier: BSD-3-Clause */
/* Which nodes a role gets, from the options and the allocation alone: agents start only then, so
 * nothing is known of the nodes but what the scheduler said. */
#include "roles/roles.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "process/placeholders.h"

long roles_find(const struct role *roles, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(roles[i].name, name) || !strcmp(roles[i].base, name))
			return (long)i;
	return -1;
}

static int check_name(const struct role *roles, size_t i, struct error *err)
{
	char own[80], other[80];
	const char *name = roles[i].base;
	size_t size = strlen(name);

	for (size_t k = 0; k < size; k++)
		if (!isalnum((unsigned char)name[k]) && (!k || !strchr("-_", name[k])))
			size = 0;
	if (!size || size > ROLE_NAME_MAX || isdigit((unsigned char)*name) ||
	    !strcmp(name, ROLE_NONE))
		return error_set(err, ERR_USAGE,
				 "--role '%.100s': expected a name of at most %d letters, digits, "
				 "'-' and '_' that begins with a letter",
				 name, ROLE_NAME_MAX);
	placeholder_variable(roles[i].name, "", own, sizeof own);
	for (size_t k = 0; k < i; k++) {
		placeholder_variable(roles[k].name, "", other, sizeof other);
		if (!strcmp(own, other))
			return strcmp(name, roles[k].base)
				       ? error_set(err, ERR_USAGE,
						   "roles %s and %s have the same name in "
						   "variables (BERTH_ROLE_NAME_ADDR): rename one",
						   roles[k].name, roles[i].name)
				       : error_set(err, ERR_USAGE, "two roles are called %s", name);
	}
	return 0;
}

static int read_after(const struct role *roles, size_t count, size_t i, uint64_t *after,
		      struct error *err)
{
	const char *at = roles[i].after, *end;

	for (; at && *at && strcmp(at, ROLE_NONE) != 0; at = end + (*end == ',')) {
		char name[ROLE_NAME_MAX + 8];
		long k;

		end = at + strcspn(at, ",");
		snprintf(name, sizeof name, "%.*s", (int)(end - at), at);
		k = roles_find(roles, count, name);
		if (k < 0 || strcmp(roles[k].base, name) != 0) /* all its replicas */
			return error_set(err, ERR_USAGE, "--after %.100s: there is no such role",
					 at);
		*after |= UINT64_C(1) << k;
	}
	return 0;
}

int roles_rules(const struct role *roles, size_t count, struct role_rule *rules, struct error *err)
{
	long circle;

	for (size_t i = 0; i < count; i++) {
		rules[i] =
			(struct role_rule){.service = roles[i].service,
					   .offers = roles[i].ready.text,
					   .group = (int)roles_find(roles, count, roles[i].base),
					   .need = roles[i].need,
					   .after_default = !roles[i].after && !roles[i].service};
		if (read_after(roles, count, i, &rules[i].after, err))
			return -ERR_USAGE;
	}
	circle = roles_order(rules, count);
	return circle >= 0 ? error_set(err, ERR_USAGE, "--after %s: role %s would wait for itself",
				       roles[circle].after, roles[circle].name)
			   : 0;
}

/* How many replicas of a role belong to each replica of another one; 0: they don't divide. */
static int share_of(const struct role *of, const struct role *role)
{
	return of->replicas && role->replicas && !(of->replicas % role->replicas)
		       ? of->replicas / role->replicas
		       : 0;
}

static int check_placeholders(const struct role *roles, size_t count, const struct role *role,
			      struct error *err)
{
	struct placeholder found = {0};

	for (const char *const *word = role->argv; *word; word++)
		for (const char *at = *word; placeholder_find(at, &found);
		     at = found.at + found.size) {
			long of = *found.role ? roles_find(roles, count, found.role) : role - roles;
			int size = (int)found.size;

			if (found.is_plain)
				continue;
			if (of < 0)
				return error_set(err, ERR_USAGE,
						 "%.*s: there is no role %s; for this text itself, "
						 "write {%.*s}",
						 size, found.at, found.role, size, found.at);
			if (!found.lists && !found.mine && roles[of].replicas &&
			    !strcmp(roles[of].base, found.role))
				return error_set(err, ERR_USAGE,
						 "%.*s: role %s has replicas: write {%s.0.%s}, or "
						 "{%s.urls} for all",
						 size, found.at, found.role, found.role, found.what,
						 found.role);
			if (found.mine && !share_of(&roles[of], role))
				return error_set(
					err, ERR_USAGE,
					"%.*s: the %d replicas of %s cannot be shared out to "
					"the %d of %s",
					size, found.at, roles[of].replicas, found.role,
					role->replicas, role->base);
			if ((!strcmp(found.what, "ports") || !strcmp(found.what, "node_urls")) &&
			    !roles[of].ports)
				return error_set(err, ERR_USAGE, "%.*s: role %s has no --ports",
						 size, found.at, roles[of].name);
		}
	return 0;
}

static int check_on(const struct role *roles, size_t count, const struct role *role,
		    struct error *err)
{
	long of = role->on ? roles_find(roles, count, role->on) : -1;

	if (!role->on)
		return 0;
	if (of < 0)
		return error_set(err, ERR_USAGE, "--on %.100s: there is no such role", role->on);
	if (roles[of].on)
		return error_set(err, ERR_USAGE, "--on %s: that is itself --on %s", role->on,
				 roles[of].on);
	if (role->nodes || role->overlap || role->group >= 0)
		return error_set(err, ERR_USAGE,
				 "role %s: --on says on which nodes it is, so leave out --nodes, "
				 "--overlap, --het-group and --chunk",
				 role->name);
	return role->replicas && !share_of(&roles[of], role)
		       ? error_set(err, ERR_USAGE,
				   "--on %s: its %d replicas cannot be shared out to the %d of %s",
				   role->on, roles[of].replicas, role->replicas, role->base)
		       : 0;
}

int roles_check(const struct role *roles, size_t count, struct error *err)
{
	struct role_rule rules[ROLES_MAX];
	bool work = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		rc = check_name(roles, i, err);
		work |= !roles[i].service;
	}
	if (!rc)
		rc = roles_rules(roles, count, rules, err);
	for (size_t i = 0; !rc && i < count; i++)
		if (!(rc = check_on(roles, count, &roles[i], err)))
			rc = check_placeholders(roles, count, &roles[i], err);
	for (size_t i = 0; !rc && i < count; i++)
		if (roles[i].ready.of_block && roles[i].ready.port >= roles[i].ports)
			rc = error_set(err, ERR_USAGE,
				       "--ready '%.200s': role %s has %d ports of its own; give it "
				       "more with --ports N",
				       roles[i].ready.text, roles[i].name, roles[i].ports);
	if (!rc && !work)
		rc = error_set(err, ERR_USAGE,
			       "all roles are services, so the job would never end: leave out "
			       "--service for the program whose end is the job's");
	return rc;
}

static bool is_beside_others(const struct role *role)
{
	return !role->gpus_per_rank || role->overlap || role->on;
}

/* How many of the scheduler's GPUs or slots, of count nodes that begin with first and go up, or
 * down (step -1), hold the ranks? All, if these are too few. */
static size_t nodes_for_ranks(const struct role *role, const struct alloc_node *first, int step,
			      size_t count)
{
	int per_rank = role->gpus_per_rank > 0 ? role->gpus_per_rank : 1, left = role->ranks;
	size_t n = 0;

	if (role->ranks_per_node)
		return (size_t)((role->ranks + role->ranks_per_node - 1) / role->ranks_per_node);
	for (; left > 0 && n < count; n++, first += step) {
		int room = first->gpus > 0 ? first->gpus / per_rank : first->slots;

		left -= room > 0 ? room : 1;
	}
	return n;
}

/* The number of nodes that the options ask for, of count as above; 0: what is left. */
static size_t wanted(const struct role *role, const struct alloc_node *first, int step,
		     size_t count)
{
	if (role->nodes)
		return (size_t)role->nodes;
	if (role->ranks)
		return nodes_for_ranks(role, first, step, count);
	return is_beside_others(role) ? 1 : 0;
}

/* How many replicas fit on such a node. Only those that say what they need share one. */
static size_t replicas_per_node(const struct role *role, const struct alloc_node *node)
{
	int per_rank = role->gpus_per_rank > 0 ? role->gpus_per_rank : 1;
	int room = node->gpus > 0 ? node->gpus : node->slots, need = role->ranks * per_rank;

	return role->replicas && !role->nodes && need && need <= room ? (size_t)(room / need) : 1;
}

/* A role without GPUs of its own needs no group, but each other role does, if one has: else they
 * would be cut off from what is left. */
static int check_groups(const struct role *roles, size_t count, const struct alloc *alloc,
			struct error *err)
{
	long with = -1, without = -1;

	for (size_t i = 0; i < count; i++) {
		if (roles[i].group >= alloc->groups)
			return error_set(
				err, ERR_USAGE,
				"role %s asks for group %d, from 0, and the job has %d groups (%s)",
				roles[i].base, roles[i].group, alloc->groups, alloc->why);
		if (roles[i].group >= 0)
			with = (long)i;
		else if (!is_beside_others(&roles[i]))
			without = (long)i;
	}
	return with < 0 || without < 0
		       ? 0
		       : error_set(err, ERR_USAGE,
				   "role %s has --het-group or --chunk, so role %s needs it, too",
				   roles[with].base, roles[without].base);
}

/* The consecutive nodes of a group, or all (-1). */
struct part {
	const struct alloc *alloc;
	int group;
	size_t first, count;
};

static struct part part_of(const struct alloc *alloc, int group)
{
	struct part part = {alloc, group, 0, 0};

	while (group >= 0 && part.first < alloc->node_count &&
	       alloc->nodes[part.first].group != group)
		part.first++;
	while (part.first + part.count < alloc->node_count &&
	       (group < 0 || alloc->nodes[part.first + part.count].group == group))
		part.count++;
	return part;
}

static int too_many(const struct part *part, size_t taken, struct error *err)
{
	return error_set(err, ERR_USAGE,
			 "the roles need %zu nodes, and the %s has %zu (%s): give a role "
			 "fewer with --nodes or -n, or --gpus-per-rank 0 to a role that can "
			 "share its nodes with others",
			 taken, part->group < 0 ? "job" : "group", part->count, part->alloc->why);
}

/* The roles of a group with nodes of their own: those before the one that gets what is left from
 * the front, those after it from the back, so that all lie in their order. */
static int assign_own(const struct role *roles, size_t count, const struct part *part,
		      size_t *first, size_t *need, struct error *err)
{
	const struct alloc_node *nodes = part->alloc->nodes + part->first;
	size_t front = 0, back = part->count, taken = 0;
	long rest = -1;

	for (size_t i = 0; i < count; i++) {
		if (roles[i].group != part->group || is_beside_others(&roles[i]))
			continue;
		if (!roles[i].nodes && !roles[i].ranks && rest >= 0)
			return error_set(
				err, ERR_USAGE,
				"roles %s and %s have neither --nodes nor -n, and only one "
				"role can get the nodes that are left",
				roles[rest].name, roles[i].name);
		if (!roles[i].nodes && !roles[i].ranks)
			rest = (long)i;
	}
	for (size_t k = 0; k < count; k++) {
		bool before = rest < 0 || k < (size_t)rest;
		size_t i = before ? k : count - 1 - (k - (size_t)rest), left = back - front;
		/* Replicas share a node with the one before, or behind, as long as they fit. */
		size_t beside = before ? i - 1 : i + 1, last = before ? i : i + 1;
		size_t fit = replicas_per_node(&roles[i], nodes);

		if ((long)i == rest || roles[i].group != part->group || is_beside_others(&roles[i]))
			continue;
		if (fit > 1 && beside < count && !strcmp(roles[beside].base, roles[i].base) &&
		    (size_t)roles[last].replica % fit) {
			first[i] = first[beside];
			need[i] = need[beside];
			continue;
		}
		need[i] = wanted(&roles[i], before ? nodes + front : nodes + back - !!left,
				 before ? 1 : -1, left);
		need[i] += !need[i]; /* none is left */
		taken += need[i];
		if (taken + (rest >= 0) > part->count)
			continue;
		front += before ? need[i] : 0;
		back -= before ? 0 : need[i];
		first[i] = before ? front - need[i] : back;
	}
	if (taken + (rest >= 0) > part->count)
		return too_many(part, taken + (rest >= 0), err);
	if (rest >= 0) {
		first[rest] = front;
		need[rest] = back - front;
	}
	return 0;
}

static int assign_group(const struct role *roles, size_t count, const struct alloc *alloc,
			int group, bool *uses, struct error *err)
{
	size_t first[ROLES_MAX] = {0}, need[ROLES_MAX] = {0};
	struct part part = part_of(alloc, group);

	for (size_t i = 0; i < count; i++) {
		if (roles[i].group != group || roles[i].on)
			continue;
		if (!part.count)
			return error_set(err, ERR_USAGE,
					 "role %s asks for group %d (--chunk), and its chunks lie "
					 "on nodes of other groups: submit the job with "
					 "-l place=scatter",
					 roles[i].name, group);
		need[i] = wanted(&roles[i], alloc->nodes + part.first, 1, part.count);
		if (need[i] > part.count)
			return error_set(err, ERR_USAGE,
					 "role %s asks for %zu nodes, and the %s has %zu (%s)",
					 roles[i].name, need[i], group < 0 ? "job" : "group",
					 part.count, alloc->why);
		if (part.count == 1)
			need[i] = 1;
	}
	if (part.count > 1 && assign_own(roles, count, &part, first, need, err))
		return -ERR_USAGE;
	for (size_t i = 0; i < count; i++)
		for (size_t n = 0; roles[i].group == group && !roles[i].on && n < need[i]; n++)
			uses[i * alloc->node_count + part.first + first[i] + n] = true;
	return 0;
}

/* The nodes of --on: those of the role, or of its replicas that belong to this one. */
static void assign_on(const struct role *roles, size_t count, size_t nodes, size_t i, bool *uses)
{
	const struct role *role = &roles[i];
	long of = roles_find(roles, count, role->on);
	int share = share_of(&roles[of], role);

	for (size_t k = 0; k < count; k++) {
		bool is_its =
			(!strcmp(roles[k].base, role->on) || !strcmp(roles[k].name, role->on)) &&
			(!share || roles[k].replica / share == role->replica) &&
			!(share && role->on_first && roles[k].replica % share);

		for (size_t n = 0; is_its && n < nodes; n++) {
			uses[i * nodes + n] |= uses[k * nodes + n];
			is_its &= !(role->on_first && uses[k * nodes + n]);
		}
	}
}

int roles_assign(const struct role *roles, size_t count, const struct alloc *alloc, bool *uses,
		 bool *shared, struct error *err)
{
	size_t nodes = alloc->node_count;
	int rc = check_groups(roles, count, alloc, err);

	memset(uses, 0, count * nodes * sizeof *uses);
	for (int group = -1; !rc && group < alloc->groups; group++)
		rc = assign_group(roles, count, alloc, group, uses, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < count; i++)
		if (roles[i].on)
			assign_on(roles, count, nodes, i, uses);
	for (size_t i = 0; i < count; i++) {
		shared[i] = false;
		for (size_t k = 0; k < count; k++)
			for (size_t n = 0; n < nodes; n++)
				shared[i] |= k != i && !roles[i].overlap && !roles[k].overlap &&
					     uses[i * nodes + n] && uses[k * nodes + n];
	}
	return 0;
}
