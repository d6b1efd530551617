/* SPDX-License-Identifier: BSD-3-Clause */
/* The agent's side: it offers the calls of struct ranks_server_ops and turns them into frames.
 * Calls do not wait for the process, except stop (STOP_MS) and a write to a process that does not
 * read (WRITE_MS). */
#include "pmix/server_process.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "pmix/server_process_internal.h"

#define STOP_MS 3000
#define WRITE_MS 10000

/* A request to the server from another agent. */
struct serving {
	struct serving *next;
	uint64_t token;
	void (*done)(void *context, int status, const void *data, size_t size);
	void *context;
};

struct ranks_server {
	struct server_process *process;
	struct ranks_host host;
	bool starting; /* the reply to START has not arrived yet */
	bool timed_out;
	struct error start_error; /* what that reply reported */
	json_t *environments;	  /* by local rank, as in FRAME_REPLY */
	struct serving *serving;
	uint64_t requests;
	bool lost;
};

static int send_frame(struct ranks_server *server, struct frame header, const void *data)
{
	struct channel *channel = &server->process->channel;

	if (server->lost)
		return -ERR_NETWORK;
	if (channel_send(channel, &header, data) || channel_flush(channel, WRITE_MS))
		server->lost = true;
	return server->lost ? -ERR_NETWORK : 0;
}

/* Stop the server and wait for its reply. What it sent before that is dropped. */
static void stop_and_wait(struct ranks_server *server)
{
	struct channel *channel = &server->process->channel;
	struct frame header = {.kind = FRAME_STOP};
	const void *data;
	int n = send_frame(server, header, NULL);

	while (!n) {
		n = channel_next(channel, &header, &data);
		if (n > 0 && header.kind != FRAME_REPLY)
			n = 0;
		else if (!n)
			n = channel_wait(channel, STOP_MS) <= 0 || channel_fill(channel);
	}
}

static json_t *job_json(const struct ranks_job *job)
{
	JSON_AUTO nodes = json_array();
	JSON_AUTO first = json_array();
	JSON_AUTO counts = json_array();
	JSON_AUTO cpus = job->cpus ? json_array() : json_null();

	for (int i = 0; i < job->node_count; i++) {
		json_array_append_new(nodes, json_string(job->nodes[i]));
		json_array_append_new(first, json_integer(job->first_rank[i]));
		json_array_append_new(counts, json_integer(job->rank_count[i]));
	}
	for (int i = 0; job->cpus && i < job->rank_count[job->node_index]; i++)
		json_array_append_new(cpus, json_text(job->cpus[i]));
	return json_pack("{s:s, s:s, s:i, s:i, s:O, s:O, s:O, s:O}", "name", job->name, "dir",
			 job->dir, "world_size", job->world_size, "index", job->node_index, "nodes",
			 nodes, "first", first, "counts", counts, "cpus", cpus);
}

static void server_free(struct ranks_server *server)
{
	json_decref(server->environments);
	while (server->serving) {
		struct serving *serving = server->serving;

		server->serving = serving->next;
		serving->done(serving->context, -ERR_NETWORK, NULL, 0);
		free(serving);
	}
	free(server);
}

int server_process_start_async(struct server_process *process, const struct ranks_job *job,
			       const struct ranks_host *host, struct ranks_server **out,
			       struct error *err)
{
	struct ranks_server *server = calloc(1, sizeof *server);
	JSON_AUTO json = job_json(job);
	char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
	int rc;

	if (!server || !text) {
		free(server);
		free(text);
		return error_memory(err, "the PMIx server");
	}
	server->process = process;
	server->host = *host;
	server->starting = true;
	rc = send_frame(server, (struct frame){.kind = FRAME_START, .size = strlen(text)}, text);
	if (rc)
		rc = error_set(err, ERR_UNAVAILABLE, "the PMIx server process has ended");
	free(text);
	if (rc)
		server_free(server);
	else
		*out = server;
	return rc;
}

int server_process_start_result(struct ranks_server *server, struct error *err)
{
	if (server->timed_out)
		return error_set(err, ERR_UNAVAILABLE, "the PMIx server did not answer within %d s",
				 SERVER_PROCESS_START_MS / 1000);
	if (server->start_error.code)
		return error_set(err, server->start_error.code, "%s", server->start_error.text);
	if (server->lost || server->starting)
		return error_set(err, ERR_UNAVAILABLE, "the PMIx server process has ended");
	return 0;
}

static int environment(struct ranks_server *server, int local_rank, struct env *changes,
		       struct error *err)
{
	const json_t *list = json_array_get(server->environments, (size_t)local_rank);
	json_t *entry;
	size_t i;

	if (!list)
		return error_set(err, ERR_INTERNAL,
				 "PMIx provides no environment for local rank %d", local_rank);
	if (json_is_object(list))
		return error_set(err, (int)json_integer_value(json_object_get(list, "code")), "%s",
				 json_string_value(json_object_get(list, "text")));
	json_array_foreach(list, i, entry)
	{
		int rc = env_set(changes, json_string_value(json_array_get(entry, 0)),
				 json_string_value(json_array_get(entry, 1)), ENV_FROM_BERTH,
				 json_string_value(json_array_get(entry, 2)), err);
		if (rc)
			return rc;
	}
	return 0;
}

