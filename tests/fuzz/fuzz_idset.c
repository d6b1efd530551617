/* SPDX-License-Identifier: BSD-3-Clause */
/* Id sets: an accepted set prints as the canonical text of the same set. */
#include "fuzz.h"

#include "hostlist/idset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct idset *set = NULL, *again = NULL;
	struct error err = {0};
	int rc = idset_parse(text, &set, &err);

	if (rc) {
		CHECK(rc == -ERR_DATA && err.code == ERR_DATA && *err.text && !set);
	} else {
		char *canonical = idset_format(set);
		size_t count = 0;

		for (int id = idset_next(set, -1); id >= 0; id = idset_next(set, id)) {
			CHECK(id <= IDSET_MAX && idset_has(set, id));
			count++;
		}
		CHECK(canonical && count == idset_count(set));
		CHECK(!idset_parse(canonical, &again, &err) && idset_equal(set, again));
		free(canonical);
	}
	idset_free(set);
	idset_free(again);
	free(text);
	return 0;
}
