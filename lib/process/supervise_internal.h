/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by supervise.c (watching), supervise_start.c and supervise_stop.c. */
#ifndef BERTH_PROCESS_SUPERVISE_INTERNAL_H
#define BERTH_PROCESS_SUPERVISE_INTERNAL_H

#include "base/loop.h"
#include "process/child.h"
#include "process/logs.h"
#include "process/oom.h"
#include "process/process_tree.h"
#include "process/supervise.h"

#define SUPERVISE_BUFFER (64 << 10)

enum supervise_state {
	STATE_RUN,
	STATE_TERM, /* SIGTERM was sent; SIGKILL follows at deadline_ms */
	STATE_KILL, /* SIGKILL is sent repeatedly; supervise gives up at deadline_ms */
	STATE_FINISHED,
};

struct stream {
	struct loop_source source; /* while reading */
	struct supervise *owner;
	int local_rank;
	enum supervise_stream kind;
	int fd;		      /* -1: at end of file */
	struct bytes pending; /* of an unfinished line */
	int64_t pending_ms;   /* when its first bytes came */
};

struct rank_process {
	int rank, local_rank;
	pid_t pid;		   /* -1: not forked, or reaped */
	struct loop_source end;	   /* a pidfd; -1 without pidfds, and after the rank has ended */
	struct loop_source report; /* -1 once its program runs */
	bool ended;		   /* ended was called; a zombie until pid is -1 */
	bool stopped_by_us;
	int unheard;	/* a signal that only spared processes have got; 0: none */
	int start_code; /* not 0: it did not start, and start_error holds the cause */
	char start_error[512];
	int64_t forked_ms;
	char *program, *dir; /* argv[0] and the directory, for start_error; until it runs */
	struct stream streams[2];
};

struct supervise {
	bool this_system, reading, pidfds;
	pid_t exempt_pid; /* 0: none */
	const char *const *spared;
	bool prompt;
	struct rlimit files; /* the limit before it was raised; the ranks get it back */
	struct supervise_events events;
	struct loop *loop;
	struct loop_timer timer;
	enum supervise_state state;
	int64_t deadline_ms, list_ms;
	size_t count, running;
	struct rank_process *processes; /* [count], by local rank */
	struct oom_watch oom;
	char *buffer;
};

/* List all descendants except exempt_pid's tree. Return 0 or -1. */
int supervise_list(const struct supervise *supervise, struct process_tree *list);
void supervise_note(struct supervise *supervise, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* supervise.c */
/* Wait for a rank that has just been forked. Return false if that fails; errno then has the cause.
 */
bool supervise_watch(struct supervise *supervise, struct rank_process *process, int report_fd);
/* Deliver what an ended writer may have left in the pipe. */
void supervise_drain_stream(struct stream *stream);
void supervise_close_stream(struct stream *stream);
void supervise_reap_orphans(struct supervise *supervise);

/* supervise_stop.c: one step of a stop. */
void supervise_continue_stop(struct supervise *supervise);
/* Give programs that have started meanwhile what they have not heard. Return true if there is more.
 */
bool supervise_repeat_signals(struct supervise *supervise);
#define SUPERVISE_STOP_MS 20 /* between checks during a stop, and between repetitions */

void supervise_start_timer(struct supervise *supervise);
void supervise_reap(struct rank_process *process);
void supervise_free_names(struct rank_process *process);

#endif
