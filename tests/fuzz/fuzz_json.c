/* SPDX-License-Identifier: BSD-3-Clause */
/* JSON from outside: accepted JSON gives the same value when written and read again. */
#include "fuzz.h"

#include "base/json.h"

#define LIMIT 65536

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	JSON_AUTO json = NULL;
	JSON_AUTO again = NULL;
	struct error err = {0};
	int rc = json_read("the input", (const char *)data, size, LIMIT, &json, &err);

	if (rc) {
		CHECK(rc == -ERR_DATA && *err.text && !json);
		return 0;
	}
	CHECK(size <= LIMIT && json_is_object(json));
	char *text = json_dumps(json, JSON_COMPACT);

	CHECK(text);
	CHECK(!json_read("the text", text, strlen(text), 8 * LIMIT, &again, &err));
	CHECK(json_equal(json, again));
	free(text);
	return 0;
}
