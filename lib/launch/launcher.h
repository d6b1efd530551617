/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage launch: one agent on each node, started by the cluster's own launcher.
 *
 * A launcher is one row of the table in launcher.c and one file; it differs from the others only in
 * how it starts `berth agent`. fork.c is the model: one machine, no program to find, a socket pair
 * instead of a connection. Its exit code is never trusted: the agents report what became of the
 * ranks. */
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
#define LAUNCHER_ENV_CONTROLLER                                                                    \
	"BERTH_AGENT_HEAD"		     /* "10.0.0.1:4711,[fd00::1]:4711": tried in turn */
#define LAUNCHER_ENV_JOB "BERTH_AGENT_JOB"   /* the job's name */
#define LAUNCHER_ENV_NODE "BERTH_AGENT_NODE" /* the node's index */
#define LAUNCHER_ENV_NAME "BERTH_AGENT_NAME" /* the node's name in the allocation */
/* Where one environment serves all agents, instead of NODE and NAME: the nodes as a host list in
 * their order, and the variable in which an agent finds its own name among them. */
#define LAUNCHER_ENV_NODES "BERTH_AGENT_NODES"
#define LAUNCHER_ENV_SELF "BERTH_AGENT_SELF"
/* ... or this one, if the launcher cannot name a variable: the agent looks which node its machine
 * is. */
#define LAUNCHER_SELF_FROM_HOST "@here"
#define LAUNCHER_ENV_SECRET "BERTH_AGENT_SECRET" /* 64 hexadecimal digits */
/* Instead of it if the launcher cannot carry a secret: "cookie:NONCE", from PBS's job cookie;
 * "file:PATH" where there is none, a file in a home that the nodes share. */
#define LAUNCHER_ENV_SECRET_SOURCE "BERTH_AGENT_SECRET_FROM"
#define LAUNCHER_COOKIE "PBS_JOBCOOKIE"
#define LAUNCHER_ENV_NODE_TIMEOUT "BERTH_AGENT_NODE_TIMEOUT_MS"

/* How a line "berth: no agent on NAME: why" begins. An agent that cannot do its part prints it if
 * the controller would not notice otherwise: the launcher's tool may run on for other nodes. */
#define LAUNCHER_NO_AGENT "berth: no agent on "

struct launcher;

/* Where and how a job's agents are started, and how long the controller waits for them. Filled in
 * once, by the command line and its environment; everybody else reads it through a pointer. */
struct launch_options {
	const struct alloc *alloc;
	const struct launcher *launcher;
	const struct env *env;	/* that berth was started in; the agents' and the ranks' base */
	const char *berth_path; /* this berth's own path, on every node */
	int node_timeout_ms;	/* silence after which a node is lost */
	int start_timeout_ms;	/* within which all agents must have connected */
	int fan_out;		/* agents below one agent in the tree; 0: TREE_FANOUT */
};

/* What a launcher needs to know. Borrowed during the calls. */
struct launcher_job {
	const struct launch_options *launch;
	const char *secret;	   /* as LAUNCHER_ENV_SECRET; NULL with launchers that have
				      secret_from_cookie */
	const char *secret_source; /* as LAUNCHER_ENV_SECRET_SOURCE with those, else NULL: it is no
				      secret */
	const char *controller_addresses; /* as LAUNCHER_ENV_CONTROLLER; NULL where the launcher
					     gives a socket pair */
	/* Launchers that do not exec: called in the child process with one end of a socket pair;
	 * its result is the child's exit code. */
	int (*agent)(void *context, size_t node_index, int fd);
	void *context;
};

/* A child of this process that a launcher started. */
struct launcher_process {
	pid_t pid;
	long node_index;     /* the node whose agent it is, -1 when it stands for several or all */
	int fd;		     /* our end of its socket pair (the caller closes it), or -1 */
	bool *nodes_covered; /* [nodes of the allocation], malloced, the caller frees it: the nodes
			it stands for when node_index is -1; NULL: all */
	int output_fd; /* a file with what it has printed so far (the caller closes it), or -1 */
};

/* What a tool that starts agents runs. */
struct launcher_command {
	char **argv;	 /* malloced, as each of its texts; NULL at the end */
	char *input;	 /* its standard input, malloced; NULL: /dev/null */
	struct env *env; /* its environment; NULL: the one berth was started in */
};

