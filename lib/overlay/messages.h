/* SPDX-License-Identifier: BSD-3-Clause */
/* The messages between controller and agents, which message_list.h lists. On the wire, text is a
 * JSON object and data is bytes; both may be missing. A node is its index. A message going up
 * carries the node that sent it. A message going down carries its destination (WIRE_ALL: every
 * node). Agents in between forward messages. */
#ifndef BERTH_OVERLAY_MESSAGES_H
#define BERTH_OVERLAY_MESSAGES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "overlay/connection.h"
#include "overlay/wire.h"

/* Extra time beyond PROBE's deadline_ms for a node that has reached none of the
 * first node's addresses by then. */
#define AGENT_PROBE_EXTENSION_MS 4000

#define MESSAGE(NAME, number) MESSAGE_##NAME = (number),
#define MESSAGE_WITH(NAME, number, name, members) MESSAGE_##NAME = (number),
enum message_type {
#include "overlay/message_list.h"
};

#define MESSAGE(NAME, number)
#define MESSAGE_WITH(NAME, number, name, members)                                                  \
	struct message_##name {                                                                    \
		members                                                                            \
	};
#define NUMBER(name, least, most) int name;
#define NUMBER_OR_NONE(name, least, most) int name;
#define INT64(name, least, most) int64_t name;
#define BOOL(name) bool name;
#define TEXT(name) const char *name;
#define TEXT_OR_NULL(name) const char *name;
#define LIST(name) json_t *name;
#define LIST_OR_NULL(name) json_t *name;
#define OBJECT(name) json_t *name;
#define OBJECT_OR_NULL(name) json_t *name;
#include "overlay/message_list.h"

/* A message that was read. */
struct message {
	const struct wire_message *wire; /* borrowed: node, attempt, sequence, data */
	json_t *document;
	union {
#define MESSAGE(NAME, number)
#define MESSAGE_WITH(NAME, number, name, members) struct message_##name name;
#include "overlay/message_list.h"
	};
};

/* The name used in errors and logs; "unknown" for an unknown type. */
const char *message_name(unsigned type);

/* The text of a message; malloced, NULL if memory is out. body is the type's struct; NULL, and an
 * empty text, if it has none. */
char *message_write(enum message_type type, const void *body);
/* A message with this text; everything is borrowed. */
struct wire_message message_wire(enum message_type type, uint32_t node, uint32_t attempt,
				 uint64_t sequence, const char *text, const void *data,
				 size_t size);
/* Send it, or one with body's text. */
int message_forward(struct connection *connection, const struct wire_message *message,
		    struct error *err);
int message_send(struct connection *connection, enum message_type type, uint32_t node,
		 uint32_t attempt, uint64_t sequence, const void *body, const void *data,
		 size_t size, struct error *err);

/* Drop what message_send would consume. */
void message_drop(enum message_type type, const void *body);

/* Read a message, with every limit checked. Call message_free even on failure. Return 0, or
 * -ERR_DATA naming the message, the node and the member. */
int message_read(const struct wire_message *wire, struct message *out, struct error *err);
void message_free(struct message *message);

/* Add the answer of a subtree to what is known of count addresses: reached, by how many nodes;
 * shared, the node that owns the address too, or -1; stalled, one that connects to it but passes no
 * data, or -1. *answered counts the nodes. An answer about another number of addresses, or of more
 * nodes than node_count, adds nothing. */
void message_add_probed(const struct message_probed *answer, size_t node_count, size_t count,
			int *reached, int *shared, int *stalled, size_t *answered);

/* One output record on the wire: rank (4 bytes), stream and newline (1 byte each), size (4 bytes),
 * bytes. */
struct message_output {
	uint32_t rank;
	int stream; /* enum supervise_stream */
	bool newline;
	const char *text;
	size_t size;
};
int message_add_output(struct bytes *bytes, const struct message_output *output);
/* Take one record off the front of *at. Return 1, 0 at the end, or -ERR_DATA if the record is cut
 * short. */
int message_next_output(const unsigned char **at, size_t *left, struct message_output *out,
			struct error *err);

#endif
