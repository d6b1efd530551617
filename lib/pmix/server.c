/* SPDX-License-Identifier: BSD-3-Clause */
/* The embedded PMIx server: start, the ranks' environment, answers from the agent, stop. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "pmix/server.h"

/* Less than the agent waits for the reply: STOP_MS in server_process.c. */
#define STOP_TIMEOUT_MS 2000

static int check_job(const struct ranks_job *job, struct error *err)
{
	if (job->node_count < 1 || job->node_index < 0 || job->node_index >= job->node_count ||
	    job->world_size < 1)
		return error_set(err, ERR_INTERNAL,
				 "PMIx server: invalid job: node %d of %d, %d ranks",
				 job->node_index, job->node_count, job->world_size);
	if (!job->name[0] || strlen(job->name) > PMIX_MAX_NSLEN - 16)
		return error_set(err, ERR_INTERNAL,
				 "PMIx server: the job name has %zu bytes, expected 1 to %d",
				 strlen(job->name), PMIX_MAX_NSLEN - 16);
	int next = 0;

	for (int n = 0; n < job->node_count; n++) {
		/* server_local_rank relies on this: the ranks of a node follow each other. */
		if (job->first_rank[n] != next || job->rank_count[n] < 0)
			return error_set(err, ERR_INTERNAL,
					 "PMIx server: node %d starts at rank %d, expected %d", n,
					 job->first_rank[n], next);
		next += job->rank_count[n];
	}
	if (next != job->world_size)
		return error_set(
			err, ERR_INTERNAL,
			"PMIx server: the nodes have %d ranks in total, but the job has %d", next,
			job->world_size);
	if (server_active_name())
		return error_set(err, ERR_INTERNAL, "PMIx server: already running for job %s",
				 server_active_name());
	return 0;
}

static void serving_remove(struct ranks_server *server, const struct call *call)
{
	struct call **place = &server->serving;

	while (*place && *place != call)
		place = &(*place)->next_serving;
	if (*place)
		*place = call->next_serving;
}

static void server_free(struct ranks_server *server)
{
	for (struct call *call = call_pop_all(server), *next; call; call = next) {
		next = call->next;
		if (call->kind == CALL_SERVED)
			serving_remove(server, call);
		call_free(call);
	}
	for (struct call *call = server->waiting, *next; call; call = next) {
		next = call->next;
		call_free(call);
	}
	server_lock();
	/* PMIx has not answered these yet. When it does, served frees them. */
	for (struct call *call = server->serving; call; call = call->next_serving)
		call->server = NULL;
	server_unlock();
	if (server->event_fd >= 0)
		close(server->event_fd);
	free(server->ended);
	free(server->dir);
	free(server->name);
	free(server);
}

static struct ranks_server *server_new(const struct ranks_job *job, const struct ranks_host *host)
{
	struct ranks_server *server = calloc(1, sizeof *server);

	if (!server)
		return NULL;
	server->last = &server->first;
	server->name = strdup(job->name);
	server->dir = strdup(job->dir);
	server->world_size = job->world_size;
	server->first_rank = job->first_rank[job->node_index];
	server->local_count = job->rank_count[job->node_index];
	server->node_count = job->node_count;
	server->host = *host;
	server->ended = calloc((size_t)server->local_count + 1, sizeof *server->ended);
	server->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!server->name || !server->dir || !server->ended || server->event_fd < 0) {
		server_free(server);
		return NULL;
	}
	return server;
}

static void stop(struct ranks_server *server);

static int start_server(const struct ranks_job *job, const struct ranks_host *host,
			struct ranks_server **out, struct error *err)
{
	int rc = check_job(job, err);

	if (!rc)
		rc = server_library_start(job->dir, job->nodes[job->node_index], job->node_index,
					  err);
	if (rc)
		return rc;
	struct ranks_server *server = server_new(job, host);

