/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/pmix_relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"

/* A request of this node's server that is not answered yet. */
struct fetch {
	struct fetch *next;
	uint64_t sequence;
	void *token;
};

/* A request of another node that this node's server is answering. */
struct serving {
	struct agent_uplink *uplink;
	uint64_t sequence;
	int from;
};

static bool is_only_node(const struct agent_pmix *pmix)
{
	const struct ranks_job *layout = &pmix->job->layout;

	for (int i = 0; i < layout->node_count; i++)
		if (layout->rank_count[i] > 0 && i != layout->node_index)
			return false;
	return true;
}

/* Send a collective up once the whole subtree has contributed. */
static void forward_gather(struct agent_pmix *pmix, struct gather *gather)
{
	if (gather->sent ||
	    gather->nodes < children_subtree_size(pmix->children, pmix->job->layout.rank_count))
		return;
	gather->sent = true;
	agent_uplink_send(pmix->uplink, MESSAGE_GATHER, gather->sequence, NULL,
			  gather->entries.data, gather->entries.size);
	bytes_free(&gather->entries);
	/* The subtree is complete without this node: it has no ranks, and needs no answer. */
	if (!gather->own)
		gathers_drop(&pmix->gathers, gather);
}

void agent_pmix_complete_local(struct agent_pmix *pmix)
{
	struct gather *gather, *next;

	for (gather = pmix->gathers.first; gather; gather = next) {
		void *data = NULL;
		size_t size = 0;
		int rc;

		next = gather->next;
		if (!gather->own || !is_only_node(pmix))
			continue;
		rc = gather_join(gather, (size_t)pmix->job->layout.node_count, &data, &size, NULL);
		log_debug(LOG_PMIX, "fence %llu done on this node: %zu bytes",
			  (unsigned long long)gather->sequence, size);
		ranks_server_process.gather_done(pmix->server, gather->token, rc ? -ERR_NETWORK : 0,
						 data, size);
		gathers_drop(&pmix->gathers, gather);
		free(data);
	}
}

static int host_gather(void *context, uint64_t sequence, const void *data, size_t size, void *token)
{
	struct agent_pmix *pmix = context;
	bool only_node = is_only_node(pmix);
	struct gather *gather;

	if (!only_node && pmix->uplink->lost)
		return -ERR_NETWORK;
	gather = gathers_get(&pmix->gathers, sequence);
	if (!gather || gather->own ||
	    gather_add(gather, (uint32_t)pmix->job->layout.node_index, data, size, NULL))
		return -ERR_UNAVAILABLE;
	log_debug(LOG_PMIX, "fence %llu: this node contributes %zu bytes",
		  (unsigned long long)sequence, size);
	gather->own = true;
	gather->token = token;
	if (!only_node)
		forward_gather(pmix, gather);
	return 0;
}

void agent_pmix_contribution(struct agent_pmix *pmix, const struct wire_message *message)
{
	/* A child may be faster than this node's own ranks, so the gather may be new. */
	struct gather *gather = gathers_get(&pmix->gathers, message->sequence);
	struct error err = {0};

	if (!pmix->job)
		return;
	if (!gather)
		error_memory(&err, "a collective");
	else if (!gather_merge(gather, message->data, message->data_size,
			       (size_t)pmix->job->layout.node_count, &err))
		forward_gather(pmix, gather);
	if (err.code)
		agent_uplink_fail(pmix->uplink, &err);
}

void agent_pmix_gathered(struct agent_pmix *pmix, const struct wire_message *message)
{
	struct gather *gather = gathers_find(&pmix->gathers, message->sequence);

	if (!gather || !gather->own)
		return; /* no ranks on this node */
	log_debug(LOG_PMIX, "fence %llu done: %zu bytes of all nodes",
		  (unsigned long long)message->sequence, message->data_size);
	if (pmix->server)
		ranks_server_process.gather_done(pmix->server, gather->token, 0, message->data,
						 message->data_size);
	gathers_drop(&pmix->gathers, gather);
}

