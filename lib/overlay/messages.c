/* SPDX-License-Identifier: BSD-3-Clause */
/* The tables of all messages: the members of each struct, in the order in which they are written,
 * with their limits. A member that is missing here is neither sent nor read. */
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

/* ---- the tables: one for each struct of messages.h ---- */

#define FIELD(owner, member, kind)                                                                 \
	.name = #member, .type = &json_as_##kind, JSON_MEMBER(struct message_##owner, member)

static const struct json_field hello_fields[] = {{FIELD(hello, dir, borrowed)}, {0}};
static const struct json_field listening_fields[] = {
	{FIELD(listening, port, number), .min = 1, .max = 65535}, {0}};
static const struct json_field inventory_fields[] = {
	{FIELD(inventory, port, number), .min = -1, .max = 65535},
	{FIELD(inventory, inventory, any_object)},
	{FIELD(inventory, claims, array)},
	{FIELD(inventory, blocks, number), .max = 255},
	{0}};
static const struct json_field probed_fields[] = {
	{FIELD(probed, nodes, number), .min = 1, .max = INT32_MAX},
	{FIELD(probed, reached, array)},
	{FIELD(probed, shared, array)},
	{FIELD(probed, stalled, array)},
	{0}};
static const struct json_field ended_fields[] = {
	{FIELD(ended, rank, number), .max = INT32_MAX},
	{FIELD(ended, code, number), .max = 255},
	{FIELD(ended, signal, number), .max = NSIG - 1},
	{FIELD(ended, core, bool)},
	{FIELD(ended, stopped, bool)},
	{FIELD(ended, oom, number), .max = INT32_MAX},
	{FIELD(ended, peak_memory_bytes, number), .max = INT64_MAX},
	{FIELD(ended, start_error, borrowed), JSON_NULLABLE},
	{FIELD(ended, last, array)},
	{FIELD(ended, said, any_object), JSON_NULLABLE},
	{FIELD(ended, traceback, array), JSON_NULLABLE},
	{0}};
static const struct json_field abort_fields[] = {
	{FIELD(abort, rank, number), .max = INT32_MAX},
	{FIELD(abort, status, number), .min = INT32_MIN, .max = INT32_MAX},
	{FIELD(abort, text, borrowed), JSON_NULLABLE},
	{0}};
static const struct json_field lost_fields[] = {{FIELD(lost, node, number), .max = INT32_MAX},
						{FIELD(lost, ended, bool)},
						{FIELD(lost, why, borrowed)},
						{0}};
static const struct json_field failed_fields[] = {
	{FIELD(failed, code, number), .min = 1, .max = 255},
	{FIELD(failed, text, borrowed)},
	{FIELD(failed, port_taken, bool)},
	{0}};
static const struct json_field note_fields[] = {{FIELD(note, text, borrowed)}, {0}};
static const struct json_field signalled_fields[] = {
	{FIELD(signalled, signal, number), .min = 1, .max = NSIG - 1},
	{FIELD(signalled, launcher, bool)},
	{0}};
static const struct json_field progress_fields[] = {
	{FIELD(progress, steps, array)}, {FIELD(progress, status_texts, array)}, {0}};
static const struct json_field stacks_fields[] = {
	{FIELD(stacks, states, array)}, {FIELD(stacks, stacks, borrowed), JSON_NULLABLE}, {0}};
static const struct json_field done_fields[] = {{FIELD(done, left, borrowed), JSON_NULLABLE}, {0}};
static const struct json_field joined_fields[] = {{FIELD(joined, states, borrowed)}, {0}};
static const struct json_field claimed_fields[] = {
	{FIELD(claimed, taken, bool)}, {FIELD(claimed, claims, array)}, {0}};
static const struct json_field fetch_fields[] = {
	{FIELD(fetch, rank, number), .max = INT32_MAX},
	{FIELD(fetch, from, number), .min = -1, .max = INT32_MAX},
	{0}};
static const struct json_field fetched_fields[] = {
	{FIELD(fetched, to, number), .max = INT32_MAX},
	{FIELD(fetched, status, number), .min = -255, .max = 0},
	{0}};
static const struct json_field welcome_fields[] = {
	{FIELD(welcome, nodes, number), .min = 1, .max = 1 << 20},
	{FIELD(welcome, fanout, number), .min = 1, .max = 4096},
	{FIELD(welcome, listen, bool)},
	{FIELD(welcome, move, bool)},
	{FIELD(welcome, port, number), .min = -1, .max = 65535},
	{FIELD(welcome, ports, number), .max = 64},
	{FIELD(welcome, seed, number), .max = 65535},
	{FIELD(welcome, scope, borrowed), JSON_NULLABLE},
	{FIELD(welcome, outer, borrowed), JSON_NULLABLE},
	{0}};
static const struct json_field move_fields[] = {{FIELD(move, address, borrowed)}, {0}};
static const struct json_field tree_fields[] = {{FIELD(tree, detached, array)}, {0}};
static const struct json_field probe_fields[] = {
	{FIELD(probe, addresses, array)},
	{FIELD(probe, deadline_ms, number), .max = 3600000},
	{FIELD(probe, load, number), .max = WIRE_PROBE_LOAD_MAX},
	{0}};
