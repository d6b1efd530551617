/* SPDX-License-Identifier: BSD-3-Clause */
/* Host lists: accepted lists respect the limits and compress into a list of the same hosts. */
#include "fuzz.h"

#include "hostlist/hostlist.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *expr = fuzz_text(data, size);
	struct hosts hosts = {0}, again = {0};
	struct error err = {0};
	int rc = hostlist_expand(expr, &hosts, &err);

	if (rc) {
		CHECK(rc == -ERR_DATA && err.code == ERR_DATA && *err.text);
		CHECK(!hosts.names && !hosts.slots && !hosts.count);
	} else {
		char *list = hostlist_compress((const char *const *)hosts.names, hosts.count);

		CHECK(list && hosts.count <= HOSTLIST_MAX_HOSTS);
		for (size_t i = 0; i < hosts.count; i++) {
			size_t length = strlen(hosts.names[i]);

			CHECK(length && length <= HOSTLIST_MAX_NAME && hosts.slots[i] == 1);
		}
		/* Many long names with several numbers each may not fit into one list. */
		if (strlen(list) <= HOSTLIST_MAX_TEXT) {
			CHECK(!hostlist_expand(list, &again, &err) && again.count == hosts.count);
			for (size_t i = 0; i < hosts.count; i++)
				CHECK(!strcmp(hosts.names[i], again.names[i]));
		}
		free(list);
	}
	hosts_free(&hosts);
	hosts_free(&again);
	free(expr);
	return 0;
}
