/* SPDX-License-Identifier: BSD-3-Clause */
/* Node files: every host comes from a line, and each appears once. Host files: an accepted one is
 * also accepted as a node file, without the words after its hosts. */
#include "fuzz.h"

#include "hostlist/hostlist.h"

static void host_file(const char *text, size_t size)
{
	struct hosts hosts = {0};
	struct error err = {0};

	if (nodefile_parse(text, size, true, &hosts, &err)) {
		CHECK(err.code == ERR_DATA && *err.text);
		CHECK(!hosts.names && !hosts.slots && !hosts.count);
		return;
	}
	for (size_t i = 0; i < hosts.count; i++) {
		CHECK(*hosts.names[i] && strlen(hosts.names[i]) <= HOSTLIST_MAX_NAME);
		CHECK(hosts.slots[i] >= 0 && hosts.slots[i] <= HOSTFILE_MAX_SLOTS);
		for (size_t k = 0; k < i && i < 64; k++)
			CHECK(strcmp(hosts.names[i], hosts.names[k]));
	}
	hosts_free(&hosts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct hosts hosts = {0};
	struct error err = {0};
	int rc = nodefile_parse((const char *)data, size, false, &hosts, &err);
	size_t lines = 1, slots = 0;

	host_file((const char *)data, size);
	if (rc) {
		CHECK(rc == -ERR_DATA && err.code == ERR_DATA && *err.text);
		CHECK(!hosts.names && !hosts.slots && !hosts.count);
		return 0;
	}
	for (size_t i = 0; i < size; i++)
		lines += data[i] == '\n';
	for (size_t i = 0; i < hosts.count; i++) {
		size_t length = strlen(hosts.names[i]);

		CHECK(length && length <= HOSTLIST_MAX_NAME && hosts.slots[i] >= 1);
		slots += (size_t)hosts.slots[i];
		for (size_t k = 0; k < i && i < 64; k++)
			CHECK(strcmp(hosts.names[i], hosts.names[k]));
	}
	CHECK(slots <= lines && hosts.count <= HOSTLIST_MAX_HOSTS);
	hosts_free(&hosts);
	return 0;
}
