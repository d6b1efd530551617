/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage rendezvous: how the processes of a job learn their places and find each other.
 *
 * It has two sides. The server (module ranks-pmix.so, loaded by the agent) is an embedded PMIx
 * server for the ranks of one node. The client finds a process's own place, from PMIx (the same
 * module) or from RANK, WORLD_SIZE and MASTER_* alone (env.c). */
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
	const char *name; /* namespace; unique per job and attempt */
	int world_size;
	int node_index; /* this node */
	int node_count;
	const char *const *nodes; /* host names in node order */
	const int *first_rank;	  /* [node_count]: node n has the ranks from first_rank[n] */
	const int *rank_count;	  /* [node_count] */
	const char *const *cpus;  /* [rank_count of this node]: "0-3", for locality; or NULL */
	const char *dir; /* private to this agent, must exist; sockets and files go there */
};

/* What the server needs from the agent. ranks_server_dispatch makes all calls, in the agent's
 * thread. token is passed back in the matching ranks_server_*_done call. */
struct ranks_host {
	void *context;
	/* Collect data (borrowed during the call) from all agents with ranks of the job. sequence
	 * numbers the collective; every agent counts alike. The answer is the data of all agents,
	 * concatenated in node order. */
	int (*gather)(void *context, uint64_t sequence, const void *data, size_t size, void *token);
	/* Get the data that the rank's own server holds for it (direct modex). */
	int (*fetch)(void *context, int rank, void *token);
	/* A rank called PMIx_Abort. */
	void (*abort)(void *context, int local_rank, int status, const char *text);
	/* The server's process ended by itself; text describes how ("was killed by signal 11
	 * (...)"). Only for a server in a process of its own (pmix/server_process.h); may be
	 * NULL. */
	void (*lost)(void *context, const char *text);
	/* The start begun by server_process_start_async is over; server_process_start_result has
	 * its outcome. Must not free the server. Only for a server in a process of its own. */
	void (*ready)(void *context);
};

struct ranks_server; /* opaque */

/* The module's table; symbol "ranks_server_pmix". The agent makes all calls from one thread. There
 * is one server per process at a time; start may be called again after stop.
 *
 * Ranks do not get (PMIX_ERR_NOT_SUPPORTED) spawn, groups, job control, tools and forwarding of
 * output. On several nodes they also do not get publish and lookup, connect, events to other nodes,
 * and fences of a subset of the ranks that spans nodes. */
struct ranks_server_ops {
	/* Do early what does not depend on the job, which is half the cost of start. Optional. dir
	 * and node are those that start will get. Return 0, or -ERR_UNAVAILABLE as start. */
	int (*prepare)(const char *dir, const char *node, int node_index, struct error *err);
	/* Start the server. Changes the environment of this process during the call (PMIx's
	 * settings) and adds threads. Return 0, or -ERR_UNAVAILABLE with PMIx's own message. */
	int (*start)(const struct ranks_job *job, const struct ranks_host *host,
		     struct ranks_server **out, struct error *err);
	/* Add the variables that a rank needs to find the server, and that make Open MPI 4 use it.
	 */
	int (*environment)(struct ranks_server *server, int local_rank, struct env *changes,
			   struct error *err);
	/* Readable if dispatch has something to do. */
	int (*descriptor)(struct ranks_server *server);
	void (*dispatch)(struct ranks_server *server);
	/* Answers to gather and fetch; data is copied. status is 0 or -ERR_NETWORK. */
	void (*gather_done)(struct ranks_server *server, void *token, int status, const void *data,
			    size_t size);
	void (*fetch_done)(struct ranks_server *server, void *token, int status, const void *data,
			   size_t size);
	/* Another agent requests what a local rank published; dispatch calls done. */
	int (*serve)(struct ranks_server *server, int rank,
		     void (*done)(void *context, int status, const void *data, size_t size),
		     void *context);
	/* A local rank has ended; stop waiting for it. */
	void (*rank_ended)(struct ranks_server *server, int local_rank);
	/* End the job's server and remove its files. PMIx's library, its threads and its listening
	 * socket stay for the next attempt, until the process ends. Unanswered gathers and fetches
	 * are dropped. NULL is allowed; takes at most 2 s. */
	void (*stop)(struct ranks_server *server);
};

/* ---- client ---- */

struct ranks; /* opaque: this process's place in its job */

struct ranks_place {
	int rank, size, local_rank, local_size, node_rank;
	char address[64]; /* MASTER_ADDR; "127.0.0.1" if size is 1 */
	int port;	  /* MASTER_PORT; 0 if none */
};

/* Read a place from RANK, WORLD_SIZE and related variables (env.c). RANK and WORLD_SIZE are both
 * required; with more than one rank LOCAL_RANK is, too. local_size is 0 if LOCAL_WORLD_SIZE is
 * missing; address is "" and port 0 if MASTER_* are. Return 0, or -ERR_DATA naming the variables
 * that contradict each other. */
int place_from_env(const struct env *env, struct ranks_place *out, struct error *err);

#define RANKS_KEY_MAX 255 /* bytes of a key; it has at least one */

/* Implementations: symbol "ranks_client_pmix" in ranks-pmix.so, and ranks_client_env. The functions
 * below have checked keys and ranks before they call these. */
struct ranks_client_ops {
	int (*join)(const struct env *env, int timeout_ms, void **state, struct ranks_place *place,
		    struct error *err);
	int (*barrier)(void *state, int timeout_ms, struct error *err);
	int (*put)(void *state, const char *key, const void *data, size_t size, struct error *err);
	/* Block until rank has put key, or timeout_ms have passed (-ERR_NETWORK names rank and
	 * key). *data is malloced, with a NUL after its *size bytes. rank may be RANKS_ANY: see
	 * ranks_get_any. */
	int (*get)(void *state, int rank, const char *key, int timeout_ms, void **data,
		   size_t *size, struct error *err);
	void (*leave)(void *state);
};
extern const struct ranks_client_ops ranks_client_env;

/* torchrun sets it for its workers, to "True" if it listens at MASTER_PORT itself. */
#define TORCHRUN_WORKER "TORCHELASTIC_USE_AGENT_STORE"

/* Join over PMIx if the environment has PMIX_NAMESPACE, unless torchrun started this process, and
 * the module loads. Otherwise join with RANK and WORLD_SIZE, or as a world of one. Return 0, or
 * -ERR_DATA naming the contradictory variables. */
int ranks_join(const struct env *env, int timeout_ms, struct ranks **out, struct error *err);
/* The same without PMIx, for processes in which MPI needs it for itself. */
int ranks_join_store(const struct env *env, struct ranks **out, struct error *err);
const struct ranks_place *ranks_place(const struct ranks *ranks);
/* Any thread may make the calls below; each waits for those before it. */
int ranks_barrier(struct ranks *ranks, int timeout_ms, struct error *err);
int ranks_put(struct ranks *ranks, const char *key, const void *data, size_t size,
	      struct error *err);
int ranks_get(struct ranks *ranks, int rank, const char *key, int timeout_ms, void **data,
	      size_t *size, struct error *err);
#define RANKS_ANY (-1)
/* Get the first value that any rank has put for key. Return -ERR_NETWORK if no rank has put one
 * within timeout_ms. Return -ERR_UNAVAILABLE if no one can answer: PMIx has no such request, or
 * rank 0, which keeps the values without PMIx, has ended. */
int ranks_get_any(struct ranks *ranks, const char *key, int timeout_ms, void **data, size_t *size,
		  struct error *err);
void ranks_leave(struct ranks *ranks); /* NULL is allowed */

#endif
