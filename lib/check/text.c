/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "check/check_internal.h"

void check_add(struct check *check, size_t node, const char *probe, enum check_result result,
	       const char *fix, const char *format, ...)
{
	static const char *const names[] = {"ok", "ok", "fault", "skipped"};
	char seen[1024];
	va_list ap;

	va_start(ap, format);
	vsnprintf(seen, sizeof seen, format, ap);
	va_end(ap);
	json_array_append_new(check->nodes[node].results,
			      json_pack("{s:s, s:s, s:o, s:o, s:b}", "name", probe, "result",
					names[result], "seen", json_text(seen), "fix",
					json_text(fix && *fix ? fix : NULL), "note",
					result == CHECK_NOTE));
}

const json_t *check_answer(const struct check *check, size_t node, const char *probe)
{
	const json_t *answer = json_object_get(check->nodes[node].answers, probe);

	return json_is_object(answer) ? answer : NULL;
}

const char *check_text(const json_t *answer, const char *key)
{
	const char *text = json_string_value(json_object_get(answer, key));

	return text ? text : "";
}

bool check_address_usable(const struct check *check, const struct inventory_address *address)
{
	if (!address->up || address->link_local)
		return false;
	return check->simulated ? address->type == IFACE_LOOPBACK : address->type == IFACE_PHYSICAL;
}

bool check_same_subnet(const struct inventory_address *a, const struct inventory_address *b)
{
	return a->prefix == b->prefix && inventory_address_in_subnet(a, b);
}

const struct inventory_address *check_address_in_subnet(const struct check *check, size_t node,
							const struct inventory_address *other,
							bool usable)
{
	const struct inventory *inventory = &check->inventories[node];

	for (size_t a = 0; a < inventory->address_count; a++)
		if (check_same_subnet(&inventory->addresses[a], other) &&
		    (!usable || check_address_usable(check, &inventory->addresses[a])))
			return &inventory->addresses[a];
	return NULL;
}

bool check_better_address(const struct inventory *inventory_a, const struct inventory_address *a,
			  const struct inventory *inventory_b, const struct inventory_address *b)
{
	int priority_a = plan_address_priority(inventory_a, a),
	    priority_b = plan_address_priority(inventory_b, b);

	return priority_a != priority_b ? priority_a > priority_b : a->speed_mbps > b->speed_mbps;
}

int check_chosen_address(const struct check *check, size_t node)
{
	const struct inventory *inventory = &check->inventories[node];
	const struct inventory_address *first_address = NULL;
	int kin = -1;

	if (!check->planned || !*check->plan.nodes[node].iface)
		return -1;
	for (size_t a = 0; a < check->inventories[0].address_count; a++) {
		char text[80];

		inventory_address_format(&check->inventories[0].addresses[a], 0, text, sizeof text);
		if (!strcmp(text, check->plan.network.address))
			first_address = &check->inventories[0].addresses[a];
	}
	for (size_t a = 0; a < inventory->address_count; a++) {
		const struct inventory_address *address = &inventory->addresses[a];

		if (strcmp(address->iface, check->plan.nodes[node].iface) || !address->up ||
		    address->link_local ||
		    (first_address && address->family != first_address->family))
			continue;
		if (first_address &&
		    (node ? check_same_subnet(address, first_address) : address == first_address))
			return (int)a;
		if (kin < 0)
			kin = (int)a;
	}
	return kin;
}

const char *check_reach_outcome(const struct check *check, size_t from, size_t to, size_t address)
{
	const json_t *rows = json_object_get(check_answer(check, from, "reach?"), "rows");

	return json_string_value(json_array_get(json_array_get(rows, to), address));
}
