/* SPDX-License-Identifier: BSD-3-Clause */
/* PMIx's up-calls. They run in PMIx's progress thread, must not block, and must not touch what the
 * agent's thread owns. Whatever needs the agent is copied and queued. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "base/bytes.h"
#include "pmix/server.h"

static pthread_mutex_t active_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ranks_server *active;

/* Lock and return the server. If there is none, return NULL without locking. */
static struct ranks_server *server_lock_active(void)
{
	pthread_mutex_lock(&active_lock);
	struct ranks_server *server = active;

	if (!server)
		pthread_mutex_unlock(&active_lock);
	return server;
}

void server_lock(void)
{
	pthread_mutex_lock(&active_lock);
}

void server_unlock(void)
{
	pthread_mutex_unlock(&active_lock);
}

void server_activate(struct ranks_server *server)
{
	pthread_mutex_lock(&active_lock);
	active = server;
	pthread_mutex_unlock(&active_lock);
}

const char *server_active_name(void)
{
	/* No lock: only the thread that calls this changes it. */
	return active ? active->name : NULL;
}

static void unlock_active(struct ranks_server **server)
{
	if (*server)
		server_unlock();
}
/* The up-calls hold the lock until they return. */
#define LOCKED __attribute__((cleanup(unlock_active))) struct ranks_server *

void call_free(struct call *call)
{
	if (!call)
		return;
	free(call->data);
	free(call);
}

void call_push(struct ranks_server *server, struct call *call)
{
	call->next = NULL;
	*server->last = call;
	server->last = &call->next;
	/* It fails only if the counter is full, and the descriptor is readable then anyway. */
	(void)!eventfd_write(server->event_fd, 1);
}

struct call *call_pop_all(struct ranks_server *server)
{
	pthread_mutex_lock(&active_lock);
	struct call *calls = server->first;

	server->first = NULL;
	server->last = &server->first;
	pthread_mutex_unlock(&active_lock);
	return calls;
}

int server_local_rank(const struct ranks_server *server, const pmix_proc_t *proc)
{
	if (strcmp(proc->nspace, server->name) || proc->rank >= (pmix_rank_t)server->world_size)
		return -1;
	int local_rank = (int)proc->rank - server->first_rank;

	return local_rank >= 0 && local_rank < server->local_count ? local_rank : -1;
}

/* Queue a copy of call, and of what it borrows from PMIx. */
static pmix_status_t queue_copy(struct ranks_server *server, const struct call *call)
{
	struct call *copy = malloc(sizeof *copy);

	if (!copy)
		return PMIX_ERR_NOMEM;
	*copy = *call;
	copy->data = call->size ? bytes_copy(call->data, call->size) : NULL;
	if (call->size && !copy->data) {
		call_free(copy);
		return PMIX_ERR_NOMEM;
	}
	call_push(server, copy);
	return PMIX_SUCCESS;
}

static pmix_status_t check_client(const pmix_proc_t *proc)
{
	LOCKED server = server_lock_active();

	/* This status means that it is done, so PMIx does not wait for a call of done. */
	return server && server_local_rank(server, proc) >= 0 ? PMIX_OPERATION_SUCCEEDED
							      : PMIX_ERR_NOT_FOUND;
}

static pmix_status_t client_connected(const pmix_proc_t *proc, void *object, pmix_info_t *info,
				      size_t info_count, pmix_op_cbfunc_t done, void *context)
{
	return check_client(proc);
}

static pmix_status_t client_finalized(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t done,
				      void *context)
{
	return check_client(proc);
}

static pmix_status_t abort_call(const pmix_proc_t *proc, void *object, int status, const char *text,
				pmix_proc_t *procs, size_t proc_count, pmix_op_cbfunc_t done,
				void *context)
{
	LOCKED server = server_lock_active();

	if (!server || server_local_rank(server, proc) < 0)
		return PMIX_ERR_NOT_FOUND;
	if (!text)
		text = "";
	return queue_copy(server, &(struct call){.kind = CALL_ABORT,
						 .proc = *proc,
						 .status = status,
						 .data = (char *)text,
						 .size = strlen(text) + 1,
						 .done.op = done,
						 .context = context});
}

/* The participants of a fence. */
enum scope { SCOPE_LOCAL, SCOPE_JOB, SCOPE_OTHER };

static enum scope fence_scope(const struct ranks_server *server, const pmix_proc_t *procs,
			      size_t count)
{
	bool local = true;

	for (size_t i = 0; i < count; i++) {
		if (strcmp(procs[i].nspace, server->name))
			return SCOPE_OTHER;
		if (procs[i].rank == PMIX_RANK_WILDCARD)
			return server->node_count == 1 ? SCOPE_LOCAL : SCOPE_JOB;
		local = local && server_local_rank(server, &procs[i]) >= 0;
	}
	if (local)
		return SCOPE_LOCAL;
	return count == (size_t)server->world_size ? SCOPE_JOB : SCOPE_OTHER;
}

