/* SPDX-License-Identifier: BSD-3-Clause */
/* A message to all nodes, some of which take none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "controller/controller_internal.h"

#define NODES 4

static struct connection connections[NODES];
static int answers[NODES], sent[NODES];

int __wrap_message_send_text(struct connection *connection, enum message_type type, uint32_t node,
			     uint32_t attempt, uint64_t sequence, const char *text,
			     const void *data, size_t size, struct error *err);

int __wrap_message_send_text(struct connection *connection, enum message_type type, uint32_t node,
			     uint32_t attempt, uint64_t sequence, const char *text,
			     const void *data, size_t size, struct error *err)
{
	int code = answers[connection - connections];

	(void)node, (void)attempt, (void)sequence, (void)data, (void)size;
	assert_int_equal(type, MESSAGE_STOP);
	assert_string_equal(text, "{\"grace_ms\":1}");
	sent[connection - connections]++;
	return code ? error_set(err, code, "no") : 0;
}

static void test_all(void **state)
{
	static const struct {
		int answers[NODES], rc, sent[NODES];
		const char *reason;
	} rows[] = {
		{{0, 0, 0, 0}, 0, {1, 1, 0, 1}, "all are reached; node 2 is so through node 0"},
		{{ERR_NETWORK, 0, 0, 0}, 0, {1, 1, 0, 1}, "the first one's queue is full"},
		{{0, ERR_NETWORK, 0, ERR_NETWORK}, 0, {1, 1, 0, 1}, "the last one's, too"},
		{{ERR_DATA, 0, 0, 0}, -ERR_DATA, {1, 0, 0, 0}, "too large for every node"},
		{{ERR_NETWORK, ERR_DATA, 0, 0},
		 -ERR_DATA,
		 {1, 1, 0, 0},
		 "too large for the second"},
	};
	struct controller_node nodes[NODES] = {{.connection = &connections[0]},
					       {.connection = &connections[1]},
					       {.moved = true},
					       {.connection = &connections[3]}};
	struct controller controller = {.count = NODES, .fanout = 2, .nodes = nodes};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct error err = {0};
		int rc;

		memcpy(answers, rows[i].answers, sizeof answers);
		memset(sent, 0, sizeof sent);
		rc = controller_send(&controller, MESSAGE_STOP, WIRE_ALL, 0, 0,
				     &(struct message_stop){1}, NULL, 0, &err);
		if (rc != rows[i].rc || memcmp(sent, rows[i].sent, sizeof sent))
			fail_msg("%s: %d, sent to %d %d %d %d", rows[i].reason, rc, sent[0],
				 sent[1], sent[2], sent[3]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_all)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