static int host_fetch(void *context, int rank, void *token)
{
	struct agent_pmix *pmix = context;
	struct fetch *fetch;

	if (pmix->uplink->lost)
		return -ERR_NETWORK;
	fetch = calloc(1, sizeof *fetch);
	if (!fetch)
		return -ERR_UNAVAILABLE;
	fetch->sequence = ++pmix->fetch_count;
	fetch->token = token;
	fetch->next = pmix->fetches;
	pmix->fetches = fetch;
	agent_uplink_send(pmix->uplink, MESSAGE_FETCH, fetch->sequence,
			  &(struct message_fetch){.rank = rank, .from = -1}, NULL, 0);
	return 0;
}

void agent_pmix_fetched(struct agent_pmix *pmix, const struct message *message)
{
	struct fetch **at = &pmix->fetches, *fetch;

	while (*at && (*at)->sequence != message->wire->sequence)
		at = &(*at)->next;
	fetch = *at;
	if (!fetch)
		return;
	*at = fetch->next;
	if (pmix->server)
		ranks_server_process.fetch_done(pmix->server, fetch->token, message->fetched.status,
						message->wire->data, message->wire->data_size);
	free(fetch);
}

static void served(void *context, int status, const void *data, size_t size)
{
	struct serving *serving = context;

	agent_uplink_send(serving->uplink, MESSAGE_FETCHED, serving->sequence,
			  &(struct message_fetched){serving->from, status}, data, size);
	free(serving);
}

void agent_pmix_fetch(struct agent_pmix *pmix, const struct message *message)
{
	struct serving *serving = calloc(1, sizeof *serving);
	int rc = -ERR_UNAVAILABLE;

	if (!serving)
		return;
	*serving = (struct serving){pmix->uplink, message->wire->sequence, message->fetch.from};
	if (pmix->server)
		rc = ranks_server_process.serve(pmix->server, message->fetch.rank, served, serving);
	if (rc)
		served(serving, -ERR_NETWORK, NULL, 0);
}

static void host_abort(void *context, int local_rank, int status, const char *text)
{
	struct agent_pmix *pmix = context;

	log_info(LOG_PMIX, "local rank %d called abort with status %d", local_rank, status);
	agent_uplink_report(pmix->uplink, MESSAGE_ABORT,
			    &(struct message_abort){agent_job_rank(pmix->job, (size_t)local_rank),
						    status, text});
}

/* The PMIx library crashed. Ranks that use it lose their connection and report that. While the
 * agent ends the ranks anyway, the crash does not matter. */
static void host_lost(void *context, const char *text)
{
	struct agent_pmix *pmix = context;

	loop_remove(pmix->loop, &pmix->source);
	if (!pmix->stopping)
		agent_uplink_note(pmix->uplink,
				  "the PMIx server of %s %s; PMIx and MPI programs cannot continue",
				  pmix->job->host, text);
}

static void host_ready(void *context)
{
	struct agent_pmix *pmix = context;

	loop_timer_stop(&pmix->late);
	pmix->ready = true; /* act on it later, not from within the server's dispatch */
}

static void dispatch(struct loop_source *source, uint32_t events)
{
	(void)events;
	ranks_server_process.dispatch(LOOP_OWNER(source, struct agent_pmix, source)->server);
}

static void on_late(struct loop_timer *timer)
{
	server_process_start_late(LOOP_OWNER(timer, struct agent_pmix, late)->server);
}

/* Continue without PMIx for the reason in err, unless the job requires PMIx. */
static int continue_without(struct agent_pmix *pmix, const struct error *err)
{
	log_info(LOG_PMIX, "no PMIx server: %s", err->text);
	agent_pmix_stop(pmix);
	if (pmix->job->pmix_required)
		return -err->code;
	agent_uplink_note(pmix->uplink,
			  "no PMIx: %s; in MPI programs each rank has a world of size 1",
			  err->text);
	return 0;
}

void agent_pmix_fork(struct agent_pmix *pmix, struct loop *loop, struct agent_uplink *uplink,
		     const struct children *children, const char *module_path, const char *dir)
{
	*pmix = (struct agent_pmix){
		.source = {dispatch, -1, 0},
		.late.due = on_late,
		.loop = loop,
		.uplink = uplink,
		.children = children,
		.dir = dir,
		.host = {pmix, host_gather, host_fetch, host_abort, host_lost, host_ready},
	};
	server_process_fork(module_path, &pmix->process, &pmix->process_error);
}

