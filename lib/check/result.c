/* SPDX-License-Identifier: BSD-3-Clause */
/* berth.check/1. */
#include <string.h>

#include "base/json.h"
#include "check/check_internal.h"

static json_t *address_list(const struct inventory *inventory)
{
	json_t *list = json_array();
	char text[80];

	for (size_t a = 0; a < inventory->address_count; a++) {
		const struct inventory_address *address = &inventory->addresses[a];

		inventory_address_format(address, 0, text, sizeof text);
		json_array_append_new(list, json_pack("{s:o, s:s, s:I, s:s, s:b}", "iface",
						      json_text(address->iface), "address", text,
						      "speed_mbps", (json_int_t)address->speed_mbps,
						      "kind", nic_kind_name(address->kind), "up",
						      address->up));
	}
	return list;
}

json_t *check_to_json(const struct check *check)
{
	json_t *nodes = json_array(), *reach = json_array(), *result;

	for (size_t i = 0; i < check->count; i++) {
		const json_t *rows = json_object_get(check_answer(check, i, "reach?"), "rows");

		json_array_append_new(
			nodes, json_pack("{s:o, s:o, s:O}", "node", json_text(check->nodes[i].name),
					 "addresses",
					 check->inventories ? address_list(&check->inventories[i])
							    : json_array(),
					 "probes", check->nodes[i].results));
		json_array_append_new(reach, rows ? json_incref((json_t *)rows) : json_null());
	}
	result = json_pack("{s:s, s:o, s:o}", "schema", "berth.check/1", "nodes", nodes, "reach",
			   reach);
	if (result && check->planned && check->count > 1)
		json_object_set_new(result, "network",
				    json_pack("{s:s, s:s, s:s, s:o}", "address",
					      check->plan.network.address, "subnet",
					      check->plan.network.subnet, "iface",
					      check->plan.network.iface, "why",
					      json_text(check->plan.network.why)));
	if (result)
		json_object_set_new(result, "faults",
				    json_integer((json_int_t)check_faults(result)));
	return result;
}

size_t check_faults(const json_t *check)
{
	size_t i, j, count = 0;
	json_t *node, *probe;

	json_array_foreach(json_object_get(check, "nodes"), i, node)
		json_array_foreach(json_object_get(node, "probes"), j, probe) count +=
		!strcmp(check_text(probe, "result"), "fault");
	return count;
}
