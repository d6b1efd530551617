/* SPDX-License-Identifier: BSD-3-Clause */
/* What the PMIx server of this node's ranks asks of the other nodes: collectives (up the tree, the
 * answer down to all) and what one rank has published (through the head to its node). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/json.h"

/* A question of ours that is under way. */
struct fetch {
	struct fetch *next;
	uint64_t sequence;
	void *token;
};

/* Somebody else's question that our server works on. */
struct serving {
	struct agent *agent;
	uint64_t sequence;
	uint32_t from;
};

/* An answer to our server that is known while it is still asking: given after its dispatch. */
struct local_answer {
	struct local_answer *next;
	void *token;
	void *data;
	size_t size;
};

static bool is_only_node(const struct agent *agent)
{
	for (size_t i = 0; i < agent->job.node_count; i++)
		if (agent->job.rank_count[i] > 0 && i != agent->params.node_index)
			return false;
	return true;
}

/* Pass a collective on once the whole subtree has contributed. */
static void forward_gather(struct agent *agent, struct gather *gather)
{
	if (gather->sent ||
	    gather->nodes < agent_downlinks_subtree_size(agent->downlinks, agent->job.rank_count))
		return;
	gather->sent = true;
	agent_uplink_send(agent->uplink, MESSAGE_GATHER, gather->sequence, NULL,
			  gather->entries.data, gather->entries.size);
	bytes_free(&gather->entries);
	if (!gather->own)
		gathers_drop(&agent->gathers, gather);
}

static int queue_answer(struct agent *agent, void *token, const void *data, size_t size)
{
	struct local_answer *local_answer = calloc(1, sizeof *local_answer);
	struct local_answer **at = &agent->answers;

	if (local_answer)
		local_answer->data = malloc(size + 1);
	if (!local_answer || !local_answer->data) {
		free(local_answer);
		return -ERR_UNAVAILABLE;
	}
	memcpy(local_answer->data, size ? data : "", size);
	local_answer->size = size;
	local_answer->token = token;
	while (*at)
		at = &(*at)->next;
	*at = local_answer;
	return 0;
}

void agent_pmix_complete_local(struct agent *agent)
{
	while (agent->answers) {
		struct local_answer *local_answer = agent->answers;

		agent->answers = local_answer->next;
		if (agent->server)
			ranks_server_process.gather_done(agent->server, local_answer->token, 0,
							 local_answer->data, local_answer->size);
		free(local_answer->data);
		free(local_answer);
	}
}

static int host_gather(void *context, uint64_t sequence, const void *data, size_t size, void *token)
{
	struct agent *agent = context;
	struct gather *gather;

	if (is_only_node(agent))
		return queue_answer(agent, token, data, size);
	if (agent_uplink_is_lost(agent->uplink))
		return -ERR_NETWORK;
	gather = gathers_get(&agent->gathers, sequence);
	if (!gather || gather->own ||
	    gather_add(gather, (uint32_t)agent->params.node_index, data, size, NULL))
		return -ERR_UNAVAILABLE;
	gather->own = true;
	gather->token = token;
	forward_gather(agent, gather);
	return 0;
}

void agent_pmix_contribution(struct agent *agent, const struct wire_message *message)
{
	struct gather *gather = gathers_get(&agent->gathers, message->sequence);
	struct error err = {0};

	if (!agent->have_job)
		return;
	if (!gather)
		error_memory(&err, "a collective");
	else if (!gather_merge(gather, message->data, message->data_size, agent->job.node_count,
			       &err))
		forward_gather(agent, gather);
	if (err.code)
		agent_uplink_fail(agent->uplink, &err);
}

void agent_pmix_gathered(struct agent *agent, const struct wire_message *message)
{
	struct gather *gather = gathers_find(&agent->gathers, message->sequence);

	if (!gather || !gather->own)
		return; /* no ranks here */
	if (agent->server)
		ranks_server_process.gather_done(agent->server, gather->token, 0, message->data,
						 message->data_size);
	gathers_drop(&agent->gathers, gather);
}

static int host_fetch(void *context, int rank, void *token)
{
	struct agent *agent = context;
	struct fetch *fetch;

	if (agent_uplink_is_lost(agent->uplink))
		return -ERR_NETWORK;
	fetch = calloc(1, sizeof *fetch);
	if (!fetch)
		return -ERR_UNAVAILABLE;
	fetch->sequence = ++agent->fetch_count;
	fetch->token = token;
	fetch->next = agent->fetches;
	agent->fetches = fetch;
	agent_uplink_send(agent->uplink, MESSAGE_FETCH, fetch->sequence,
			  json_pack("{s:i}", "rank", rank), NULL, 0);
	return 0;
}

void agent_pmix_fetched(struct agent *agent, const struct wire_message *message, const json_t *text)
{
	struct fetch **at = &agent->fetches, *fetch;
	int64_t status = -ERR_NETWORK;

	json_get_int("FETCHED", text, "status", -255, 0, &status, NULL);
	while (*at && (*at)->sequence != message->sequence)
		at = &(*at)->next;
	fetch = *at;
	if (!fetch)
		return;
	*at = fetch->next;
	if (agent->server)
		ranks_server_process.fetch_done(agent->server, fetch->token, (int)status,
						message->data, message->data_size);
	free(fetch);
}

static void served(void *context, int status, const void *data, size_t size)
{
	struct serving *serving = context;

	agent_uplink_send(
		serving->agent->uplink, MESSAGE_FETCHED, serving->sequence,
		json_pack("{s:I, s:i}", "to", (json_int_t)serving->from, "status", status), data,
		size);
	free(serving);
}