static const struct json_field job_fields[] = {
	{FIELD(job, world_size, number), .min = 1, .max = INT32_MAX},
	{FIELD(job, names, array)},
	{FIELD(job, first, array)},
	{FIELD(job, counts, array)},
	{FIELD(job, log_dir, borrowed), JSON_NULLABLE},
	{FIELD(job, pmix, borrowed)},
	{FIELD(job, hold_port, bool)},
	{FIELD(job, block, number), .max = 7},
	{FIELD(job, input, number), .max = INT32_MAX},
	{FIELD(job, stop_file, borrowed), JSON_NULLABLE},
	{FIELD(job, limits, any_object), JSON_NULLABLE},
	{FIELD(job, container, any_object), JSON_NULLABLE},
	{0}};
static const struct json_field start_fields[] = {{FIELD(start, ranks, array)},
						 {FIELD(start, plan, any_object)},
						 {FIELD(start, port, number), .max = 65535},
						 {0}};
static const struct json_field signal_fields[] = {{FIELD(signal, signal, number), .max = NSIG - 1},
						  {FIELD(signal, stop, borrowed), JSON_NULLABLE},
						  {0}};
static const struct json_field stop_fields[] = {{FIELD(stop, grace_ms, number), .max = 3600000},
						{0}};
static const struct json_field stdin_fields[] = {
	{FIELD(stdin, rows, number), JSON_OPTIONAL, .max = USHRT_MAX},
	{FIELD(stdin, columns, number), JSON_OPTIONAL, .max = USHRT_MAX},
	{0}};
static const struct json_field dump_stacks_fields[] = {
	{FIELD(dump_stacks, ranks, array)}, {FIELD(dump_stacks, gentle, bool)}, {0}};
static const struct json_field job_over_fields[] = {
	{FIELD(job_over, code, number), .max = 255}, {FIELD(job_over, restart, bool)}, {0}};
static const struct json_field end_time_fields[] = {
	{FIELD(end_time, end_time, number), .max = INT64_MAX}, {0}};
static const struct json_field claim_fields[] = {
	{FIELD(claim, claim, any_object)}, {FIELD(claim, share, bool)}, {0}};
static const struct json_field ask_ready_fields[] = {{FIELD(ask_ready, kind, borrowed)},
						     {FIELD(ask_ready, host, borrowed)},
						     {FIELD(ask_ready, port, number), .max = 65535},
						     {FIELD(ask_ready, path, borrowed)},
						     {0}};
static const struct json_field ready_fields[] = {
	{FIELD(ready, ready, bool)}, {FIELD(ready, text, borrowed)}, {0}};

static const struct {
	enum message_type type;
	const char *name;
	const struct json_field *fields; /* NULL: it has no text */
} rows[] = {
	{MESSAGE_HEARTBEAT, "HEARTBEAT", NULL},
	{MESSAGE_HELLO, "HELLO", hello_fields},
	{MESSAGE_LISTENING, "LISTENING", listening_fields},
	{MESSAGE_MOVED, "MOVED", NULL},
	{MESSAGE_MOVE_FAILED, "MOVE_FAILED", NULL},
	{MESSAGE_INVENTORY, "INVENTORY", inventory_fields},
	{MESSAGE_PROBED, "PROBED", probed_fields},
	{MESSAGE_STARTED, "STARTED", NULL},
	{MESSAGE_OUTPUT, "OUTPUT", NULL},
	{MESSAGE_ENDED, "ENDED", ended_fields},
	{MESSAGE_ABORT, "ABORT", abort_fields},
	{MESSAGE_LOST, "LOST", lost_fields},
	{MESSAGE_FAILED, "FAILED", failed_fields},
	{MESSAGE_NOTE, "NOTE", note_fields},
	{MESSAGE_SIGNALLED, "SIGNALLED", signalled_fields},
	{MESSAGE_GATHER, "GATHER", NULL},
	{MESSAGE_PROGRESS, "PROGRESS", progress_fields},
	{MESSAGE_STACKS, "STACKS", stacks_fields},
	{MESSAGE_DONE, "DONE", done_fields},
	{MESSAGE_STDIN_TAKEN, "STDIN_TAKEN", NULL},
	{MESSAGE_JOINED, "JOINED", joined_fields},
	{MESSAGE_SETTLED, "SETTLED", NULL},
	{MESSAGE_READY, "READY", ready_fields},
	{MESSAGE_CLAIMED, "CLAIMED", claimed_fields},
	{MESSAGE_FETCH, "FETCH", fetch_fields},
	{MESSAGE_FETCHED, "FETCHED", fetched_fields},
	{MESSAGE_WELCOME, "WELCOME", welcome_fields},
	{MESSAGE_MOVE, "MOVE", move_fields},
	{MESSAGE_TREE, "TREE", tree_fields},
	{MESSAGE_PROBE, "PROBE", probe_fields},
	{MESSAGE_JOB, "JOB", job_fields},
	{MESSAGE_START, "START", start_fields},
	{MESSAGE_SIGNAL, "SIGNAL", signal_fields},
	{MESSAGE_STOP, "STOP", stop_fields},
	{MESSAGE_GATHERED, "GATHERED", NULL},
	{MESSAGE_STDIN, "STDIN", stdin_fields},
	{MESSAGE_DUMP_STACKS, "DUMP_STACKS", dump_stacks_fields},
	{MESSAGE_JOB_OVER, "JOB_OVER", job_over_fields},
	{MESSAGE_END_TIME, "END_TIME", end_time_fields},
	{MESSAGE_SETTLE, "SETTLE", NULL},
	{MESSAGE_CLAIM, "CLAIM", claim_fields},
	{MESSAGE_ASK_READY, "ASK_READY", ask_ready_fields},
};

static const struct json_field *fields_of(unsigned type)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		if (rows[i].type == type)
			return rows[i].fields;
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