static pmix_status_t fence(const pmix_proc_t *procs, size_t proc_count, const pmix_info_t *info,
			   size_t info_count, char *data, size_t size, pmix_modex_cbfunc_t done,
			   void *context)
{
	LOCKED server = server_lock_active();

	if (!server)
		return PMIX_ERR_NOT_AVAILABLE;
	switch (fence_scope(server, procs, proc_count)) {
	case SCOPE_LOCAL: {
		/* PMIx calls this once all its clients have entered, and there are no others. It
		 * reads the data later, at its own time. */
		char *copy = size ? bytes_copy(data, size) : NULL;

		if (size && !copy)
			return PMIX_ERR_NOMEM;
		done(PMIX_SUCCESS, copy, size, context, free, copy);
		return PMIX_SUCCESS;
	}
	/* The agents have no collective of some nodes only (lib/overlay/tree.h). */
	case SCOPE_OTHER:
		return PMIX_ERR_NOT_SUPPORTED;
	case SCOPE_JOB:
		break;
	}
	return queue_copy(server, &(struct call){.kind = CALL_GATHER,
						 .data = data,
						 .size = size,
						 .done.modex = done,
						 .context = context});
}

static pmix_status_t direct_modex(const pmix_proc_t *proc, const pmix_info_t *info,
				  size_t info_count, pmix_modex_cbfunc_t done, void *context)
{
	LOCKED server = server_lock_active();

	if (!server || strcmp(proc->nspace, server->name) ||
	    proc->rank >= (pmix_rank_t)server->world_size)
		return PMIX_ERR_NOT_FOUND;
	return queue_copy(server, &(struct call){.kind = CALL_FETCH,
						 .proc = *proc,
						 .done.modex = done,
						 .context = context});
}

/* PMIx has seen all local participants; on one node there are no others. */
static pmix_status_t connect_call(const pmix_proc_t *procs, size_t proc_count,
				  const pmix_info_t *info, size_t info_count, pmix_op_cbfunc_t done,
				  void *context)
{
	LOCKED server = server_lock_active();

	if (!server || fence_scope(server, procs, proc_count) != SCOPE_LOCAL)
		return PMIX_ERR_NOT_SUPPORTED;
	return PMIX_OPERATION_SUCCEEDED;
}

/* Events between local ranks travel inside PMIx; the agent adds none of its own. */
static pmix_status_t register_events(pmix_status_t *codes, size_t code_count,
				     const pmix_info_t *info, size_t info_count,
				     pmix_op_cbfunc_t done, void *context)
{
	return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t deregister_events(pmix_status_t *codes, size_t code_count,
				       pmix_op_cbfunc_t done, void *context)
{
	return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t notify_event(pmix_status_t code, const pmix_proc_t *source,
				  pmix_data_range_t range, pmix_info_t *info, size_t info_count,
				  pmix_op_cbfunc_t done, void *context)
{
	LOCKED server = server_lock_active();

	if (server && (server->node_count == 1 || range == PMIX_RANGE_LOCAL ||
		       range == PMIX_RANGE_PROC_LOCAL))
		return PMIX_OPERATION_SUCCEEDED;
	return PMIX_ERR_NOT_SUPPORTED;
}

static void info_release(void *context)
{
	pmix_info_t *info = context;

	PMIX_INFO_FREE(info, 1);
}

/* berth answers one query itself (the names of the jobs: one). PMIx answers the rest from the
 * registered job data, or not at all. */
static pmix_status_t query(pmix_proc_t *proc, pmix_query_t *queries, size_t count,
			   pmix_info_cbfunc_t done, void *context)
{
	LOCKED server = server_lock_active();

	if (!server || count != 1 || !queries[0].keys || !queries[0].keys[0] ||
	    queries[0].keys[1] || strcmp(queries[0].keys[0], PMIX_QUERY_NAMESPACES))
		return PMIX_ERR_NOT_SUPPORTED;
	pmix_info_t *info;

	PMIX_INFO_CREATE(info, 1);
	if (!info)
		return PMIX_ERR_NOMEM;
	PMIX_INFO_LOAD(info, PMIX_QUERY_NAMESPACES, server->name, PMIX_STRING);
	done(PMIX_SUCCESS, info, 1, context, info_release, info);
	return PMIX_SUCCESS;
}

/* berth has no job control of its own. But PMIx calls this before it accepts what it does by
 * itself: removing a program's files when it ends (PMIX_REGISTER_CLEANUP), such as Open MPI's
 * shared memory in /dev/shm. */
static pmix_status_t job_control(const pmix_proc_t *from, const pmix_proc_t targets[],
				 size_t target_count, const pmix_info_t directives[], size_t count,
				 pmix_info_cbfunc_t done, void *context)
{
	return PMIX_ERR_NOT_SUPPORTED;
}

/* For members that are NULL (publish, spawn, groups, credentials, tools, forwarding of output) PMIx
 * returns PMIX_ERR_NOT_SUPPORTED. */
pmix_server_module_t server_module = {
	.client_connected2 = client_connected,
	.client_finalized = client_finalized,
	.abort = abort_call,
	.fence_nb = fence,
	.direct_modex = direct_modex,
	.connect = connect_call,
	.disconnect = connect_call,
	.register_events = register_events,
	.deregister_events = deregister_events,
	.notify_event = notify_event,
	.query = query,
	.job_control = job_control,
};
