/* SPDX-License-Identifier: BSD-3-Clause */
/* Who may connect, who may speak for whom, and where a message goes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "overlay/children.h"

#define NODES 8 /* fan-out 2: 0 and 1 on top, 2 and 3 below 0, 4 and 5 below 1, 6 and 7 below 2 */

static struct connection connections[NODES];
static int answers[NODES], sent[NODES], closed[NODES];
static char rejected[200];
static long spoke, greeted, lost;

int __wrap_connection_send(struct connection *connection, const struct wire_message *message,
			   struct error *err);
void __wrap_connection_close(struct connection *connection);
void __wrap_connection_pause(struct connection *connection, bool on);

int __wrap_connection_send(struct connection *connection, const struct wire_message *message,
			   struct error *err)
{
	int code = answers[connection - connections];

	assert_int_equal(message->type, MESSAGE_STOP);
	assert_string_equal(message->text, "{\"grace_ms\":1}");
	sent[connection - connections]++;
	return code ? error_set(err, code, "no") : 0;
}

void __wrap_connection_close(struct connection *connection)
{
	if (connection)
		closed[connection - connections]++;
}

void __wrap_connection_pause(struct connection *connection, bool on)
{
	(void)connection, (void)on;
}

static void on_second(struct loop_timer *timer)
{
	(void)timer;
	fail();
}

static void on_hello(void *context, struct connection *connection,
		     const struct wire_message *message)
{
	(void)context, (void)connection;
	greeted = (long)message->node;
}

static void on_message(void *context, struct connection *connection,
		       const struct wire_message *message)
{
	(void)context, (void)connection;
	spoke = (long)message->node;
}

static void on_lost(void *context, size_t node, bool ended, const char *why)
{
	(void)context, (void)why;
	assert_true(ended);
	lost = (long)node;
}

static void on_rejected(void *context, const char *text)
{
	(void)context;
	snprintf(rejected, sizeof rejected, "%s", text);
}

static void open_children(struct children *children, long self)
{
	struct children_events events = {NULL, on_hello, on_message, on_lost, on_rejected, NULL};
	struct error err;

	memset(closed, 0, sizeof closed);
	memset(answers, 0, sizeof answers);
	for (size_t i = 0; i < NODES; i++)
		connections[i] = (struct connection){.node_index = -1, .peer = "a peer"};
	assert_int_equal(children_init(children, NULL, self, NODES, 2, 1000, &events, &err), 0);
}

/* The node sends a message through that connection. Return the node that the owner has heard. */
static long speaks(struct children *children, size_t through, unsigned type, uint32_t node)
{
	struct wire_message message = {.type = (uint16_t)type, .node = node};

	spoke = greeted = lost = -1;
	rejected[0] = '\0';
	children->owner.message(children->owner.context, &connections[through], &message);
	return type == MESSAGE_HELLO ? greeted : spoke;
}

static void test_send_to_all(void **state)
{
	static const struct {
		int answers[4], rc, sent[4];
		const char *reason;
	} rows[] = {
		{.sent = {1, 1, 0, 1}, .reason = "all are reached; node 2 is so through node 0"},
		{.answers = {ERR_NETWORK, 0, 0, 0},
		 .sent = {1, 1, 0, 1},
		 .reason = "the first one's queue is full"},
		{.answers = {0, ERR_NETWORK, 0, ERR_NETWORK},
		 .sent = {1, 1, 0, 1},
		 .reason = "the last one's, too"},
		{.answers = {ERR_DATA, 0, 0, 0},
		 .rc = -ERR_DATA,
		 .sent = {1, 0, 0, 0},
		 .reason = "too large for every node"},
		{.answers = {ERR_NETWORK, ERR_DATA, 0, 0},
		 .rc = -ERR_DATA,
		 .sent = {1, 1, 0, 0},
		 .reason = "too large for the second"},
	};
	struct children children;

	(void)state;
	open_children(&children, -1);
	for (size_t i = 0; i < 4; i++)
		if (i != 2)
			children.nodes[i].connection = &connections[i];
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct error err = {0};
		int rc;

		memcpy(answers, rows[i].answers, sizeof rows[i].answers);
		memset(sent, 0, sizeof sent);
		rc = children_send(&children, MESSAGE_STOP, WIRE_ALL, 0, 0,
				   &(struct message_stop){1}, NULL, 0, &err);
		if (rc != rows[i].rc || memcmp(sent, rows[i].sent, sizeof rows[i].sent))
			fail_msg("%s: %d, sent to %d %d %d %d", rows[i].reason, rc, sent[0],
				 sent[1], sent[2], sent[3]);
	}
	for (size_t i = 0; i < NODES; i++)
		children.nodes[i].connection = NULL;
	children_close(&children, -1);
}

