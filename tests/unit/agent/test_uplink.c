/* SPDX-License-Identifier: BSD-3-Clause */
/* A silent parent that still reads: its agent gives it up and says so first, because the parent may
 * only have waited for the CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "agent/uplink.h"
#include "base/clock.h"

#define TIMEOUT_MS 8000

static struct loop *loop;
static bool ended;
static char failed[256], lost[256];

static void on_message(void *context, struct connection *connection,
		       const struct wire_message *wire)
{
	struct message message;
	struct error err;

	(void)context;
	(void)connection;
	if (wire->type != MESSAGE_FAILED)
		return;
	assert_int_equal(message_read(wire, &message, &err), 0);
	snprintf(failed, sizeof failed, "%s", message.failed.text);
	message_free(&message);
}

static void on_ended(void *context, struct connection *connection, const struct error *why)
{
	(void)context;
	(void)connection;
	(void)why;
	ended = true;
}

static void on_lost(void *context, const struct error *why)
{
	(void)context;
	snprintf(lost, sizeof lost, "%s", why->text);
}

static void run_until(const bool *done)
{
	struct error err;

	for (int64_t until = clock_now_ms() + 10000; !*done;) {
		assert_true(clock_now_ms() < until);
		assert_int_equal(loop_once(loop, &err), 0);
	}
}

static void silent_parent(void **state)
{
	const struct connection_owner owner = {.message = on_message, .ended = on_ended};
	struct agent_params params = {
		.name = "n1", .job = "7", .node_index = 1, .node_timeout_ms = TIMEOUT_MS};
	struct agent_uplink uplink;
	struct connection *parent;
	struct error err;
	int pair[2];

	(void)state;
	assert_int_equal(loop_new(&loop, &err), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	assert_int_equal(secret_generate(&params.secret, &err), 0);
	params.fd = pair[0];
	agent_uplink_init(&uplink, loop, &params, "/tmp",
			  &(struct agent_uplink_events){.lost = on_lost});
	assert_int_equal(connection_open(loop, pair[1], false, WIRE_ACCEPTS, &params.secret, "7",
					 &owner, &parent, &err),
			 0);
	assert_int_equal(agent_uplink_open(&uplink, -1, &err), 0);
	uplink.has_parent = true;
	run_until(&uplink.connection->open);

	uplink.connection->received_ms = loop_now_ms(loop) - TIMEOUT_MS / 2;
	uplink.second.due(&uplink.second);
	assert_false(uplink.lost);
	uplink.connection->received_ms = loop_now_ms(loop) - TIMEOUT_MS - 1;
	uplink.second.due(&uplink.second);
	assert_true(uplink.lost);
	run_until(&ended);
	assert_string_equal(failed, "no heartbeat from socket pair for 8 s");
	assert_string_equal(lost, failed);
	connection_close(parent);
	agent_uplink_close(&uplink);
	loop_free(loop);
}

int main(void)
{
	return cmocka_run_group_tests((const struct CMUnitTest[]){cmocka_unit_test(silent_parent)},
				      NULL, NULL);
}