void agent_pmix_prepare(struct agent_pmix *pmix, const char *host, int node_index)
{
	server_process_prepare(pmix->process, pmix->dir, host, node_index);
}

int agent_pmix_start(struct agent_pmix *pmix, const json_t *ranks, struct error *err)
{
	const struct agent_job *job = pmix->job;
	struct ranks_job ranks_job = job->layout;
	size_t count = agent_job_rank_count(job);
	const char **cpus = NULL;
	char name[300], secret[65];
	int rc = 0;

	pmix->ready = false;
	if (job->pmix_disabled || !count) {
		agent_pmix_stop(pmix);
		return 0;
	}
	if (!pmix->process) {
		*err = pmix->process_error;
		return continue_without(pmix, err);
	}
	cpus = calloc(count, sizeof *cpus);
	if (!cpus)
		return error_memory(err, "the ranks' locations");
	for (size_t i = 0; i < count; i++)
		cpus[i] = json_string_value(json_object_get(json_array_get(ranks, i), "cpus"));
	/* The name ends in 128 bits that other users cannot guess: whoever knows it could claim to
	 * be a rank. */
	snprintf(name, sizeof name, "%.180s.%u", job->id, job->attempt);
	secret_for_ranks(&pmix->uplink->params->secret, name, SECRET_FOR_PMIX, secret);
	snprintf(name + strlen(name), sizeof name - strlen(name), ".%.32s", secret);
	explicit_bzero(secret, sizeof secret);
	ranks_job.name = name;
	ranks_job.cpus = cpus;
	ranks_job.dir = pmix->dir;
	rc = server_process_start_async(pmix->process, &ranks_job, &pmix->host, &pmix->server, err);
	if (!rc)
		rc = loop_add(pmix->loop, &pmix->source,
			      ranks_server_process.descriptor(pmix->server), EPOLLIN, err);
	if (!rc)
		loop_timer_after(pmix->loop, &pmix->late, SERVER_PROCESS_START_MS);
	free(cpus);
	return rc ? continue_without(pmix, err) : 0;
}

int agent_pmix_start_result(struct agent_pmix *pmix, struct error *err)
{
	if (pmix->server && server_process_start_result(pmix->server, err))
		return continue_without(pmix, err);
	if (pmix->server)
		log_info(LOG_PMIX, "namespace %s.%u.* is registered: %zu ranks on this node",
			 pmix->job->id, pmix->job->attempt, agent_job_rank_count(pmix->job));
	return 0;
}

int agent_pmix_environment(struct agent_pmix *pmix, int local_rank, struct env *env,
			   struct error *err)
{
	return pmix->server ? ranks_server_process.environment(pmix->server, local_rank, env, err)
			    : 0;
}

void agent_pmix_rank_ended(struct agent_pmix *pmix, int local_rank)
{
	if (pmix->server)
		ranks_server_process.rank_ended(pmix->server, local_rank);
}

void agent_pmix_stop(struct agent_pmix *pmix)
{
	struct ranks_server *server = pmix->server;

	loop_remove(pmix->loop, &pmix->source);
	loop_timer_stop(&pmix->late);
	/* From now on no callback uses it. */
	pmix->server = NULL;
	/* Fail every request that will get no answer, so that the server does not hang in stop. */
	for (struct gather *gather = pmix->gathers.first; gather; gather = gather->next)
		if (server && gather->own)
			ranks_server_process.gather_done(server, gather->token, -ERR_NETWORK, NULL,
							 0);
	gathers_free(&pmix->gathers);
	while (pmix->fetches) {
		struct fetch *fetch = pmix->fetches;

		pmix->fetches = fetch->next;
		if (server)
			ranks_server_process.fetch_done(server, fetch->token, -ERR_NETWORK, NULL,
							0);
		free(fetch);
	}
	if (server)
		ranks_server_process.stop(server);
	server_process_free(pmix->process);
	pmix->process = NULL;
}