/* Return through which connection a message to node goes; -1: it goes nowhere. */
static long goes_through(struct children *children, uint32_t node)
{
	long found = -1;

	memset(sent, 0, sizeof sent);
	assert_int_equal(children_send(children, MESSAGE_STOP, node, 0, 0,
				       &(struct message_stop){1}, NULL, 0, NULL),
			 0);
	for (size_t i = 0; i < NODES; i++)
		if (sent[i]) {
			assert_int_equal(found, -1);
			found = (long)i;
		}
	return found;
}

static void test_controller(void **state)
{
	struct children children;

	(void)state;
	open_children(&children, -1);
	assert_int_equal(speaks(&children, 0, MESSAGE_STOP, 0), -1); /* before HELLO */
	assert_int_equal(speaks(&children, 0, MESSAGE_HELLO, 0), 0);
	assert_int_equal(speaks(&children, 2, MESSAGE_HELLO, 2), 2);
	assert_int_equal(speaks(&children, 3, MESSAGE_HELLO, 0), -1);
	assert_string_equal(rejected, "rejected a peer: it claims to be node 0, which is already "
				      "connected");
	assert_int_equal(speaks(&children, 3, MESSAGE_HELLO, NODES), -1);
	assert_string_equal(rejected, "rejected a peer: it claims to be node 8, which is not in "
				      "this job");
	assert_int_equal(closed[3], 2);
	assert_int_equal(speaks(&children, 0, MESSAGE_STOP, 0), 0);
	assert_int_equal(speaks(&children, 0, MESSAGE_STOP, 3), 3);
	assert_int_equal(speaks(&children, 0, MESSAGE_STOP, 7), 7); /* 7, 2, 0 */
	assert_int_equal(speaks(&children, 0, MESSAGE_STOP, 4), -1);
	assert_int_equal(speaks(&children, 0, MESSAGE_STOP, NODES), -1);
	assert_int_equal(speaks(&children, 0, MESSAGE_HEARTBEAT, 0), -1);
	assert_int_equal(goes_through(&children, 7), 2);
	assert_int_equal(goes_through(&children, 3), 0);
	assert_int_equal(goes_through(&children, 4), -1);
	assert_int_equal(goes_through(&children, NODES), -1);
	/* It stays here, so its parent no longer speaks for what is below it. */
	children.nodes[2].detached = true;
	assert_int_equal(speaks(&children, 0, MESSAGE_STOP, 7), -1);
	assert_int_equal(speaks(&children, 2, MESSAGE_STOP, 7), 7);
	/* Once it has moved, the end of its connection is no loss. */
	children.second.due = on_second; /* there is no loop here */
	children_moved(&children, 2);
	assert_int_equal(goes_through(&children, 7), 0);
	children.owner.ended(children.owner.context, &connections[2], NULL);
	assert_int_equal(lost, -1);
	children.owner.ended(children.owner.context, &connections[0], NULL);
	assert_int_equal(lost, 0);
	assert_int_equal(speaks(&children, 4, MESSAGE_HELLO, 0), -1); /* once only */
	children_close(&children, -1);
}

static int detach(struct children *children, int node)
{
	json_t *nodes = json_pack("[i]", node);
	int rc = children_set_detached(children, nodes, NULL);

	json_decref(nodes);
	return rc;
}

static void test_inner_agent(void **state)
{
	static const int ranks[NODES] = {1, 1, 1, 0, 1, 1, 1, 0};
	struct children children;

	(void)state;
	open_children(&children, 0);
	assert_int_equal(children_subtree_size(&children, NULL), 5); /* 0, 2, 3, 6, 7 */
	assert_int_equal(children_subtree_size(&children, ranks), 3);
	assert_int_equal(children_subtree_height(&children), 2);
	assert_int_equal(speaks(&children, 4, MESSAGE_HELLO, 4), -1);
	assert_string_equal(rejected, "rejected a peer: it claims to be node 4, which is not a "
				      "child of this node");
	assert_int_equal(speaks(&children, 2, MESSAGE_HELLO, 2), 2);
	assert_int_equal(speaks(&children, 2, MESSAGE_STOP, 6), 6);
	assert_int_equal(speaks(&children, 2, MESSAGE_STOP, 3), -1);
	assert_int_equal(goes_through(&children, 6), 2);
	assert_int_equal(goes_through(&children, 3), -1);
	assert_int_equal(goes_through(&children, 1), -1);
	assert_int_equal(detach(&children, 2), 0);
	assert_int_equal(children_subtree_size(&children, NULL), 2); /* 0 and 3 */
	assert_int_equal(detach(&children, NODES), -ERR_DATA);
	assert_int_equal(detach(&children, -1), -ERR_DATA);
	children_close(&children, -1);
	children_close(&children, -1);
	assert_int_equal(goes_through(&children, 6), -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_send_to_all),
		cmocka_unit_test(test_controller),
		cmocka_unit_test(test_inner_agent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
