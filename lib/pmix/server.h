/* SPDX-License-Identifier: BSD-3-Clause */
/* Inside ranks-pmix.so: shared by the parts of the embedded server.
 *
 *   server.c          start and stop, the ranks' environment, answers from the agent
 *   server_library.c  start of PMIx's server library
 *   server_job.c      registers the job with PMIx
 *   server_calls.c    PMIx's up-calls: from its progress thread to the agent's thread
 *   server_socket.c   a time limit for unauthenticated peers at PMIx's own listening socket */
#ifndef BERTH_PMIX_SERVER_H
#define BERTH_PMIX_SERVER_H

#include <hwloc.h>
#include <pmix.h>
#include <pmix_server.h>
#include <stdbool.h>

#include "rendezvous/ranks.h"

enum call_kind {
	CALL_GATHER, /* a fence whose other participants are on other nodes */
	CALL_FETCH,  /* direct modex: data of a rank of another node */
	CALL_ABORT,
	CALL_SERVED, /* what a local rank published, requested by another agent */
};

/* One up-call of PMIx, or an answer, on its way to the agent's thread. The queue owns it, then the
 * code that answers it. call_free drops it without an answer. */
struct call {
	enum call_kind kind;
	struct call *next; /* in the queue, or in a list that belongs to the agent's thread */
	/* A CALL_SERVED stays in server->serving until it is answered. */
	struct call *next_serving;
	/* CALL_SERVED: NULL after stop; PMIx's answer then frees the call. */
	struct ranks_server *server;
	pmix_proc_t proc;
	int status;
	char *data; /* fence, served: a copy; abort: the message */
	size_t size;
	union {
		pmix_op_cbfunc_t op;
		pmix_modex_cbfunc_t modex;
		/* NULL: already answered, because the rank has ended */
		void (*served)(void *context, int status, const void *data, size_t size);
	} done;
	void *context; /* argument for done */
};

struct ranks_server {
	char *name; /* namespace */
	char *dir;
	int world_size, first_rank, local_count, node_count;
	struct ranks_host host;
	int event_fd;
	uint64_t sequence; /* number of collectives so far */

	/* Under the lock of server_lock. */
	struct call *first, **last; /* the queue */

	/* Used only by the agent's thread. */
	bool *ended;	      /* [local_count] */
	struct call *waiting; /* unanswered gathers and fetches */
	struct call *serving; /* requests of other agents handed to PMIx */
};

extern pmix_server_module_t server_module;

/* There is one server per process, because PMIx's up-calls carry no context. The lock keeps it
 * while an up-call runs. */
void server_lock(void);
void server_unlock(void);
/* Make server the active one; NULL: none. From then on no up-call touches the previous one. */
void server_activate(struct ranks_server *server);
/* Name of the active server, or NULL; for the agent's thread. */
const char *server_active_name(void);

/* server_library.c: start PMIx's server library once per process; later calls do nothing. The
 * library stays until the process ends: PMIx 4.2 does not survive a second PMIx_server_init.
 * Changes the environment during the call and adds threads. Return 0; -ERR_UNAVAILABLE with PMIx's
 * message; -ERR_INTERNAL if it runs already for a node of another name. */
int server_library_start(const char *dir, const char *node, int node_index, struct error *err);
/* The topology without I/O devices, lent to PMIx. NULL: hwloc found nothing. */
hwloc_topology_t server_library_topology(void);

/* server_socket.c: set a receive timeout on every listening TCP socket of this process, which
 * bounds a new peer's first message. Call it once PMIx listens. It does not block. Without /proc it
 * changes nothing. */
void server_socket_set_timeout(void);

/* server_job.c: register the job and its local ranks with PMIx. Return 0, or -ERR_UNAVAILABLE with
 * PMIx's message. */
int server_register(struct ranks_server *server, const struct ranks_job *job, struct error *err);
/* Deregister them, within timeout_ms. */
void server_deregister(const struct ranks_server *server, int timeout_ms);

/* server_calls.c */
void call_free(struct call *call);
void call_push(struct ranks_server *server, struct call *call); /* the caller holds the lock */
struct call *call_pop_all(struct ranks_server *server);		/* in order of arrival */
/* The local rank of proc if it is one of this node's ranks of the job, else -1. */
int server_local_rank(const struct ranks_server *server, const pmix_proc_t *proc);

#endif
