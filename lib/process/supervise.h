/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of one node as child processes: start, bind, output, signals, ends, and the promise
 * that nothing of them is left.
 *
 * Each rank is started in a session and process group of its own (no terminal signal reaches it
 * but through supervise_signal), gets SIGKILL when the thread that started it dies, and has its
 * stdout and stderr read here. The process is made a child subreaper: whatever a rank leaves
 * behind (forked twice, setsid) becomes our child and is ended in supervise_stop.
 *
 * One thread makes all calls, and lives as long as the ranks (PR_SET_PDEATHSIG is bound to the
 * thread). Other threads may exist. The process has no other children that it waits for but
 * supervise_options.keep: every child that is neither a rank nor that one is reaped here. SIGPIPE
 * and SIGXFSZ should be ignored by the caller. */
#ifndef BERTH_PROCESS_SUPERVISE_H
#define BERTH_PROCESS_SUPERVISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "hostlist/idset.h"

/* SIGTERM to SIGKILL in supervise_stop; with SUPERVISE_KILL_MS below it stays under the 5 s in
 * which the other ranks are ended when one fails. */
#define SUPERVISE_GRACE_MS 3000
/* From SIGKILL until what still lives is named and given up (D state, another user's). */
#define SUPERVISE_KILL_MS 1500
/* From fork until a rank that has not reached its program is given up (a hung file system). */
#define SUPERVISE_EXEC_MS 60000

enum supervise_stream { SUPERVISE_STDOUT = 1, SUPERVISE_STDERR = 2 };

/* Was the kernel's out-of-memory killer the cause of a SIGKILL? */
enum supervise_oom {
	SUPERVISE_OOM_NO,
	SUPERVISE_OOM_LIKELY, /* it killed something on this machine since the ranks started */
	SUPERVISE_OOM_YES,    /* it killed something in our cgroup since */
};

/* What to start. Borrowed during supervise_start only. */
struct supervise_rank {
	int rank;		 /* in the job */
	int local_rank;		 /* place in the array */
	const char *const *argv; /* argv[0] is looked up in envp's PATH where it has no '/' */
	char *const *envp;
	const char *cwd;	     /* NULL: the agent's */
	const struct idset *cpus_os; /* from the plan; NULL or empty: not bound */
	int stdin_fd;		     /* stays the caller's; -1: /dev/null */
};

/* How a rank ended. */
struct supervise_end {
	int rank, local_rank;
	pid_t pid;  /* -1 when it was never forked */
	int code;   /* exit code, or 128 + signal; 127 or 126 when not started */
	int signal; /* 0 when it exited */
	bool core_dumped;
	bool stopped_by_us; /* we had sent SIGTERM or SIGKILL before: part of a cascade */
	enum supervise_oom oom;
	int64_t peak_memory_bytes; /* largest resident set of it or a child it waited for */
	int64_t user_ms, system_ms;
	const char *start_error; /* "cannot start ./x: Permission denied", or NULL */
};

/* Called from supervise_dispatch (and supervise_start) only. A callback may call
 * supervise_signal, supervise_stop and supervise_read, not supervise_free. */
struct supervise_events {
	void *context;
	/* The program runs (exec succeeded). */
	void (*started)(void *context, int local_rank, pid_t pid);
	/* As logs_line_fn. */
	void (*line)(void *context, int local_rank, enum supervise_stream stream, const char *text,
		     size_t size, bool newline);
	/* Once a rank; all that it wrote itself has been handed to line before. What a child of
	 * its writes later on still comes. end is borrowed. */
	void (*ended)(void *context, const struct supervise_end *end);
	/* After supervise_stop: nothing is left and all output was handed on, once. left: NULL, or
	 * the names of what could not be killed ("pid 812 (cp), in state D"). */
	void (*finished)(void *context, const char *left);
	/* A sentence worth telling that stops nothing (not bound, ...). */
	void (*note)(void *context, const char *text);
};

struct supervise_options {
	bool this_system;	 /* machine.this_system: the plan's cpus are this machine's. If
				    not, ranks are spread over the really allowed CPUs, and note
				    says so. */
	pid_t exempt_pid;	 /* a child of the caller's own (the PMIx server's process), 0:
			    none. It and its children are not signalled, not reaped, and
			    no rank's; the caller ends and reaps it once no rank runs:
			    finished waits for that. */
	const char *cgroup_root; /* where cgroups are mounted; NULL: "/sys/fs/cgroup" */
};

struct supervise; /* opaque */

/* Makes the process a child subreaper. events is copied. -ERR_UNAVAILABLE: descriptors, memory. */
int supervise_new(const struct supervise_options *options, const struct supervise_events *events,
		  struct supervise **out, struct error *err);

/* Fork all ranks, bound; does not wait for their exec. Once in the life of a supervise.
 * A program that cannot be started is not an error here: its rank's ended says so.
 * -ERR_UNAVAILABLE: no descriptors, processes or memory; ranks already forked are then killed
 * and reaped. The caller's own binding is as before when it returns. */
int supervise_start(struct supervise *supervise, const struct supervise_rank *ranks, size_t count,
		    struct error *err);

/* To be polled for reading; timers are inside. Dispatch does what is due and never blocks. */
int supervise_descriptor(const struct supervise *supervise);
void supervise_dispatch(struct supervise *supervise);

/* Ranks that have not ended. */
size_t supervise_running(const struct supervise *supervise);

/* Send to the process group of every rank that runs. */
void supervise_signal(struct supervise *supervise, int signal);

/* Read output or leave it in the pipes (ranks then block in write): for a slow reader. At first
 * true. At a rank's end what its pipes hold is handed on all the same (64 KiB a stream). */
void supervise_read(struct supervise *supervise, bool on);

/* End everything: SIGTERM now, SIGKILL after grace_ms (0: at once) to all that descends from
 * the ranks, also what remains of ranks that ended well. Returns at once; finished is called
 * from a later dispatch, at most grace_ms + SUPERVISE_KILL_MS later. A second call can only
 * shorten the time. To be called also when all ranks ended by themselves. */
void supervise_stop(struct supervise *supervise, int grace_ms);

/* Where nothing was stopped: SIGKILL to all, bounded by SUPERVISE_KILL_MS. NULL is fine. */
void supervise_free(struct supervise *supervise);

/* SIGKILL to every process that descends from this one, but for the processes in except and
 * their descendants, repeated until none is left; children that are not in except are reaped.
 * For the head, after an agent on its own machine was killed: with supervise_become_subreaper
 * called before, what the agent leaves becomes ours. Blocks at most deadline_ms. How many are left
 * (0: none); left (may be NULL): their names, cut at size. */
size_t supervise_kill_descendants(const pid_t *except, size_t except_count, int deadline_ms,
				  char *left, size_t size);

/* Make this process the parent of what its descendants orphan (PR_SET_CHILD_SUBREAPER).
 * 0, or -ERR_UNAVAILABLE. */
int supervise_become_subreaper(struct error *err);

#endif
