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

/* An agent that was exec'ed learns its place from these environment variables of `berth agent`.
 * It removes them from its environment before it does anything else. */
#define LAUNCHER_ENV_CONTROLLER                                                                    \
	"BERTH_AGENT_CONTROLLER"	     /* "10.0.0.1:4711,[fd00::1]:4711": tried in turn */
#define LAUNCHER_ENV_JOB "BERTH_AGENT_JOB"   /* the job's name */
#define LAUNCHER_ENV_NODE "BERTH_AGENT_NODE" /* the node's index */
#define LAUNCHER_ENV_NAME "BERTH_AGENT_NAME" /* the node's name in the allocation */
/* If all agents share one environment, these replace NODE and NAME: the nodes as a host list in
 * their order, and the variable in which an agent finds its own name among them. */
#define LAUNCHER_ENV_NODES "BERTH_AGENT_NODES"
#define LAUNCHER_ENV_SELF "BERTH_AGENT_SELF"
/* ... or this one, if the launcher cannot name such a variable: the agent then finds out which
 * node its machine is. */
#define LAUNCHER_SELF_FROM_HOST "@here"
#define LAUNCHER_ENV_SECRET "BERTH_AGENT_SECRET" /* 64 hexadecimal digits */
/* Used instead of the secret if the launcher cannot carry one: "cookie:NONCE" derives it from
 * PBS's job cookie; "file:PATH", without a cookie, names a file in a home directory that the
 * nodes share. */
#define LAUNCHER_ENV_SECRET_SOURCE "BERTH_AGENT_SECRET_FROM"
#define LAUNCHER_COOKIE "PBS_JOBCOOKIE"
#define LAUNCHER_ENV_NODE_TIMEOUT "BERTH_AGENT_NODE_TIMEOUT_MS"

/* The beginning of a line "berth: error: no agent on NAME: why". An agent that cannot start prints
 * it if the controller would not notice otherwise, because the launcher's tool may keep running for
 * other nodes. */
#define LAUNCHER_NO_AGENT "berth: error: no agent on "
/* For sh -c, with berth as $0: define no(), try whether berth can run on this node, and if not,
 * call no(). name: the node's name or its first label, for the shell. The try runs on every node
 * before the agent, so it must load nothing that the agent does not. */
#define LAUNCHER_NO_FUNCTION(name)                                                                 \
	"no() { echo \"" LAUNCHER_NO_AGENT name ": $*\" >&2; exit 69; }; "
#define LAUNCHER_TRY_BERTH                                                                         \
	"[ -x \"$0\" ] || no \"$0 is missing or not executable; install berth in a directory "     \
	"that all nodes share\"; why=$(\"$0\" --version 2>&1) || "
#define LAUNCHER_NO_RUN "no \"$0 cannot run there: $why\"; "

/* How long an agent may be silent before its node counts as lost, unless --node-timeout says
 * otherwise; and more for each other node on the same machine, because their agents share its
 * cores: 512 agents on two cores were seen to wait 12 s for the CPU. */
#define NODE_TIMEOUT_MS 8000
#define NODE_TIMEOUT_SHARED_MS 50

struct launcher;

#define LAUNCH_PORTS_MAX 64

/* Where and how a job's agents are started, and how long the controller waits for them. The
 * command line and its environment fill it in once; all others read it through a pointer. */
struct launch_options {
	const struct alloc *alloc;
	const struct launcher *launcher;
	const struct launcher *fallback; /* used once if launcher has brought no agent within
					    launch_timeout_ms; NULL: none */
	const struct env *env;	/* the environment berth was started in, the base of the agents' and
				   the ranks' environments */
	const char *berth_path; /* path of this berth executable, the same on every node */
	int node_timeout_ms;	/* a node that is silent for this long is lost */
	int launch_timeout_ms;	/* see fallback */
	int start_timeout_ms;	/* all agents must have connected within this time */
	int fan_out;		/* agents below one agent in the tree; 0: TREE_FANOUT */
	const char *role;	/* of the ranks; NULL: there are no roles */
	int ports; /* up to LAUNCH_PORTS_MAX, --ports: how many to reserve on each node; 0: none */
	int first_port; /* of them; 0: any */
};

