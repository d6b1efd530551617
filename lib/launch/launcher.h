/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage launch: one agent on each node, by the cluster's own engine.
 *
 * An engine is one row of the table in launcher.c and one file; it differs from the others in how
 * it starts `berth agent` alone. fork.c is the model: one machine, no program to find, a socket
 * pair instead of a connection. Its exit code is never trusted: what became of a rank is what its
 * agent says. */
#ifndef BERTH_LAUNCH_LAUNCHER_H
#define BERTH_LAUNCH_LAUNCHER_H

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
/* ... or this one: the engine cannot tell the agent its name; it is the node that this machine is. */
#define ENGINE_SELF_HERE "@here"
#define ENGINE_ENV_SECRET "BERTH_AGENT_SECRET" /* 64 hexadecimal digits */
/* Instead of it where the engine cannot carry a secret: "cookie:NONCE", from PBS's job cookie;
 * "file:PATH" where there is none, a file in a home that the nodes share. */
#define ENGINE_ENV_RECIPE "BERTH_AGENT_SECRET_FROM"
#define ENGINE_COOKIE "PBS_JOBCOOKIE"
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
	const char *secret; /* as ENGINE_ENV_SECRET; NULL with engines that have by_cookie */
	const char *recipe; /* as ENGINE_ENV_RECIPE with those, else NULL: it is no secret */
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

/* Ranks that are tasks of the cluster's own step, beside the agents. */
struct engine_tasks {
	const int *counts; /* [nodes of the allocation]: ranks on each, in order; their sum is > 0 */
	bool pmix;	   /* they shall be clients of the cluster's PMIx server */
};

struct engine {
	const char *name;
	const char *summary;
	bool by_socket_pair; /* agents get a socket pair; the head need not listen */
	bool one_machine;    /* all nodes are this machine: any address reaches the head */
	bool by_file;	     /* the secret is the user's file, the port alloc's: others come by themselves */
	const char *const *asked_by; /* the variables that say which nodes and GPUs its tool is asked for,
					to be named where it refuses; NULL at the end; or NULL */
	bool by_cookie;	     /* the secret is not for the engine to carry: see ENGINE_ENV_RECIPE */
	/* Is it the engine for this allocation, and is its tool there? Starts nothing. */
	bool (*fits)(const struct alloc *alloc, const struct env *env);
	/* Start the agents; *out malloced, *count of them. Returns when they are on their way.
	 * -ERR_UNAVAILABLE names the tool that is missing, and nothing is left running. */
	int (*start)(const struct engine_job *job, struct engine_child **out, size_t *count,
		     struct error *err);
	/* The line it would run, for --dry-run; malloced, NULL: memory out. */
	char *(*line)(const struct engine_job *job);
	/* Engines whose ranks are the cluster's own tasks: start all of them, each as
	 * `berth agent --task` (see agent/rank_proxy_channel.h), by one tool. Returns when it is on its way.
	 * -ERR_UNAVAILABLE: the tool is missing, or cannot do it here. NULL: the agents start the ranks. */
	int (*start_tasks)(const struct engine_job *job, const struct engine_tasks *tasks,
			   struct engine_child *child, struct error *err);
};

extern const struct engine engine_fork, engine_hand, engine_srun, engine_srun_ranks, engine_prterun,
	engine_mpirun, engine_pals, engine_tm, engine_ssh, engine_loopback;

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

/* What an agent that gets nothing of this environment must be told, beside its place: LD_LIBRARY_PATH
 * and BERTH_*, less what is of one rank or one node. */
bool engine_carries(const char *name);

/* Does the name of a node mean this machine: its host name (the first label decides), localhost, an
 * address of its own? Asks no resolver. */
bool engine_is_here(const char *name);

/* The names of the nodes as a host list; malloced, NULL: memory out. */
char *engine_node_list(const struct alloc *alloc);

/* A tool that starts agents: argv[0] looked up in PATH, its own session, stdin the text input (NULL:
 * /dev/null), what it prints into a file without a name. *child is filled in with node_index -1 for all nodes.
 * -ERR_UNAVAILABLE names the tool. */
int engine_spawn(char *const argv[], const struct env *env, const char *input,
		 struct engine_child *child, struct error *err);
/* A signal to a tool of engine_spawn's and to all that it has started in its session (where a site's srun
 * is a script, the true one); else to the agent alone. As kill(2). */
int engine_kill(const struct engine_child *child, int number);

/* One tool a node. make: what it runs for a node, words (argv, NULL at the end) and input each
 * malloced; negative: memory. All are started, or none is left. env: the tools'. */
struct engine_words {
	char **argv;
	char *input;
};
/* Lines NAME=VALUE for `berth agent --stdin`, the secret on the first, an empty one at the end;
 * malloced, NULL: memory. */
char *engine_input(const struct engine_job *job, size_t node);
void engine_words_free(struct engine_words *words);
int engine_start_each(const struct engine_job *job, const struct env *env,
		      int (*make)(const struct engine_job *job, size_t node,
				  struct engine_words *out),
		      struct engine_child **out, size_t *count, struct error *err);
/* The lines of such an engine for --dry-run: the first node's, and how many more. */
char *engine_line_each(const struct engine_job *job,
		       int (*make)(const struct engine_job *job, size_t node,
				   struct engine_words *out));
/* begin, then NAME=VALUE of what the agent of a node must be told where names is set, then end (each
 * list NULL-terminated): a malloced argv. NULL: memory out. */
char **engine_argv(const char *const *begin, const struct env *names, const char *const *end);
/* argv as a line for a shell; malloced, NULL: memory out. */
char *engine_line(char *const argv[]);

#endif
