/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of one node as child processes: start, binding, output, signals and ends. It guarantees
 * that nothing of them remains.
 *
 * Each rank gets a session and process group of its own, so no terminal signal reaches it except
 * through supervise_signal. It gets SIGKILL when the thread that started it dies. Its stdout and
 * stderr are read here. The process becomes a child subreaper: whatever a rank leaves behind
 * (double fork, setsid) becomes its child, and supervise_stop ends it.
 *
 * One thread makes all calls, and it must live as long as the ranks, because PR_SET_PDEATHSIG is
 * bound to the thread. Other threads may exist. supervise reaps every child that is neither a rank
 * nor supervise_options.exempt_pid, so the process must wait for no other children. The caller
 * should ignore SIGPIPE and SIGXFSZ. */
#ifndef BERTH_PROCESS_SUPERVISE_H
#define BERTH_PROCESS_SUPERVISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/loop.h"
#include "process/rlimits.h"
#include "hostlist/idset.h"

/* From SIGTERM to SIGKILL in supervise_stop. With SUPERVISE_KILL_MS it stays below the 5 s within
 * which berth ends the other ranks when one fails. */
#define SUPERVISE_GRACE_MS 3000
/* From SIGKILL until supervise names the survivors and gives up (state D, another user's
 * process). */
#define SUPERVISE_KILL_MS 1500
_Static_assert(SUPERVISE_GRACE_MS + SUPERVISE_KILL_MS < 5000, "see above");
/* From fork until supervise gives up on a rank that has not reached its program (a hung file
 * system). */
#define SUPERVISE_EXEC_MS 60000

enum supervise_stream { SUPERVISE_STDOUT = 1, SUPERVISE_STDERR = 2 };

/* Was the kernel's out-of-memory killer the cause of a SIGKILL? */
enum supervise_oom {
	SUPERVISE_OOM_NO,
	SUPERVISE_OOM_LIKELY, /* it killed something on this machine since the ranks started */
	SUPERVISE_OOM_YES,    /* it killed something in the agent's cgroup since */
};

/* What to start. Borrowed during supervise_start only. */
struct supervise_rank {
	int rank;		 /* in the job; the local rank is the index in the array */
	const char *const *argv; /* argv[0] is looked up in envp's PATH unless it contains '/' */
	char *const *envp;
	const char *cwd;	     /* NULL: the agent's */
	const struct idset *cpus_os; /* from the plan; NULL or empty: not bound */
	int stdin_fd;		     /* the caller keeps it; -1: /dev/null */
	int pty_fd; /* the master of the terminal stdin_fd, which becomes the rank's stdout, stderr
		     * and controlling terminal, too; the caller keeps it; at most 0: none */
	const struct limits *limits; /* NULL or not known: the agent's */
	/* It ignores SIGUSR1, SIGUSR2 and SIGHUP, which Slurm sends to all processes of a step,
	 * unless its program handles them. Not SIGTERM: a shell could not trap it. */
	bool service;
};

/* How a rank ended. */
struct supervise_end {
	int rank, local_rank;
	pid_t pid;  /* -1: never forked */
	int code;   /* exit code, or 128 + signal; 127 or 126 if not started */
	int signal; /* 0 when it exited */
	bool core_dumped;
	bool stopped_by_us; /* supervise had already sent SIGTERM or SIGKILL: part of a cascade */
	enum supervise_oom oom;
	int64_t peak_memory_bytes; /* largest resident set of the rank or of a child it waited for
				    */
	const char *start_error;   /* "cannot start ./x: Permission denied", or NULL */
};

/* Only the loop, supervise_check_all and supervise_start make these callbacks. A callback may call
 * supervise_signal, supervise_stop and supervise_read, but not supervise_free. */