/* What a launcher needs to know. Borrowed during the calls. */
struct launcher_job {
	const struct launch_options *launch;
	const char *secret;	   /* value of LAUNCHER_ENV_SECRET; NULL for launchers with
				      secret_from_cookie */
	const char *secret_source; /* value of LAUNCHER_ENV_SECRET_SOURCE for those, else NULL; not
				      a secret */
	const char *controller_addresses; /* value of LAUNCHER_ENV_CONTROLLER; NULL if the launcher
					     provides a socket pair */
	/* For launchers that do not exec: called in the child process with one end of a socket
	 * pair. Its result is the child's exit code. */
	int (*agent)(void *context, size_t node_index, int fd);
	void *context;
};

#define LAUNCHER_TAIL_MAX 600 /* how much of a tool's output an error message shows */

/* A child of this process that a launcher started. */
struct launcher_process {
	pid_t pid;
	long node_index;     /* the node whose agent it is; -1 if it serves several nodes or all */
	int fd;		     /* our end of its socket pair (the caller closes it), or -1 */
	bool *nodes_covered; /* [nodes of the allocation], malloced, freed by the caller: the nodes
				it serves if node_index is -1; NULL: all */
	int output_fd;	     /* a file that holds its output so far (the caller closes it), or -1 */
	bool starts_again;   /* it has ended, and the controller will start it once more */
	off_t output_read;   /* how much of it the controller has handled */
	char output_tail[LAUNCHER_TAIL_MAX + 1]; /* of that, the last lines, joined by "; " */
};

/* The command line, input and environment of a tool that starts agents. */
struct launcher_command {
	char **argv;	 /* malloced, as is each string; ends with NULL */
	char *input;	 /* its standard input, malloced; NULL: /dev/null */
	struct env *env; /* its environment; NULL: the environment berth was started in */
};

/* Where the agents are, which decides what they and the controller do for each other. */
enum launch_shape {
	LAUNCH_NODES, /* on the nodes of the allocation */
	LAUNCH_HERE,  /* one on this machine, over a socket pair: the controller need not listen */
	LAUNCH_SIMULATED, /* several on this machine, so any address reaches the controller */
	LAUNCH_BY_HAND,	  /* where the user starts them: the secret comes from the user's file, the
			     port from the allocation */
};

struct launcher {
	const char *name;
	enum launch_shape shape;
	const char *const *request_variables; /* Variables from which the tool takes the nodes and
						 GPUs to request. berth names them if the tool
						 refuses. Ends with NULL; may be NULL. */
	/* Parts of the tool's lines, ending with NULL; may be NULL. passing: the scheduler cannot
	 * be reached for a while, and the tool is started again. harmless: no cause of anything. */
	const char *const *passing, *const *harmless;
	bool secret_from_cookie;   /* the launcher cannot carry the secret: see
				      LAUNCHER_ENV_SECRET_SOURCE */
	const char *tool, *beside; /* for Open MPI and similar: the tool to find in PATH, and a
				      program that must lie next to it */
	/* Does the launcher fit this allocation, and is its tool installed? Starts nothing. */
	bool (*fits)(const struct launcher *launcher, const struct alloc *alloc,
		     const struct env *env);
	/* Start the agents without waiting for them to connect. *out is a malloced array of
	 * *count processes. Return 0, or -ERR_UNAVAILABLE naming the missing tool; then nothing
	 * is left running. */
	int (*start)(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		     struct error *err);
	/* The command line it would run, for --dry-run. Malloced; NULL if memory is out. */
	char *(*command_line)(const struct launcher_job *job);
	/* For launcher_start_tools and launcher_tools_line: make the command for a node, or with
	 * one_tool for all nodes (node is 0). Negative if memory is out. The caller frees *out
	 * in either case. */
	int (*make)(const struct launcher_job *job, size_t node, struct launcher_command *out);
	bool one_tool; /* one tool starts the agents of all nodes */
	/* What stands before "NAME: why" in the tool's line about a node where it could start no
	 * agent; it ends all others then. NULL: it has no such line. */
	const char *no_agent;
	/* Find in the tool's output what it prints if the user has cancelled the agents, and set
	 * *size. NULL: they were not cancelled. The function is NULL if the tool does not tell. */
	const char *(*cancelled)(const char *output, size_t *size);
};

extern const struct launcher launcher_fork, launcher_hand, launcher_srun, launcher_prterun,
	launcher_mpirun, launcher_pals, launcher_tm, launcher_ssh, launcher_loopback;

