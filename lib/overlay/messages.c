/* SPDX-License-Identifier: BSD-3-Clause */
#include "overlay/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"

#define RECORD_HEADER 10

static const struct {
	unsigned type;
	const char *name;
} names[] = {
	{MESSAGE_HEARTBEAT, "HEARTBEAT"},
	{MESSAGE_HELLO, "HELLO"},
	{MESSAGE_LISTENING, "LISTENING"},
	{MESSAGE_MOVED, "MOVED"},
	{MESSAGE_MOVE_FAILED, "MOVE_FAILED"},
	{MESSAGE_INVENTORY, "INVENTORY"},
	{MESSAGE_PROBED, "PROBED"},
	{MESSAGE_STARTED, "STARTED"},
	{MESSAGE_OUTPUT, "OUTPUT"},
	{MESSAGE_ENDED, "ENDED"},
	{MESSAGE_ABORT, "ABORT"},
	{MESSAGE_LOST, "LOST"},
	{MESSAGE_FAILED, "FAILED"},
	{MESSAGE_NOTE, "NOTE"},
	{MESSAGE_SIGNALLED, "SIGNALLED"},
	{MESSAGE_GATHER, "GATHER"},
	{MESSAGE_DONE, "DONE"},
	{MESSAGE_FETCH, "FETCH"},
	{MESSAGE_FETCHED, "FETCHED"},
	{MESSAGE_CLAIMED, "CLAIMED"},
	{MESSAGE_CLAIM, "CLAIM"},
	{MESSAGE_WELCOME, "WELCOME"},
	{MESSAGE_MOVE, "MOVE"},
	{MESSAGE_TREE, "TREE"},
	{MESSAGE_PROBE, "PROBE"},
	{MESSAGE_JOB, "JOB"},
	{MESSAGE_START, "START"},
	{MESSAGE_SIGNAL, "SIGNAL"},
	{MESSAGE_STOP, "STOP"},
	{MESSAGE_GATHERED, "GATHERED"},
	{MESSAGE_STDIN, "STDIN"},
	{MESSAGE_STDIN_TAKEN, "STDIN_TAKEN"},
	{MESSAGE_JOB_OVER, "JOB_OVER"},
	{MESSAGE_PROGRESS, "PROGRESS"},
	{MESSAGE_STACKS, "STACKS"},
	{MESSAGE_DUMP_STACKS, "DUMP_STACKS"},
	{MESSAGE_JOINED, "JOINED"},
	{MESSAGE_END_TIME, "END_TIME"},
	{MESSAGE_SETTLE, "SETTLE"},
	{MESSAGE_SETTLED, "SETTLED"},
};

const char *message_name(unsigned type)
{
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].type == type)
			return names[i].name;
	return "unknown";
}

int message_send(struct connection *connection, enum message_type type, uint32_t node,
		 uint32_t attempt, uint64_t sequence, json_t *text, const void *data, size_t size,
		 struct error *err)
{
	char *dump = text ? json_dumps(text, JSON_COMPACT) : NULL;
	int rc;

	if (text && !dump) {
		rc = error_memory(err, "a message");
	} else {
		struct wire_message message = {
			.type = type,
			.node = node,
			.attempt = attempt,
			.sequence = sequence,
			.text = dump,
			.text_size = dump ? strlen(dump) : 0,
			.data = data,
			.data_size = size,
		};
		rc = connection_send(connection, &message, err);
	}
	if (rc)
		error_prefix(err, "sending %s to %s", message_name(type), connection->peer);
	free(dump);
	json_decref(text);
	return rc;
}

int message_text(const struct wire_message *message, json_t **out, struct error *err)
{
	char what[64];

	snprintf(what, sizeof what, "%s of node %u", message_name(message->type), message->node);
	return json_read(what, message->text, message->text_size, WIRE_MAX_MESSAGE, out, err);
}

void message_add_probed(const struct wire_message *message, size_t node_count, size_t count,
			int *reached, int *shared, int *stalled, size_t *answered)
{
	JSON_AUTO text = NULL;
	json_t *reached_list, *shared_list, *stalled_list;
	int64_t nodes;

	if (message_text(message, &text, NULL) ||
	    json_get_int("PROBED", text, "nodes", 1, (int64_t)node_count, &nodes, NULL) ||
	    json_get_array("PROBED", text, "reached", &reached_list, NULL) ||
	    json_get_array("PROBED", text, "shared", &shared_list, NULL) ||
	    json_get_array("PROBED", text, "stalled", &stalled_list, NULL) ||
	    json_array_size(reached_list) != count || json_array_size(shared_list) != count ||
	    json_array_size(stalled_list) != count)
		return;
	for (size_t i = 0; i < count; i++) {
		json_int_t owner = json_integer_value(json_array_get(shared_list, i));
		json_int_t node = json_integer_value(json_array_get(stalled_list, i));

		if (node >= 0 && node < (json_int_t)node_count && stalled[i] < 0)
			stalled[i] = (int)node;
		reached[i] += (int)json_integer_value(json_array_get(reached_list, i));
		if (owner >= 0 && owner < (json_int_t)node_count && shared[i] < 0)
			shared[i] = (int)owner;
	}
	*answered += (size_t)nodes;
}

int message_add_output(struct bytes *bytes, const struct message_output *output)
{
	unsigned char *at = bytes_extend(bytes, RECORD_HEADER + output->size);

	if (!at)
		return -1;
	bytes_put_u32(at, output->rank);
	at[4] = (unsigned char)output->stream;
	at[5] = output->newline;
	bytes_put_u32(at + 6, (uint32_t)output->size);
	memcpy(at + RECORD_HEADER, output->text, output->size);
	return 0;
}

int message_next_output(const unsigned char **at, size_t *left, struct message_output *out,
			struct error *err)
{
	const unsigned char *p = *at;

	if (!*left)
		return 0;
	if (*left < RECORD_HEADER || *left - RECORD_HEADER < bytes_get_u32(p + 6))
		return error_set(err, ERR_DATA, "an output record is truncated");
	*out = (struct message_output){
		.rank = bytes_get_u32(p),
		.stream = p[4],
		.newline = p[5],
		.text = (const char *)p + RECORD_HEADER,
		.size = bytes_get_u32(p + 6),
	};
	*at += RECORD_HEADER + out->size;
	*left -= RECORD_HEADER + out->size;
	return 1;
}
