/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside ranks-pmix.so: what the parts of the embedded server share.
 *
 *   server.c          start and stop, the ranks' environment, answers from the agent
 *   server_job.c      what PMIx is told about the job
 *   server_calls.c    PMIx's up-calls: from its progress thread to the agent's thread
 *   server_store.c    publish, lookup, unpublish
 *   server_socket.c     a time limit for strangers at PMIx's own listening socket */
#ifndef BERTH_PMIX_SERVER_H
#define BERTH_PMIX_SERVER_H

#include <hwloc.h>
#include <pmix.h>
#include <pmix_server.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "rendezvous/ranks.h"

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
	struct call *next;	     /* in the queue or in a list of the agent's thread */
	struct call *next_serving;   /* CALL_SERVED is in server->serving until it is answered */
	struct ranks_server *server; /* CALL_SERVED: NULL after stop; PMIx's answer then frees it */
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
enum client_phase {
	CLIENT_PHASE_STARTED,
	CLIENT_PHASE_CONNECTED,
	CLIENT_PHASE_FINALIZED,
	CLIENT_PHASE_ENDED
};

struct published {
	struct published *next;
	pmix_proc_t publisher;
	char *key;
	pmix_value_t value;
	bool once; /* gone after the first lookup (PMIX_PERSIST_FIRST_READ) */
};

struct ranks_server {
	char *name; /* namespace */
	char *dir;
	int world_size, first_rank, local_count, node_count;
	struct ranks_host host;
	int event_fd;
	uint64_t sequence; /* collectives so far */

	/* Under the lock of server_lock_active. */
	struct call *first, **last; /* the queue */

	atomic_int *phase;  /* [local_count] */
	atomic_int gathers; /* under way between the agents: all local ranks are in */

	/* The agent's thread only. */
	struct call *waiting; /* gathers, fetches and lookups without an answer yet */
	struct call *serving; /* requests of other agents handed to PMIx */
	struct published *published;
};

extern pmix_server_module_t server_module;

/* The one server of this process: PMIx's up-calls carry no context. server_lock_active locks and
 * returns it, or returns NULL, not locked, when there is none. */
struct ranks_server *server_lock_active(void);
void server_unlock(void);
void server_lock(void); /* the same lock, whether there is a server or not */
/* Make server the one; NULL: none. From then on no up-call touches the one before. */
void server_activate(struct ranks_server *server);
const char *server_active_name(void); /* of the active server; NULL: none. The agent's thread. */

/* server_library.c: start PMIx's server library; once a process, later calls do nothing. The
 * library stays to the end of the process: PMIx 4.2 does not survive a second PMIx_server_init.
 * Changes the environment for the time of the call, adds threads. -ERR_UNAVAILABLE: PMIx's words;
 * -ERR_INTERNAL: started already for a node of another name.
 */
int server_library_start(const char *dir, const char *node, int node_index, struct error *err);
/* Without I/O devices; lent to PMIx. NULL: hwloc found nothing. */
hwloc_topology_t server_library_topology(void);

/* server_socket.c: give every listening TCP socket of this process a limit for the first words of
 * who connects. To be called once PMIx listens; does not block. Without /proc nothing is changed.
 */
void server_socket_set_timeout(void);

/* server_job.c: tell PMIx of the job and its local ranks. -ERR_UNAVAILABLE: PMIx's words. */
int server_register(struct ranks_server *server, const struct ranks_job *job, struct error *err);
/* Make PMIx forget them. At most timeout_ms. */
void server_deregister(const struct ranks_server *server, int timeout_ms);

/* server_calls.c */
void call_free(struct call *call);
void call_push(struct ranks_server *server, struct call *call); /* locked already */
struct call *call_pop_all(struct ranks_server *server);		/* in order of arrival */
/* Is proc one of this node's ranks of the job? Its local rank, or -1. */
int server_local_rank(const struct ranks_server *server, const pmix_proc_t *proc);

/* server_store.c: all answer the call and free it (a waiting lookup is kept). */
void server_store_publish(struct ranks_server *server, struct call *call);
void server_store_lookup(struct ranks_server *server, struct call *call);
void server_store_unpublish(struct ranks_server *server, struct call *call);
void server_store_free(struct ranks_server *server);

#endif