/* Names the launcher for nodes other than this machine. */
#define LAUNCHER_PREFERRED "BERTH_LAUNCHER"

/* Find a launcher by name, or if name is NULL the preferred one or the first that fits. -ERR_USAGE
 * lists the names; -ERR_UNAVAILABLE means that none fits the allocation. With a name, alloc and env
 * may be NULL. */
int launcher_find(const char *name, const struct alloc *alloc, const struct env *env,
		  const struct launcher **out, struct error *err);
/* How agents would be started, for display: ADDRESS:PORT stands for the controller's. malloced;
 * NULL if memory is out. */
char *launcher_sample_line(const struct launch_options *launch);
/* The next launcher in the table that fits, or NULL. */
const struct launcher *launcher_next(const struct launcher *after, const struct alloc *alloc,
				     const struct env *env);

/* Are all agents on this machine? */
bool launcher_is_here(const struct launcher *launcher);

/* Is one of parts (ends with NULL; may be NULL) in text? */
bool launcher_has_part(const char *const *parts, const char *text);

/* For LAUNCH_SIMULATED: make an allocation of that many simulated nodes "loop0",
 * "loop1"..., each with the slots of alloc's first node. The caller frees it with alloc_free.
 * -ERR_UNAVAILABLE if memory is out. */
int launcher_simulate_nodes(const struct alloc *alloc, size_t nodes, struct alloc *out,
			    struct error *err);

/* The environment of an exec'ed agent: job->env and the variables above. NULL if memory is out. */
struct env *launcher_agent_env(const struct launcher_job *job, size_t node_index);
/* The same for all agents together: each finds its name in the variable self. NULL if memory is
 * out. */
struct env *launcher_all_agents_env(const struct launcher_job *job, const char *self);

/* What an agent that does not inherit this environment needs besides its place: LD_LIBRARY_PATH
 * and BERTH_*, except variables that belong to one rank or one node. */
bool launcher_forwards_variable(const char *name);
/* The same variables with their values from launcher_agent_env, without the secret. NULL if
 * memory is out. */
struct env *launcher_forwarded_env(const struct launcher_job *job, size_t node_index);

/* Does a node's name mean this machine? It does if it is this host's name (only the first label
 * counts), localhost, or one of this host's addresses. Asks no resolver. */
bool launcher_is_this_host(const char *name);

/* Start a tool that starts agents. argv[0] is looked up in PATH. The tool gets a session of its
 * own, the text input as stdin (NULL: /dev/null), and an unnamed file for its output. *process
 * is filled in with node_index -1, for all nodes. -ERR_UNAVAILABLE names the tool. */
int launcher_spawn(char *const argv[], const struct env *env, const char *input,
		   struct launcher_process *process, struct error *err);
/* Send a signal to a tool started by launcher_spawn and to its process group, because a site's
 * srun may be a script around the real one. For other processes, signal only the agent. Returns
 * as kill(2) does. */
int launcher_kill(const struct launcher_process *process, int number);
/* After a failed start: kill and reap the first count of processes, and free the array. */
void launcher_kill_all(struct launcher_process *processes, size_t count);

void launcher_command_free(struct launcher_command *command);

/* Lines NAME=VALUE for `berth agent --stdin`: the secret first, an empty line last. Malloced;
 * NULL if memory is out. */
char *launcher_stdin_text(const struct launcher_job *job, size_t node);
/* Implements launcher.start: run what the launcher's make returns, once per node, or once if
 * one_tool is set or the shape is LAUNCH_BY_HAND. If one fails to start, none is left running. */
int launcher_start_tools(const struct launcher_job *job, struct launcher_process **out,
			 size_t *count, struct error *err);
/* One of these tools, for this node. */
int launcher_start_tool(const struct launcher_job *job, size_t node, struct launcher_process *out,
			struct error *err);
/* Implements launcher.command_line for these: the first tool's command line, and how many more
 * there are. */
char *launcher_tools_line(const struct launcher_job *job);
/* Build a malloced argv of three NULL-terminated lists, any of which may be NULL. NULL if memory is
 * out. */
char **launcher_argv(const char *const *begin, const char *const *middle, const char *const *end);
/* argv as a command line for a shell; malloced, NULL if memory is out. */
char *launcher_command_line(char *const argv[]);

#endif
