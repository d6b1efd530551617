/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage ranks: how the processes of a job know and meet each other.
 *
 * Two sides. Server (module ranks-pmix.so, loaded by the agent): an embedded PMIx server for the
 * ranks of one node. Client: a process's own place, from PMIx (the same module) or from RANK,
 * WORLD_SIZE, MASTER_* alone (env.c). */
#ifndef BERTH_RENDEZVOUS_RANKS_H
#define BERTH_RENDEZVOUS_RANKS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/env.h"
#include "base/error.h"

/* ---- server ---- */

/* The job as PMIx clients see it. Borrowed during start only. */
struct ranks_job {
	const char *name; /* namespace; unique to job and attempt */
	int world_size;
	int node_index; /* this node */
	int node_count;
	const char *const *nodes; /* host names, node order */
	const int *first_rank;	  /* [node_count]: node n has ranks first_rank[n] .. */
	const int *rank_count;	  /* [node_count] */
	const char *const *cpus;  /* [rank_count of this node]: "0-3", for locality; or NULL */
	const char *dir;	  /* private to this agent, exists; sockets and files go there */
};

/* What the server needs of the agent. All calls are made from ranks_server_dispatch, in the
 * agent's thread. token is handed back by the matching ranks_server_*_done call. */
struct ranks_host {
	void *context;
	/* All agents with ranks of the job contribute data (borrowed during the call) to
	 * collective number sequence (equal for all, counted by each agent); the answer is
	 * everybody's data one after another in node order. */
	int (*gather)(void *context, uint64_t sequence, const void *data, size_t size, void *token);
	/* The data that rank's own server holds for it (direct modex). */
	int (*fetch)(void *context, int rank, void *token);
	/* A rank called PMIx_Abort. */
	void (*abort)(void *context, int local_rank, int status, const char *text);
	/* The server ended by itself; text says how ("ended by signal 11 (...)"). Only of a server
	 * in a process of its own (pmix/server_process.h); may be NULL. */
	void (*lost)(void *context, const char *text);
	/* The start that server_process_start_async asked for is over: server_process_start_result
	 * says how. Not to free the server from within. May be NULL. */
	void (*ready)(void *context);
};

struct ranks_server; /* opaque */

/* The module's table; symbol "ranks_server_pmix". All calls from the agent's one thread. One
 * server a process at a time; start again after stop is allowed.
 * Not offered to the ranks (PMIX_ERR_NOT_SUPPORTED): spawn, groups, job control, tools,
 * forwarding of output; on several nodes also publish and lookup, connect, events to other
 * nodes, and fences of some of the ranks that span nodes. */
struct ranks_server_ops {
	/* Do early what does not depend on the job (half of what start costs); optional. folder and
	 * node are those of the job that start is told of later. -ERR_UNAVAILABLE as start. */
	int (*prepare)(const char *dir, const char *node, int node_index, struct error *err);
	/* Start the server; changes the environment of this process for the time of the call
	 * (PMIx's settings), adds threads. -ERR_UNAVAILABLE with PMIx's own words. */
	int (*start)(const struct ranks_job *job, const struct ranks_host *host,
		     struct ranks_server **out, struct error *err);
	/* What a rank needs in its environment to find the server, and for Open MPI 4 to see it. */
	int (*environment)(struct ranks_server *server, int local_rank, struct env *changes,
			   struct error *err);
	/* Readable when dispatch has something to do. */
	int (*descriptor)(struct ranks_server *server);
	void (*dispatch)(struct ranks_server *server);
	/* Answers; data is copied. status 0 or -ERR_NETWORK. */
	void (*gather_done)(struct ranks_server *server, void *token, int status, const void *data,
			    size_t size);
	void (*fetch_done)(struct ranks_server *server, void *token, int status, const void *data,
			   size_t size);
	/* Another agent wants what a local rank published; done is called from dispatch. */
	int (*serve)(struct ranks_server *server, int rank,
		     void (*done)(void *context, int status, const void *data, size_t size),
		     void *context);
	/* A local rank has ended; nothing waits for it any longer. */
	void (*rank_ended)(struct ranks_server *server, int local_rank);
	/* Which local ranks keep others waiting, as far as that can be known: PMIx tells its host
	 * of a fence only when all local ranks have entered it. Writes the set ("1,3") of ranks
	 * that are not connected (no PMIx_Init yet, PMIx_Finalize, ended) while others are; ""
	 * when all are, when none is (no PMIx program), or when a fence waits for other nodes.
	 * Ranks that are connected and late are named by their peers' barrier instead. */
	void (*missing)(struct ranks_server *server, char *text, size_t size);
	/* Ends the job's server and removes its files; PMIx's library, its threads and its
	 * listening socket stay for the next attempt, to the end of the process. Gathers and
	 * fetches without an answer are dropped. NULL is fine; bounded by 2 s. */
	void (*stop)(struct ranks_server *server);
};

/* ---- client ---- */

struct ranks; /* opaque: this process's place in its job */

struct ranks_place {
	int rank, size, local_rank, local_size, node_rank;
	char address[64]; /* MASTER_ADDR; "127.0.0.1" for a world of one */
	int port;	  /* MASTER_PORT; 0 when none */
};

/* Implementations: symbol "ranks_client_pmix" in ranks-pmix.so, and ranks_client_env. */
struct ranks_client_ops {
	const char *name;
	int (*join)(const struct env *env, int timeout_ms, void **state, struct ranks_place *place,
		    struct error *err);
	int (*barrier)(void *state, int timeout_ms, struct error *err);
	int (*put)(void *state, const char *key, const void *data, size_t size, struct error *err);
	/* Blocks until rank has put key or the time is over (-ERR_NETWORK names rank and key).
	 * *data malloced, with a NUL after its *size bytes. rank RANKS_ANY: as ranks_get_any. */
	int (*get)(void *state, int rank, const char *key, int timeout_ms, void **data,
		   size_t *size, struct error *err);
	void (*leave)(void *state);
};
extern const struct ranks_client_ops ranks_client_env;

/* Join by PMIx where the environment has PMIX_NAMESPACE and the module loads, else by RANK and
 * WORLD_SIZE, else as a world of one. -ERR_DATA: contradictory variables, named. */
int ranks_join(const struct env *env, int timeout_ms, struct ranks **out, struct error *err);
const struct ranks_place *ranks_place(const struct ranks *ranks);
int ranks_barrier(struct ranks *ranks, int timeout_ms, struct error *err);
int ranks_put(struct ranks *ranks, const char *key, const void *data, size_t size,
	      struct error *err);
int ranks_get(struct ranks *ranks, int rank, const char *key, int timeout_ms, void **data,
	      size_t *size, struct error *err);
#define RANKS_ANY (-1)
/* Of the ranks that have put key, what the first of them put. -ERR_NETWORK: none has within
 * timeout_ms. -ERR_UNAVAILABLE: nobody can be asked: PMIx has no such question, or rank 0, which
 * keeps the values where there is no PMIx, has ended. */
int ranks_get_any(struct ranks *ranks, const char *key, int timeout_ms, void **data, size_t *size,
		  struct error *err);
void ranks_leave(struct ranks *ranks); /* NULL is fine */

#endif