	if (!server)
		return error_memory(err, "the PMIx server");
	server_activate(server);
	rc = server_register(server, job, err);
	if (rc)
		stop(server);
	else
		*out = server;
	return rc;
}

static int environment(struct ranks_server *server, int local_rank, struct env *changes,
		       struct error *err)
{
	pmix_proc_t proc;
	char **list = NULL;
	int rc = 0;

	PMIX_LOAD_PROCID(&proc, server->name, (pmix_rank_t)(server->first_rank + local_rank));
	pmix_status_t status = PMIx_server_setup_fork(&proc, &list);

	if (status != PMIX_SUCCESS)
		rc = error_set(err, ERR_UNAVAILABLE, "PMIx provides no environment for rank %u: %s",
			       proc.rank, PMIx_Error_string(status));
	for (char **entry = list; entry && *entry; entry++) {
		char *equals = strchr(*entry, '=');

		if (equals && !rc) {
			*equals = 0;
			rc = env_set(changes, *entry, equals + 1, ENV_FROM_BERTH,
				     "berth's PMIx server", err);
		}
		free(*entry);
	}
	free(list);
	/* The library keeps the directory of its first start. */
	if (!rc)
		rc = env_set(changes, "PMIX_SERVER_TMPDIR", server->dir, ENV_FROM_BERTH,
			     "berth's PMIx server", err);
	if (!rc)
		rc = env_set(changes, "PMIX_SYSTEM_TMPDIR", server->dir, ENV_FROM_BERTH,
			     "berth's PMIx server", err);
	/* Open MPI 4 looks for its own mpirun first; without one it runs each process as a world of
	 * one. With that component disabled it uses PMIx's values. mpirun itself still works. */
	if (!rc)
		rc = env_set(changes, "OMPI_MCA_schizo", "^orte", ENV_FROM_BERTH,
			     "Open MPI 4 takes its ranks from PMIx", err);
	return rc;
}

static int descriptor(struct ranks_server *server)
{
	return server->event_fd;
}

/* Remove call from list; false if it is not there (already answered). */
static bool list_remove(struct call **list, const struct call *call)
{
	for (; *list; list = &(*list)->next) {
		if (*list != call)
			continue;
		*list = call->next;
		return true;
	}
	return false;
}

static void modex_answer(struct ranks_server *server, struct call *call, int status,
			 const void *data, size_t size)
{
	char *copy = !status && size ? bytes_copy(data, size) : NULL;

	if (status || (size && !copy))
		call->done.modex(status ? PMIX_ERR_LOST_CONNECTION : PMIX_ERR_NOMEM, NULL, 0,
				 call->context, NULL, NULL);
	else
		call->done.modex(PMIX_SUCCESS, copy, size, call->context, free, copy);
	call_free(call);
}

static void modex_done(struct ranks_server *server, void *token, int status, const void *data,
		       size_t size)
{
	if (list_remove(&server->waiting, token))
		modex_answer(server, token, status, data, size);
}

/* Answer the request of another agent, once. */
static void serve_answer(struct call *call, int status)
{
	if (call->done.served)
		call->done.served(call->context, status, status ? NULL : call->data,
				  status ? 0 : call->size);
	call->done.served = NULL;
}

static void call_run(struct ranks_server *server, struct call *call)
{
	const struct ranks_host *host = &server->host;
	int rc = -ERR_UNAVAILABLE;

	switch (call->kind) {
	case CALL_GATHER:
	case CALL_FETCH:
		/* List it first: an answer is accepted only for a listed request, and the host may
		 * answer before it returns. */
		call->next = server->waiting;
		server->waiting = call;
		if (call->kind == CALL_GATHER && host->gather)
			/* All nodes number the fences alike, because only those of all ranks get
			 * here. */
			rc = host->gather(host->context, server->sequence++, call->data, call->size,
					  call);
		else if (call->kind == CALL_FETCH && host->fetch)
			rc = host->fetch(host->context, (int)call->proc.rank, call);
		if (rc)
			modex_done(server, call, rc, NULL, 0);
		break;
	case CALL_ABORT:
		if (host->abort)
			host->abort(host->context, server_local_rank(server, &call->proc),
				    call->status, call->data);
		call->done.op(PMIX_SUCCESS, call->context);
		call_free(call);
		break;
	case CALL_SERVED:
		serving_remove(server, call);
		serve_answer(call, call->status == PMIX_SUCCESS ? 0 : -ERR_NETWORK);
		call_free(call);
		break;
	}
}