void agent_pmix_fetch(struct agent *agent, const struct wire_message *message, const json_t *text)
{
	struct serving *serving = calloc(1, sizeof *serving);
	int64_t rank = -1, from = 0;
	int rc = -ERR_UNAVAILABLE;

	json_get_int("FETCH", text, "rank", 0, INT32_MAX, &rank, NULL);
	json_get_int("FETCH", text, "from", 0, UINT32_MAX, &from, NULL);
	if (!serving)
		return;
	*serving = (struct serving){agent, message->sequence, (uint32_t)from};
	if (agent->server && rank >= 0)
		rc = ranks_server_process.serve(agent->server, (int)rank, served, serving);
	if (rc)
		served(serving, -ERR_NETWORK, NULL, 0);
}

static void host_abort(void *context, int local_rank, int status, const char *text)
{
	struct agent *agent = context;

	agent_uplink_send(agent->uplink, MESSAGE_ABORT, 0,
			  json_pack("{s:i, s:i, s:o}", "rank",
				    agent->job.first_rank[agent->params.node_index] + local_rank,
				    "status", status, "text", json_text(text)),
			  NULL, 0);
}

/* A crash inside of PMIx's library. Ranks that use it lose their connection and say so; while we
 * end them it is of no interest. */
static void host_lost(void *context, const char *text)
{
	struct agent *agent = context;

	if (!agent->stopping)
		agent_uplink_note(agent->uplink,
				  "the PMIx server of %s %s; PMIx and MPI programs cannot go on",
				  agent->params.name, text);
}

static void host_ready(void *context)
{
	struct agent *agent = context;

	agent->pending.ready = true; /* not from within the server's dispatch */
}

static void dispatch(struct loop_source *source, uint32_t events)
{
	struct agent *agent =
		(struct agent *)((char *)source - offsetof(struct agent, server_source));

	(void)events;
	ranks_server_process.dispatch(agent->server);
}

/* err says why there is no PMIx: fatal where it must be there. */
static int continue_without(struct agent *agent, const struct error *err)
{
	agent_pmix_stop(agent);
	if (agent->job.pmix_required)
		return -err->code;
	agent_uplink_note(agent->uplink,
			  "no PMIx for the ranks of %s: %s; MPI programs see a world of one each",
			  agent->params.name, err->text);
	return 0;
}

int agent_pmix_start(struct agent *agent, const json_t *ranks, struct error *err)
{
	const struct agent_job *job = &agent->job;
	const char **cpus = NULL;
	char name[300];
	int rc = 0;

	if (job->pmix_disabled || !agent->rank_count) {
		agent_pmix_stop(agent);
		return 0;
	}
	if (!agent->pmix) {
		*err = agent->pmix_error;
		rc = -err->code;
		goto out;
	}
	cpus = calloc(agent->rank_count, sizeof *cpus);
	if (!cpus)
		return error_memory(err, "the ranks' places");
	for (size_t i = 0; i < agent->rank_count; i++)
		cpus[i] = json_string_value(json_object_get(json_array_get(ranks, i), "cpus"));
	snprintf(name, sizeof name, "%.200s.%u", agent->params.job, agent->attempt);
	agent->host = (struct ranks_host){agent,      host_gather, host_fetch,
					  host_abort, host_lost,   host_ready};
	struct ranks_job ranks_job = {
		.name = name,
		.world_size = job->world_size,
		.node_index = (int)agent->params.node_index,
		.node_count = (int)job->node_count,
		.nodes = job->names,
		.first_rank = job->first_rank,
		.rank_count = job->rank_count,
		.cpus = cpus,
		.dir = agent->dir,
	};

	rc = server_process_start_async(agent->pmix, &ranks_job, &agent->host, &agent->server, err);
	if (!rc) {
		agent->server_source.ready = dispatch;
		rc = loop_add(agent->loop, &agent->server_source,
			      ranks_server_process.descriptor(agent->server), EPOLLIN, err);
	}
out:
	free(cpus);
	return rc ? continue_without(agent, err) : 0;
}

int agent_pmix_started(struct agent *agent, struct error *err)
{
	return agent->server && server_process_start_result(agent->server, err)
		       ? continue_without(agent, err)
		       : 0;
}

void agent_pmix_stop(struct agent *agent)
{
	struct ranks_server *server = agent->server;

	loop_remove(agent->loop, &agent->server_source);
	agent->server = NULL;
	/* Tell it of each wait that nobody will end, so that nothing of it hangs in stop. */
	for (struct gather *gather = agent->gathers.first; gather; gather = gather->next)
		if (server && gather->own)
			ranks_server_process.gather_done(server, gather->token, -ERR_NETWORK, NULL,
							 0);
	gathers_free(&agent->gathers);
	while (agent->fetches) {
		struct fetch *fetch = agent->fetches;

		agent->fetches = fetch->next;
		if (server)
			ranks_server_process.fetch_done(server, fetch->token, -ERR_NETWORK, NULL,
							0);
		free(fetch);
	}
	while (agent->answers) {
		struct local_answer *local_answer = agent->answers;

		agent->answers = local_answer->next;
		if (server)
			ranks_server_process.gather_done(server, local_answer->token, -ERR_NETWORK,
							 NULL, 0);
		free(local_answer->data);
		free(local_answer);
	}
	if (server)
		ranks_server_process.stop(server);
	server_process_free(agent->pmix);
	agent->pmix = NULL;
}
