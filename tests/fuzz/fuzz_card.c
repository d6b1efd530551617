/* SPDX-License-Identifier: BSD-3-Clause */
/* A node's card as the wire brings it: what is taken says the same when written. */
#include "fuzz.h"

#include "base/json.h"
#include "inventory/inventory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	JSON_AUTO json = NULL;
	struct machine card = {0}, again = {0};
	struct error err = {0};

	if (json_read("the input", (const char *)data, size, 1 << 20, &json, &err))
		return 0;
	int rc = machine_from_json(json, &card, &err);

	if (rc) {
		CHECK(rc == -ERR_DATA && *err.text && !card.node && !card.gpus);
		return 0;
	}
	JSON_AUTO written = machine_to_json(&card);

	CHECK(written && card.package_count >= 1);
	if (machine_from_json(written, &again, &err)) {
		fprintf(stderr, "written, but not read again: %s\n", err.text);
		abort();
	}
	JSON_AUTO rewritten = machine_to_json(&again);

	CHECK(json_equal(written, rewritten));
	machine_free(&card);
	machine_free(&again);
	return 0;
}