static int descriptor(struct ranks_server *server)
{
	return server->lost ? -1 : server->process->channel.fd;
}

static void notify_ready(struct ranks_server *server)
{
	server->host.ready(server->host.context);
}

void server_process_start_late(struct ranks_server *server)
{
	server->timed_out = true;
	notify_ready(server);
}

static void serving_done(struct ranks_server *server, const struct frame *header, const void *data)
{
	for (struct serving **at = &server->serving; *at; at = &(*at)->next) {
		struct serving *serving = *at;

		if (serving->token != header->token)
			continue;
		*at = serving->next;
		serving->done(serving->context, header->number, data, header->size);
		free(serving);
		return;
	}
}

static void modex_done(struct ranks_server *server, uint32_t kind, void *token, int status,
		       const void *data, size_t size)
{
	send_frame(server,
		   (struct frame){.kind = kind,
				  .token = (uintptr_t)token,
				  .number = status,
				  .size = data ? size : 0},
		   data);
}

static void gather_done(struct ranks_server *server, void *token, int status, const void *data,
			size_t size)
{
	modex_done(server, FRAME_GATHER_DONE, token, status, data, size);
}

static void fetch_done(struct ranks_server *server, void *token, int status, const void *data,
		       size_t size)
{
	modex_done(server, FRAME_FETCH_DONE, token, status, data, size);
}

static void on_start_reply(struct ranks_server *server, const struct frame *header,
			   const void *data)
{
	server->starting = false;
	if (header->number)
		error_set(&server->start_error, -header->number, "%.*s", (int)header->size,
			  (const char *)data);
	else if (!(server->environments = json_loadb(data, header->size, 0, NULL)))
		error_set(&server->start_error, ERR_INTERNAL,
			  "the environment from the PMIx server is not JSON");
	notify_ready(server);
}

static void handle(struct ranks_server *server, const struct frame *header, const void *data)
{
	const struct ranks_host *host = &server->host;
	void *token = (void *)(uintptr_t)header->token;
	char *text;
	int rc;

	switch (header->kind) {
	case FRAME_GATHER:
		rc = host->gather(host->context, header->sequence, data, header->size, token);
		if (rc)
			gather_done(server, token, rc, NULL, 0);
		break;
	case FRAME_FETCH:
		rc = host->fetch(host->context, header->number, token);
		if (rc)
			fetch_done(server, token, rc, NULL, 0);
		break;
	case FRAME_ABORT:
		text = header->size ? strndup(data, header->size) : NULL;
		host->abort(host->context, header->number, (int)(int64_t)header->sequence,
			    text ? text : "");
		free(text);
		break;
	case FRAME_SERVED:
		serving_done(server, header, data);
		break;
	case FRAME_REPLY:
		if (server->starting)
			on_start_reply(server, header, data);
		break;
	default:
		break; /* a reply that is no longer awaited */
	}
}

static void dispatch(struct ranks_server *server)
{
	struct channel *channel = &server->process->channel;
	const void *data;
	struct frame header;
	bool was_lost = server->lost, gone;
	int rc;

	gone = channel_fill(channel) != 0;
	while ((rc = channel_next(channel, &header, &data)) > 0)
		handle(server, &header, data);
	/* handle may have noticed, while it answered, that the process has ended. Report that now,
	 * because nothing else will. */
	gone |= rc < 0;
	if (!gone && !(server->lost && !was_lost))
		return;
	server->lost = true;
	if (server->starting) {
		notify_ready(server);
	} else if (server->host.lost) {
		char text[96];

		server_process_exit_text(server->process, text, sizeof text);
		server->host.lost(server->host.context, text);
	}
}

static int serve(struct ranks_server *server, int rank,
		 void (*done)(void *context, int status, const void *data, size_t size),
		 void *context)
{
	struct serving *serving = calloc(1, sizeof *serving);

	if (!serving)
		return -ERR_UNAVAILABLE;
	*serving = (struct serving){server->serving, ++server->requests, done, context};
	if (send_frame(server,
		       (struct frame){.kind = FRAME_SERVE, .token = serving->token, .number = rank},
		       NULL)) {
		free(serving);
		return -ERR_NETWORK;
	}
	server->serving = serving;
	return 0;
}

static void rank_ended(struct ranks_server *server, int local_rank)
{
	send_frame(server, (struct frame){.kind = FRAME_RANK_ENDED, .number = local_rank}, NULL);
}

static void stop(struct ranks_server *server)
{
	if (!server)
		return;
	/* A process with outstanding replies will not reply to this either: server_process_free
	 * ends it. */
	if (!server->lost && !server->starting)
		stop_and_wait(server);
	server_free(server);
}

/* It has no start and no prepare, because these do not wait: see server_process.h. */
const struct ranks_server_ops ranks_server_process = {
	.environment = environment,
	.descriptor = descriptor,
	.dispatch = dispatch,
	.gather_done = gather_done,
	.fetch_done = fetch_done,
	.serve = serve,
	.rank_ended = rank_ended,
	.stop = stop,
};