struct launcher {
	const char *name;
	bool uses_socket_pair; /* agents get a socket pair; the controller need not listen */
	bool single_host;      /* all nodes are this machine: any address reaches the controller */
	bool secret_from_file; /* the secret is the user's file, the port alloc's: the user starts
				  the other agents */
	const char *const
		*request_variables; /* the variables that say which nodes and GPUs its tool is asked
			      for, to be named where it refuses; NULL at the end; or NULL */
	bool secret_from_cookie;    /* the launcher cannot carry the secret: see
				       LAUNCHER_ENV_SECRET_SOURCE */
	const char *tool, *beside;  /* Open MPI's kin: the tool in PATH, and what lies beside it */
	/* Does it fit this allocation, and is its tool present? Starts nothing. */
	bool (*fits)(const struct launcher *launcher, const struct alloc *alloc,
		     const struct env *env);
	/* Start the agents; *out malloced, *count of them. Returns when they are on their way.
	 * -ERR_UNAVAILABLE names the tool that is missing, and nothing is left running. */
	int (*start)(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		     struct error *err);
	/* The line it would run, for --dry-run; malloced, NULL: memory out. */
	char *(*command_line)(const struct launcher_job *job);
	/* For launcher_start_tools and launcher_tools_line: the command for a node, or for all
	 * nodes (node 0) with one_tool. Negative: memory is out; *out is freed in either case. */
	int (*make)(const struct launcher_job *job, size_t node, struct launcher_command *out);
	bool one_tool; /* one tool starts the agents of all nodes */
};

extern const struct launcher launcher_fork, launcher_hand, launcher_srun, launcher_prterun,
	launcher_mpirun, launcher_pals, launcher_tm, launcher_ssh, launcher_loopback;

/* By name, or the first that fits when name is NULL. -ERR_USAGE lists the names;
 * -ERR_UNAVAILABLE: none fits the allocation. */
int launcher_find(const char *name, const struct alloc *alloc, const struct env *env,
		  const struct launcher **out, struct error *err);

/* For launchers with single_host: an allocation of that many simulated nodes "loop0", "loop1"...,
 * each with the slots of alloc's first. alloc_free it. -ERR_UNAVAILABLE: memory. */
int launcher_simulate_nodes(const struct alloc *alloc, size_t nodes, struct alloc *out,
			    struct error *err);

/* The environment of an exec'ed agent: job->env and the variables above. NULL: memory out. */
struct env *launcher_agent_env(const struct launcher_job *job, size_t node_index);
/* The same for all agents: each finds its name in the variable self. NULL: memory out. */
struct env *launcher_all_agents_env(const struct launcher_job *job, const char *self);

/* What an agent that gets nothing of this environment must be sent, beside its place:
 * LD_LIBRARY_PATH and BERTH_*, less what is of one rank or one node. */
bool launcher_forwards_variable(const char *name);
/* These variables of launcher_agent_env, but not the secret. NULL: memory out. */
struct env *launcher_forwarded_env(const struct launcher_job *job, size_t node_index);

/* Does the name of a node mean this machine: its host name (the first label decides), localhost, an
 * address of its own? Asks no resolver. */
bool launcher_is_this_host(const char *name);

/* The names of the nodes as a host list; malloced, NULL: memory out. */
char *launcher_node_list(const struct alloc *alloc);

/* Start file (looked up in PATH unless it contains '/') in a session of its own, with these
 * descriptors as its stdio and all signals unblocked. Return 0 or an errno. */
int launcher_spawn_file(const char *file, char *const argv[], const struct env *env,
			const int stdio[3], pid_t *pid);
/* A tool that starts agents: argv[0] looked up in PATH, its own session, stdin the text input
 * (NULL: /dev/null), what it prints into a file without a name. *process is filled in with
 * node_index -1 for all nodes. -ERR_UNAVAILABLE names the tool. */
int launcher_spawn(char *const argv[], const struct env *env, const char *input,
		   struct launcher_process *process, struct error *err);
/* A signal to a tool of launcher_spawn's and to all that it has started in its session (where a
 * site's srun is a script, the true one); else to the agent alone. As kill(2). */
int launcher_kill(const struct launcher_process *process, int number);
/* After a failed start: kill and reap the first count of processes, and free the array. */
void launcher_kill_all(struct launcher_process *processes, size_t count);

void launcher_command_free(struct launcher_command *command);

/* Lines NAME=VALUE for `berth agent --stdin`, the secret on the first, an empty one at the end;
 * malloced, NULL: memory. */
char *launcher_stdin_text(const struct launcher_job *job, size_t node);
/* As launcher.start: run what the launcher's make returns, once per node unless one_tool or
 * secret_from_file is set. All are started, or none is left. */
int launcher_start_tools(const struct launcher_job *job, struct launcher_process **out,
			 size_t *count, struct error *err);
/* As launcher.command_line for these: the first tool's line, and how many more there are. */
char *launcher_tools_line(const struct launcher_job *job);
/* begin, then NAME=VALUE of what the agent of a node must be sent if names is set, then end
 * (each list NULL-terminated): a malloced argv. NULL: memory out. */
char **launcher_argv(const char *const *begin, const struct env *names, const char *const *end);
/* argv as a line for a shell; malloced, NULL: memory out. */
char *launcher_command_line(char *const argv[]);

#endif
