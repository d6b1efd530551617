/* SPDX-License-Identifier: BSD-3-Clause */
/* Inputs of stage plan from files and from the network: one node's part of a plan stays the same
 * when it is written again, and any accepted inventory can be planned for any number of ranks. */
#include "fuzz.h"

#include "base/json.h"
#include "plan/plan.h"

static void check_plan(const json_t *json)
{
	struct plan plan = {0}, again = {0};
	struct error err = {0};
	size_t index, again_index;
	int rc = plan_file_from_json(json, &plan, &index, &err);

	if (rc) {
		CHECK(rc == -ERR_DATA && *err.text && !plan.nodes && !plan.job_id);
		return;
	}
	JSON_AUTO written = plan_file_to_json(&plan, index);

	CHECK(written);
	if (plan_file_from_json(written, &again, &again_index, &err)) {
		fprintf(stderr, "written, but cannot be read again: %s\n", err.text);
		abort();
	}
	JSON_AUTO rewritten = plan_file_to_json(&again, again_index);

	CHECK(index == again_index && json_equal(written, rewritten));
	plan_free(&plan);
	plan_free(&again);
}

static void check_bind(const struct inventory *inventory, int ranks, int gpus_per_rank)
{
	struct plan_request request = {.gpus_per_rank = gpus_per_rank, .all_cores = ranks % 2 == 0};
	struct plan_node node = {0};
	struct error err = {0};
	int rc = plan_map_node(inventory, &request, 0, ranks, &node, &err);

	if (rc) {
		CHECK(rc == -ERR_USAGE && *err.text && !node.ranks);
		return;
	}
	CHECK(node.rank_count == (size_t)ranks);
	for (size_t r = 0; r < node.rank_count; r++)
		CHECK(node.ranks[r].threads >= 1 && *node.ranks[r].why);
	plan_node_free(&node);
}

/* The inventory, used as the first of two nodes. */
static void check_make(const struct inventory *inventory)
{
	struct inventory inventories[2] = {*inventory, *inventory};
	struct alloc_node nodes[2] = {{.name = inventory->node}, {.name = inventory->node}};
	struct alloc alloc = {.node_count = 2, .nodes = nodes};
	struct plan_request request = {.port = 29500};
	struct env *env = env_new(), *rank = NULL;
	struct plan plan = {0};
	struct error err = {0};

	CHECK(env);
	if (!plan_make(&alloc, inventories, 2, &request, NULL, env, &plan, &err)) {
		CHECK(!plan_environment(&plan, inventory, 1, 0, &request, env, &rank, &err));
		env_free(rank);
		plan_free(&plan);
	}
	json_decref(plan_lint(env, inventories, 2));
	env_free(env);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	JSON_AUTO json = NULL;
	struct inventory inventory = {0};
	struct error err = {0};

	if (json_read("the input", (const char *)data, size, 1 << 20, &json, &err))
		return 0;
	check_plan(json);
	if (inventory_from_json(json, &inventory, &err))
		return 0;
	check_bind(&inventory, 1, 0);
	check_bind(&inventory, 3, 0);
	check_bind(&inventory, 2, 2);
	check_bind(&inventory, 64, 0);
	check_make(&inventory);
	inventory_free(&inventory);
	return 0;
}