static void dispatch(struct ranks_server *server)
{
	eventfd_t count;

	(void)!eventfd_read(server->event_fd, &count);
	for (struct call *call = call_pop_all(server), *next; call; call = next) {
		next = call->next;
		call_run(server, call);
	}
}

/* Runs in PMIx's thread, which frees data when this returns. */
static void served(pmix_status_t status, char *data, size_t size, void *context)
{
	struct call *call = context;

	call->status = status;
	if (status == PMIX_SUCCESS && size) {
		call->data = bytes_copy(data, size);
		call->size = call->data ? size : 0;
		call->status = call->data ? PMIX_SUCCESS : PMIX_ERR_NOMEM;
	}
	server_lock();
	if (call->server)
		call_push(call->server, call);
	else
		call_free(call);
	server_unlock();
}

static int serve(struct ranks_server *server, int rank,
		 void (*done)(void *context, int status, const void *data, size_t size),
		 void *context)
{
	pmix_proc_t proc;

	PMIX_LOAD_PROCID(&proc, server->name, (pmix_rank_t)rank);
	int local_rank = server_local_rank(server, &proc);

	if (local_rank < 0 || server->ended[local_rank])
		return -ERR_NETWORK;
	struct call *call = malloc(sizeof *call);

	if (!call)
		return -ERR_UNAVAILABLE;
	*call = (struct call){.kind = CALL_SERVED,
			      .proc = proc,
			      .done.served = done,
			      .context = context,
			      .server = server,
			      .next_serving = server->serving};
	server->serving = call;
	if (PMIx_server_dmodex_request(&proc, served, call) == PMIX_SUCCESS)
		return 0;
	server->serving = call->next_serving;
	call_free(call);
	return -ERR_NETWORK;
}

static void rank_ended(struct ranks_server *server, int local_rank)
{
	if (local_rank < 0 || local_rank >= server->local_count)
		return;
	server->ended[local_rank] = true;
	/* PMIx would keep the request until the rank publishes, which it will not. */
	for (struct call *call = server->serving; call; call = call->next_serving)
		if (server_local_rank(server, &call->proc) == local_rank)
			serve_answer(call, -ERR_NETWORK);
}

static int remove_entry(const char *path, const struct stat *info, int type, struct FTW *place)
{
	remove(path);
	return 0;
}

static void stop(struct ranks_server *server)
{
	char dir[4096];

	if (!server)
		return;
	/* First of all: from now on no up-call finds the server and queues anything for it. */
	server_activate(NULL);
	server_deregister(server, STOP_TIMEOUT_MS);
	if ((size_t)snprintf(dir, sizeof dir, "%s/ranks", server->dir) < sizeof dir)
		nftw(dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	/* The topology that PMIx shares; a later attempt's ranks find it in other ways. */
	if ((size_t)snprintf(dir, sizeof dir, "%s/hwloc.sm", server->dir) < sizeof dir)
		unlink(dir);
	server_free(server);
}

__attribute__((visibility("default"))) const struct ranks_server_ops ranks_server_pmix = {
	.prepare = server_library_start,
	.start = start_server,
	.environment = environment,
	.descriptor = descriptor,
	.dispatch = dispatch,
	.gather_done = modex_done,
	.fetch_done = modex_done,
	.serve = serve,
	.rank_ended = rank_ended,
	.stop = stop,
};
