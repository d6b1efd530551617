/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage launch: one agent on each node, by the cluster's own engine.
 *
 * An engine is one row of the table in engine.c and one file; it differs from the others in how
 * it starts `berth agent` alone. fork.c is the model: one machine, no program to find, a socket
 * pair instead of a connection. Its exit code is never trusted: what became of a rank is what its
 * agent says. */
#ifndef BERTH_LAUNCH_ENGINE_H
#define BERTH_LAUNCH_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"

/* How an agent that was exec'ed learns its place: environment variables of `berth agent`, which
 * takes them out of its environment before anything else runs. */
#define ENGINE_ENV_HEAD "BERTH_AGENT_HEAD"     /* "10.0.0.1:4711,[fd00::1]:4711": tried in turn */
#define ENGINE_ENV_JOB "BERTH_AGENT_JOB"       /* the job's name */
#define ENGINE_ENV_NODE "BERTH_AGENT_NODE"     /* the node's index */
#define ENGINE_ENV_NAME "BERTH_AGENT_NAME"     /* the node's name in the allocation */
/* Where one environment serves all agents, instead of NODE and NAME: the nodes as a host list in
 * their order, and the variable in which an agent finds its own name among them. */
#define ENGINE_ENV_NODES "BERTH_AGENT_NODES"
#define ENGINE_ENV_SELF "BERTH_AGENT_SELF"
#define ENGINE_ENV_SECRET "BERTH_AGENT_SECRET" /* 64 hexadecimal digits */
#define ENGINE_ENV_TIMEOUT "BERTH_AGENT_NODE_TIMEOUT_MS"

/* What is printed, a line "berth: no agent on NAME: why", where an agent cannot do its part and the
 * head does not hear of it otherwise: the engine's tool may run on for the sake of other nodes. */
#define ENGINE_NO_AGENT "berth: no agent on "

/* What an engine needs to know. Borrowed during the calls. */
struct engine_job {
	const struct alloc *alloc;
	const struct env *env; /* the environment to start agents in */
	const char *program;   /* this berth's own path */
	const char *job;
	const char *secret; /* as ENGINE_ENV_SECRET */
	const char *head;   /* as ENGINE_ENV_HEAD; NULL where the engine gives a socket pair */
	int node_timeout_ms;
	/* Engines that do not exec: called in the child process with one end of a socket pair;
	 * its result is the child's exit code. */
	int (*agent)(void *context, size_t node_index, int fd);
	void *context;
};

/* A child of this process that an engine started. */
struct engine_child {
	pid_t pid;
	long node_index; /* the node whose agent it is, -1 when it stands for several or all */
	int fd;		 /* our end of its socket pair (the caller closes it), or -1 */
	bool *serves;	 /* [nodes of the allocation], malloced, the caller frees it: the nodes it
			    stands for when node_index is -1; NULL: all */
	int words_fd;	 /* a file with what it has printed so far (the caller closes it), or -1 */
};

struct engine {
	const char *name;
	const char *summary;
	bool by_socket_pair; /* agents get a socket pair; the head need not listen */
	bool one_machine;    /* all nodes are this machine: any address reaches the head */
	/* Is it the engine for this allocation? Pure. */
	bool (*fits)(const struct alloc *alloc, const struct env *env);
	/* Start the agents; *out malloced, *count of them. Returns when they are on their way.
	 * -ERR_UNAVAILABLE names the tool that is missing, and nothing is left running. */
	int (*start)(const struct engine_job *job, struct engine_child **out, size_t *count,
		     struct error *err);
	/* The line it would run, for --dry-run; malloced, NULL: memory out. */
	char *(*line)(const struct engine_job *job);
};

extern const struct engine engine_fork, engine_srun, engine_loopback;

/* By name, or the first that fits when name is NULL. -ERR_USAGE lists the names;
 * -ERR_UNAVAILABLE: none fits the allocation. */
int engine_find(const char *name, const struct alloc *alloc, const struct env *env,
		const struct engine **out, struct error *err);
/* The i-th row, or NULL. */
const struct engine *engine_at(size_t index);

/* For engines with one_machine: an allocation of that many pretended nodes "loop0", "loop1"...,
 * each with the slots of alloc's first. alloc_free it. -ERR_UNAVAILABLE: memory. */
int engine_pretend(const struct alloc *alloc, size_t nodes, struct alloc *out, struct error *err);

/* The environment of an exec'ed agent: job->env and the variables above. NULL: memory out. */
struct env *engine_agent_env(const struct engine_job *job, size_t node_index);
/* The same for all agents: each finds its name in the variable self. NULL: memory out. */
struct env *engine_agents_env(const struct engine_job *job, const char *self);

/* The names of the nodes as a host list; malloced, NULL: memory out. */
char *engine_node_list(const struct alloc *alloc);

/* A tool that starts agents: argv[0] looked up in PATH, its own session, stdin from /dev/null, what
 * it prints into a file without a name. *child is filled in with node_index -1 for all nodes.
 * -ERR_UNAVAILABLE names the tool. */
int engine_spawn(char *const argv[], const struct env *env, struct engine_child *child,
		 struct error *err);
/* argv as a line for a shell; malloced, NULL: memory out. */
char *engine_line(char *const argv[]);

#endif
