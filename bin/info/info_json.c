/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/json.h"
#include "info/info.h"
#include "show.h"

/* This process's place, or null if it is no rank. */
static json_t *place_json(const struct info *info)
{
	const struct plan_node *node = &info->stages.plan.nodes[info->node_index];

	if (!info->plan_file)
		return json_null();
	return json_pack("{s:i, s:i, s:i, s:o}", "rank", node->ranks[info->own_local_rank].rank,
			 "local_rank", (int)info->own_local_rank, "node_rank",
			 (int)info->node_index, "bound_to", json_text(info->bound_to));
}

/* The object that agents send to the controller as berth.card/1, under the name of the public
 * document. */
static json_t *inventory_json(const struct inventory *inventory)
{
	json_t *json = inventory_to_json(inventory);

	if (json)
		json_object_set_new(json, "format", json_string("berth.inventory/1"));
	return json;
}

json_t *info_to_json(const struct info *info)
{
	const struct stages *stages = &info->stages;

	return json_pack("{s:s, s:s, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:O}", "schema",
			 "berth.info/1", "version", BERTH_VERSION, "alloc",
			 alloc_to_json(&stages->alloc), "ranks", stages->plan.world_size, "rank",
			 place_json(info), "inventory", inventory_json(&stages->inventory),
			 "network", plan_network_to_json(&stages->plan.network), "plan",
			 plan_node_to_json(&stages->plan.nodes[info->node_index]), "environment",
			 environment_json(info->changes), "warnings", info->warnings);
}
