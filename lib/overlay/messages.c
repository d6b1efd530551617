/* SPDX-License-Identifier: BSD-3-Clause */
/* Messages are written and read by the tables that are made here of message_list.h. */
#include "overlay/messages.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/json.h"
#include "base/json_fields.h"

/* See struct message_output. Output is data and not JSON: it is any bytes, and there is much of it.
 */
#define RECORD_HEADER 10

#define MESSAGE(NAME, number)
#define MESSAGE_WITH(NAME, number, name, members)                                                  \
	static const struct json_field *fields_of_##name(void)                                     \
	{                                                                                          \
		typedef struct message_##name owner;                                               \
		static const struct json_field fields[] = {members{0}};                            \
                                                                                                   \
		return fields;                                                                     \
	}
#define FIELD(member, kind) .name = #member, .type = &json_as_##kind, JSON_MEMBER(owner, member)
#define NUMBER(name, least, most) {FIELD(name, number), .min = (least), .max = (most)},
#define NUMBER_OR_NONE(name, least, most)                                                          \
	{FIELD(name, number), JSON_OPTIONAL, .min = (least), .max = (most)},
#define INT64 NUMBER
#define BOOL(name) {FIELD(name, bool)},
#define TEXT(name) {FIELD(name, borrowed)},
#define TEXT_OR_NULL(name) {FIELD(name, borrowed), JSON_NULLABLE},
#define LIST(name) {FIELD(name, array)},
#define LIST_OR_NULL(name) {FIELD(name, array), JSON_NULLABLE},
#define OBJECT(name) {FIELD(name, any_object)},
#define OBJECT_OR_NULL(name) {FIELD(name, any_object), JSON_NULLABLE},
#include "overlay/message_list.h"

static const struct {
	unsigned type;
	const char *name;
	const struct json_field *(*fields)(void); /* NULL: it has no text */
} rows[] = {
#define MESSAGE(NAME, number) {number, #NAME, NULL},
#define MESSAGE_WITH(NAME, number, name, members) {number, #NAME, fields_of_##name},
#include "overlay/message_list.h"
};

static const struct json_field *fields_of(unsigned type)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].type == type)
			return rows[i].fields ? rows[i].fields() : NULL;
	return NULL;
}

const char *message_name(unsigned type)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].type == type)
			return rows[i].name;
	return "unknown";
}

char *message_write(enum message_type type, const void *body)
{
	JSON_AUTO text = body ? json_fields_write(fields_of(type), body) : NULL;

	return !body ? strdup("") : text ? json_dumps(text, JSON_COMPACT) : NULL;
}

void message_drop(enum message_type type, const void *body)
{
	/* Writing consumes the references that body holds (json_fields.h), so drop the result. */
	if (body)
		json_decref(json_fields_write(fields_of(type), body));
}

struct wire_message message_wire(enum message_type type, uint32_t node, uint32_t attempt,
				 uint64_t sequence, const char *text, const void *data, size_t size)
{
	return (struct wire_message){
		.type = type,
		.node = node,
		.attempt = attempt,
		.sequence = sequence,
		.text = text,
		.text_size = text ? strlen(text) : 0,
		.data = data,
		.data_size = size,
	};
}

int message_forward(struct connection *connection, const struct wire_message *message,
		    struct error *err)
{
	int rc = connection_send(connection, message, err);

	return rc ? error_prefix(err, "sending %s to %s", message_name(message->type),
				 connection->peer)
		  : 0;
}

int message_send(struct connection *connection, enum message_type type, uint32_t node,
		 uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		 size_t size, struct error *err)
{
	char *text = message_write(type, body);
	struct wire_message message = message_wire(type, node, attempt, sequence, text, data, size);
	int rc = text ? message_forward(connection, &message, err) : error_memory(err, "a message");

	free(text);
	return rc;
}

int message_read(const struct wire_message *wire, struct message *out, struct error *err)
{
	const struct json_field *fields = fields_of(wire->type);
	char what[64];
	int rc = 0;

	*out = (struct message){.wire = wire};
	snprintf(what, sizeof what, "%s of node %u", message_name(wire->type), wire->node);
	if (wire->text_size)
		rc = json_read(what, wire->text, wire->text_size, WIRE_MAX_MESSAGE, &out->document,
			       err);
	/* The structs are members of a union, so the address of one serves for all. */
	return rc || !fields ? rc : json_fields_read(fields, out->document, &out->hello, what, err);
}

void message_free(struct message *message)
{
	json_decref(message->document);
	message->document = NULL;
}

void message_add_probed(const struct message_probed *answer, size_t node_count, size_t count,
			int *reached, int *shared, int *stalled, size_t *answered)
{
	/* The table cannot check this: only the receiver knows how many addresses were probed. */
	if ((size_t)answer->nodes > node_count || json_array_size(answer->reached) != count ||
	    json_array_size(answer->shared) != count || json_array_size(answer->stalled) != count)
		return;
	for (size_t i = 0; i < count; i++) {
		json_int_t owner = json_integer_value(json_array_get(answer->shared, i));
		json_int_t node = json_integer_value(json_array_get(answer->stalled, i));

		if (node >= 0 && node < (json_int_t)node_count && stalled[i] < 0)
			stalled[i] = (int)node;
		reached[i] += (int)json_integer_value(json_array_get(answer->reached, i));
		if (owner >= 0 && owner < (json_int_t)node_count && shared[i] < 0)
			shared[i] = (int)owner;
	}
	*answered += (size_t)answer->nodes;
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
