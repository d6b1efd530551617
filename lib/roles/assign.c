/* SPDX-License-Identifier: BSD-3-Clause */
/* Which nodes a role gets, from the options and the allocation alone: agents start only then, so
 * nothing is known of the nodes but what the scheduler said. */
#include "roles/roles.h"

#include <ctype.h>
#include <string.h>

static long find(const struct role *roles, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(roles[i].name, name))
			return (long)i;
	return -1;
}

static int check_name(const struct role *roles, size_t i, struct error *err)
{
	const char *name = roles[i].name;
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
	if (find(roles, i, name) >= 0)
		return error_set(err, ERR_USAGE, "two roles are called %s", name);
	return 0;
}

static int check_after(const struct role *roles, size_t count, size_t i, struct error *err)
{
	long at = (long)i;

	for (size_t steps = 0; at >= 0 && roles[at].after && strcmp(roles[at].after, ROLE_NONE);
	     steps++) {
		long next = find(roles, count, roles[at].after);

		if (next < 0)
			return error_set(err, ERR_USAGE, "--after %.100s: there is no such role",
					 roles[at].after);
		if (steps == count || next == (long)i)
			return error_set(err, ERR_USAGE,
					 "--after %s: role %s would wait for itself",
					 roles[i].after, roles[i].name);
		at = next;
	}
	return 0;
}

int roles_check(const struct role *roles, size_t count, struct error *err)
{
	bool work = false;
	int rc = 0;

	for (size_t i = 0; !rc && i < count; i++) {
		rc = check_name(roles, i, err);
		work |= !roles[i].service;
	}
	for (size_t i = 0; !rc && i < count; i++)
		rc = check_after(roles, count, i, err);
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
	return !role->gpus_per_rank || role->overlap;
}

/* How many of the scheduler's GPUs or slots, of these and the next nodes, hold the ranks? */
static int nodes_for_ranks(const struct role *role, const struct alloc *alloc)
{
	int per_rank = role->gpus_per_rank > 0 ? role->gpus_per_rank : 1, left = role->ranks;
	int nodes = 0;

	if (role->ranks_per_node)
		return (role->ranks + role->ranks_per_node - 1) / role->ranks_per_node;
	for (size_t n = 0; left > 0 && n < alloc->node_count; n++, nodes++) {
		const struct alloc_node *node = &alloc->nodes[n];
		int room = node->gpus > 0 ? node->gpus / per_rank : node->slots;

		left -= room > 0 ? room : 1;
	}
	return left > 0 ? (int)alloc->node_count : nodes;
}

/* The number of nodes that the options ask for; 0: what is left. */
static int wanted(const struct role *role, const struct alloc *alloc)
{
	if (role->nodes)
		return role->nodes;
	if (role->ranks)
		return nodes_for_ranks(role, alloc);
	return is_beside_others(role) ? 1 : 0;
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
				roles[i].name, roles[i].group, alloc->groups, alloc->why);
		if (roles[i].group >= 0)
			with = (long)i;
		else if (!is_beside_others(&roles[i]))
			without = (long)i;
	}
	return with < 0 || without < 0
		       ? 0
		       : error_set(err, ERR_USAGE,
				   "role %s has --het-group or --chunk, so role %s needs it, too",
				   roles[with].name, roles[without].name);
}

/* The roles of a group share out its nodes, which are consecutive; group -1: of all nodes. */
static int assign_group(const struct role *roles, size_t count, const struct alloc *alloc,
			int group, bool *uses, struct error *err)
{
	struct alloc part = *alloc;
	size_t first_node = 0, nodes, next = 0;
	long taken = 0, rest = -1;

	while (group >= 0 && first_node < alloc->node_count &&
	       alloc->nodes[first_node].group != group)
		first_node++;
	part.nodes += first_node;
	part.node_count = 0;
	while (first_node + part.node_count < alloc->node_count &&
	       (group < 0 || part.nodes[part.node_count].group == group))
		part.node_count++;
	nodes = part.node_count;
	for (size_t i = 0; i < count; i++) {
		int need = wanted(&roles[i], &part);

		if (roles[i].group != group)
			continue;
		if (!nodes)
			return error_set(err, ERR_USAGE,
					 "role %s asks for group %d (--chunk), and its chunks lie "
					 "on nodes of other groups: submit the job with "
					 "-l place=scatter",
					 roles[i].name, group);
		if (need > (int)nodes)
			return error_set(err, ERR_USAGE,
					 "role %s asks for %d nodes, and the %s has %zu (%s)",
					 roles[i].name, need, group < 0 ? "job" : "group", nodes,
					 alloc->why);
		if (nodes == 1 || is_beside_others(&roles[i]))
			continue;
		if (!need && rest >= 0)
			return error_set(
				err, ERR_USAGE,
				"roles %s and %s have neither --nodes nor -n, and only one "
				"role can get the nodes that are left",
				roles[rest].name, roles[i].name);
		if (!need)
			rest = (long)i;
		taken += need;
	}
	if (taken + (rest >= 0) > (long)nodes)
		return error_set(
			err, ERR_USAGE,
			"the roles need %ld nodes, and the %s has %zu (%s): give a role "
			"fewer with --nodes or -n, or --gpus-per-rank 0 to a role that can "
			"share its nodes with others",
			taken + (rest >= 0), group < 0 ? "job" : "group", nodes, alloc->why);
	for (size_t i = 0; i < count; i++) {
		bool beside = nodes == 1 || is_beside_others(&roles[i]);
		size_t need = (size_t)wanted(&roles[i], &part), first = beside ? 0 : next;

		if (roles[i].group != group)
			continue;
		if (nodes == 1)
			need = 1;
		else if (!need)
			need = nodes - (size_t)taken;
		for (size_t n = 0; n < need; n++)
			uses[i * alloc->node_count + first_node + first + n] = true;
		next += beside ? 0 : need;
	}
	return 0;
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
	for (size_t i = 0; i < count; i++) {
		shared[i] = false;
		for (size_t k = 0; k < count; k++)
			for (size_t n = 0; n < nodes; n++)
				shared[i] |= k != i && !roles[i].overlap && !roles[k].overlap &&
					     uses[i * nodes + n] && uses[k * nodes + n];
	}
	return 0;
}
