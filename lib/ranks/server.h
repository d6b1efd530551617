/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside ranks-pmix.so: what the parts of the embedded server share.
 *
 *   server.c        start and stop, the ranks' environment, answers from the agent
 *   server_job.c    what PMIx is told about the job
 *   server_calls.c  PMIx's up-calls: from its progress thread to the agent's thread
 *   server_store.c  publish, lookup, unpublish */
#ifndef BERTH_RANKS_SERVER_H
#define BERTH_RANKS_SERVER_H

#include <hwloc.h>
#include <pmix.h>
#include <pmix_server.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "ranks/ranks.h"

enum call_kind {
	CALL_GATHER, /* a fence whose other participants are on other nodes */
	CALL_FETCH,  /* direct modex: data of a rank of another node */
	CALL_ABORT,
	CALL_PUBLISH,
	CALL_LOOKUP,
	CALL_UNPUBLISH,
	CALL_SERVED, /* what a local rank published, for another agent */
};

/* One up-call (or answer) of PMIx on its way to the agent's thread. Owned by the queue, then by
 * whoever answers it; call_free drops it without an answer. */
struct call {
	enum call_kind kind;
	struct call *next;	   /* in the queue or in a list of the agent's thread */
	struct call *next_serving; /* CALL_SERVED is in server->serving until it is answered */
	pmix_proc_t proc;
	int status;
	char *data; /* fence, served: a copy; abort: the text */
	size_t size;
	char **keys;	   /* lookup, unpublish: PMIx's array, copied */
	pmix_info_t *info; /* publish: copies */
	size_t info_count;
	bool wait; /* lookup: until the keys are there */
	union {
		pmix_op_cbfunc_t op;
		pmix_modex_cbfunc_t modex;
		pmix_lookup_cbfunc_t lookup;
		/* NULL: answered already, because the rank has ended */
		void (*served)(void *context, int status, const void *data, size_t size);
	} done;
	void *context; /* handed to done */
};

/* How far a local rank has come with PMIx; written by PMIx's thread, read by the agent's. */
enum phase { PHASE_STARTED, PHASE_CONNECTED, PHASE_FINALIZED, PHASE_ENDED };

struct published {
	struct published *next;
	pmix_proc_t publisher;
	char *key;
	pmix_value_t value;
	bool once; /* gone after the first lookup (PMIX_PERSIST_FIRST_READ) */
};

struct ranks_server {
	char *name; /* namespace */
	char *folder;
	int world_size, first_rank, local_count, node_count;
	struct ranks_host host;
	hwloc_topology_t topology; /* lent to PMIx; NULL when hwloc found nothing */
	int event_fd;
	uint64_t sequence; /* collectives so far */
	bool initialized;  /* PMIx_server_init has succeeded */

	pthread_mutex_t lock;	    /* guards the queue, from here ... */
	struct call *first, **last; /* ... to here */

	atomic_int *phase;  /* [local_count] */
	atomic_int gathers; /* under way between the agents: all local ranks are in */

	/* The agent's thread only. */
	struct call *waiting; /* gathers, fetches and lookups without an answer yet */
	struct call *serving; /* requests of other agents handed to PMIx */
	struct published *published;
};

/* The one server of this process: PMIx's up-calls carry no context. */
extern _Atomic(struct ranks_server *) server_active;
extern pmix_server_module_t server_module;

/* server_job.c: tell PMIx of the job and its local ranks. -ERR_UNAVAILABLE: PMIx's words. */
int server_register(struct ranks_server *server, const struct ranks_job *job, struct error *err);

/* server_calls.c */
void call_free(struct call *call);
void call_push(struct ranks_server *server, struct call *call);
struct call *call_take_all(struct ranks_server *server); /* in order of arrival */
/* Is proc one of this node's ranks of the job? Its local rank, or -1. */
int server_local_rank(const struct ranks_server *server, const pmix_proc_t *proc);

/* server_store.c: all answer the call and free it (a waiting lookup is kept). */
void store_publish(struct ranks_server *server, struct call *call);
void store_lookup(struct ranks_server *server, struct call *call);
void store_unpublish(struct ranks_server *server, struct call *call);
void store_free(struct ranks_server *server);

#endif
