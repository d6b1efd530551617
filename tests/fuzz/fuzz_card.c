/* SPDX-License-Identifier: BSD-3-Clause */
/* A node's inventory as received: if it is accepted, writing it gives the same inventory. */
#include "fuzz.h"

#include "base/json.h"
#include "inventory/inventory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	JSON_AUTO json = NULL;
	struct inventory inventory = {0}, again = {0};
	struct error err = {0};

	if (json_read("the input", (const char *)data, size, 1 << 20, &json, &err))
		return 0;
	int rc = inventory_from_json(json, &inventory, &err);

	if (rc) {
		CHECK(rc == -ERR_DATA && *err.text && !inventory.node && !inventory.gpus);
		return 0;
	}
	JSON_AUTO written = inventory_to_json(&inventory);

	CHECK(written && inventory.package_count >= 1);
	if (inventory_from_json(written, &again, &err)) {
		fprintf(stderr, "written, but cannot be read again: %s\n", err.text);
		abort();
	}
	JSON_AUTO rewritten = inventory_to_json(&again);

	CHECK(json_equal(written, rewritten));
	inventory_free(&inventory);
	inventory_free(&again);
	return 0;
}
