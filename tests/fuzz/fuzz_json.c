/* SPDX-License-Identifier: BSD-3-Clause */
/* JSON from outside, and an allocation from it: what is taken says the same when written. */
#include "fuzz.h"

#include "alloc/alloc.h"
#include "base/json.h"

#define LIMIT 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	JSON_AUTO json = NULL;
	struct alloc alloc = {0}, again = {0};
	struct error err = {0};
	int rc = json_read("the input", (const char *)data, size, LIMIT, &json, &err);

	if (rc) {
		CHECK(rc == -ERR_DATA && *err.text && !json);
		return 0;
	}
	CHECK(size <= LIMIT && json_is_object(json));
	rc = alloc_from_json(json, &alloc, &err);
	if (rc) {
		CHECK(rc == -ERR_DATA && *err.text && !alloc.nodes && !alloc.source);
		return 0;
	}
	JSON_AUTO written = alloc_to_json(&alloc);

	CHECK(written && alloc.node_count >= 1);
	CHECK(!alloc_from_json(written, &again, &err));
	JSON_AUTO rewritten = alloc_to_json(&again);

	CHECK(json_equal(written, rewritten));
	alloc_free(&alloc);
	alloc_free(&again);
	return 0;
}
