/* SPDX-License-Identifier: BSD-3-Clause */
/* What is written can be read; what a message must not hold is refused, by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "overlay/messages.h"

static int read_text(enum message_type type, const char *text, struct message *out,
		     struct error *err)
{
	struct wire_message wire = {
		.type = type, .node = 7, .text = text, .text_size = strlen(text)};

	return message_read(&wire, out, err);
}

static void test_round_trip(void **state)
{
	struct message message;
	struct error err;
	char *text = message_write(
		MESSAGE_ENDED, &(struct message_ended){.rank = 5,
						       .code = 139,
						       .signal = 11,
						       .core = true,
						       .peak_memory_bytes = INT64_C(1) << 40,
						       .last = json_pack("[s, s]", "a", "b\"")});

	(void)state;
	assert_int_equal(read_text(MESSAGE_ENDED, text, &message, &err), 0);
	assert_int_equal(message.ended.rank, 5);
	assert_int_equal(message.ended.code, 139);
	assert_int_equal(message.ended.signal, 11);
	assert_true(message.ended.core && !message.ended.stopped);
	assert_true(message.ended.peak_memory_bytes == INT64_C(1) << 40);
	assert_int_equal(json_array_size(message.ended.last), 2);
	assert_null(message.ended.start_error);
	assert_null(message.ended.said);
	message_free(&message);
	free(text);

	/* Standard input has data, or the size of a terminal. */
	assert_int_equal(read_text(MESSAGE_STDIN, "", &message, &err), 0);
	assert_int_equal(message.input.rows, -1);
	message_free(&message);
	text = message_write(MESSAGE_STDIN, &(struct message_input){24, 80});
	assert_int_equal(read_text(MESSAGE_STDIN, text, &message, &err), 0);
	assert_int_equal(message.input.columns, 80);
	message_free(&message);
	free(text);

	/* No text, no members. */
	text = message_write(MESSAGE_SETTLE, NULL);
	assert_string_equal(text, "");
	assert_int_equal(read_text(MESSAGE_SETTLE, text, &message, &err), 0);
	message_free(&message);
	free(text);

	/* References are consumed, sent or not: the sanitizer's leak check knows. */
	message_drop(MESSAGE_TREE, &(struct message_tree){json_array()});
}

static void test_refused(void **state)
{
	static const struct {
		enum message_type type;
		const char *text, *said;
	} rows[] = {
		{MESSAGE_LISTENING, "", "LISTENING of node 7: \"port\" is missing"},
		{MESSAGE_LISTENING, "{", "LISTENING of node 7"},
		{MESSAGE_LISTENING, "[1]", "LISTENING of node 7"},
		{MESSAGE_LISTENING, "{\"port\":0}", "\"port\" is 0"},
		{MESSAGE_LISTENING, "{\"port\":65536}", "\"port\" is 65536"},
		{MESSAGE_LISTENING, "{\"port\":\"1\"}", "\"port\""},
		{MESSAGE_LISTENING, "{\"port\":1.5}", "\"port\""},
		{MESSAGE_HELLO, "{\"dir\":null}", "\"dir\" is null"},
		{MESSAGE_INVENTORY, "{\"port\":-1,\"inventory\":[],\"claims\":[]}",
		 "\"inventory\""},
		{MESSAGE_INVENTORY, "{\"port\":-1,\"inventory\":{},\"claims\":{}}", "\"claims\""},
		{MESSAGE_STOP, "{\"grace_ms\":-1}", "\"grace_ms\" is -1"},
		{MESSAGE_SIGNAL, "{\"signal\":65,\"stop\":null}", "\"signal\" is 65"},
		{MESSAGE_JOB_OVER, "{\"code\":0,\"restart\":1}", "\"restart\""},
		{MESSAGE_FETCHED, "{\"to\":1,\"status\":1}", "\"status\" is 1"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct message message;
		struct error err = {0};
		int rc = read_text(rows[i].type, rows[i].text, &message, &err);

		if (rc != -ERR_DATA || !strstr(err.text, rows[i].said))
			fail_msg("%s: %d, %s", rows[i].text, rc, err.text);
		message_free(&message);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_round_trip),
					   cmocka_unit_test(test_refused)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