struct supervise_events {
	void *context;
	/* The program runs (exec succeeded). */
	void (*started)(void *context, int local_rank, pid_t pid);
	/* As logs_line_fn. */
	void (*line)(void *context, int local_rank, enum supervise_stream stream, const char *text,
		     size_t size, bool newline);
	/* Called once per rank, after line has received all that the rank itself wrote. What its
	 * children write later still arrives. end is borrowed. */
	void (*ended)(void *context, const struct supervise_end *end);
	/* After supervise_stop, once: nothing is left and all output was delivered. left names
	 * processes that could not be killed ("pid 812 (cp), in state D"), or is NULL. */
	void (*finished)(void *context, const char *left);
	/* A remark for the user that stops nothing (not bound, ...). */
	void (*note)(void *context, const char *text);
};

struct supervise_options {
	/* inventory.this_system: the plan's CPUs are this machine's. If not, ranks are spread over
	 * the CPUs that are really allowed, and note reports that. */
	bool this_system;
	/* A child of the caller (the PMIx server's process); 0: none. supervise neither signals nor
	 * reaps it or its children. The caller ends and reaps it once no rank runs: finished waits
	 * for that. */
	pid_t exempt_pid;
	/* Names of processes that stand between the agent and the program, or hold its files, in a
	 * list that NULL ends; or NULL. While ranks run, they get no signal but SIGKILL, unless
	 * there is no other process in a rank's group: then the program has not started yet, and
	 * gets the signal as soon as it has. */
	const char *const *spared;
	bool prompt; /* deliver unfinished lines, such as a prompt or a progress bar, within 0.1 s,
			not 2 s */
	const char *cgroup_root; /* where cgroups are mounted; NULL: "/sys/fs/cgroup" */
};

struct supervise; /* opaque */

/* Create a supervise; the process becomes a child subreaper. loop is borrowed, events is copied.
 * Return 0, or -ERR_UNAVAILABLE if memory is out. */
int supervise_new(struct loop *loop, const struct supervise_options *options,
		  const struct supervise_events *events, struct supervise **out, struct error *err);

/* Fork all ranks, bound to their CPUs, without waiting for their exec. Call it once per supervise.
 * A program that cannot start is not an error here: its rank's ended reports it. Return 0, or
 * -ERR_UNAVAILABLE if descriptors, processes or memory are out; ranks already forked are then
 * killed and reaped. The caller's own binding is unchanged on return. */
int supervise_start(struct supervise *supervise, const struct supervise_rank *ranks, size_t count,
		    struct error *err);

/* Report the ranks that have ended by now. */
void supervise_check_all(struct supervise *supervise);

/* The number of ranks that have not ended. */
size_t supervise_running(const struct supervise *supervise);

/* Send signal to the process group of every running rank. */
void supervise_signal(struct supervise *supervise, int signal);

/* Read output (on, the default), or leave it in the pipes so that ranks block in write: for a slow
 * reader. When a rank ends, supervise still delivers what its pipes hold (64 KiB per stream). */
void supervise_read(struct supervise *supervise, bool on);

/* End everything that descends from the ranks, even what ranks that ended well left behind: SIGTERM
 * now, SIGKILL after grace_ms (0: at once). Returns at once. The loop calls finished later,
 * within grace_ms + SUPERVISE_KILL_MS. A second call can only shorten the time. Call it also after
 * all ranks have ended by themselves. */
void supervise_stop(struct supervise *supervise, int grace_ms);

/* Free the supervise. If supervise_stop was not called, send SIGKILL to all first, for at most
 * SUPERVISE_KILL_MS. NULL is allowed. */
void supervise_free(struct supervise *supervise);

/* SIGKILL every descendant of this process except the processes in except and their descendants,
 * until none is left. Other children are reaped. The controller calls this after an agent on its
 * own machine was killed; supervise_become_subreaper must come first, so that it inherits what the
 * agent leaves. Blocks for at most deadline_ms. Return how many are left; left (may be NULL)
 * receives their names, cut at size. */
size_t supervise_kill_descendants(const pid_t *except, size_t except_count, int deadline_ms,
				  char *left, size_t size);

/* Make this process the parent of orphaned descendants (PR_SET_CHILD_SUBREAPER). Return 0 or
 * -ERR_UNAVAILABLE. */
int supervise_become_subreaper(struct error *err);

#endif
