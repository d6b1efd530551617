/* SPDX-License-Identifier: BSD-3-Clause */
/* OpenPAI's environment, a variable a line; and each value as HOST:PORT. */
#include "fuzz_env.h"

#include "alloc/alloc.h"

static char *visit(const char *name, char *value)
{
	char host[64] = "";
	int port = 0;

	if (!alloc_parse_rendezvous("it", value, host, sizeof host, &port, NULL))
		CHECK(*host && port >= 1 && port <= 65535);
	return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size);
	struct env *env = fuzz_env(text, visit);
	struct alloc alloc = {0};
	struct error err = {0};

	if (alloc_source_openpai.present(env, NULL)) {
		if (alloc_read_from(&alloc_source_openpai, env, NULL, &alloc, &err)) {
			CHECK(err.code == ERR_DATA && *err.text && !alloc.nodes);
		} else {
			int port;

			CHECK(alloc.this_node >= 0 && alloc.this_node < (int)alloc.node_count);
			CHECK(alloc.node_count == 1 ? !alloc.rendezvous : alloc.rendezvous != NULL);
			/* A value accepted here is accepted there. */
			CHECK(!alloc.rendezvous || !alloc_parse_rendezvous("it", alloc.rendezvous,
									   NULL, 0, &port, NULL));
		}
	}
	alloc_free(&alloc);
	env_free(env);
	free(text);
	return 0;
}
