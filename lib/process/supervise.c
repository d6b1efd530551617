/* SPDX-License-Identifier: BSD-3-Clause */
/* Watches the ranks: their output, their start, their end. supervise_start.c forks them, and
 * supervise_stop.c ends them with all that descends from them. */
#include "process/supervise_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TICK_MS 1000 /* how often orphans are reaped and exec deadlines checked */
/* how long a line may be unfinished before it is passed on; with prompt: half of what
 * supervise_options.prompt promises, because the timer may come that much later */
#define UNFINISHED_MS 1000
#define PROMPT_MS 50
#define POLL_MS 20   /* the tick without pidfds (before Linux 5.3) */
#define LIST_MS 5000 /* between reads of /proc while some ranks have ended */

int supervise_list(const struct supervise *supervise, struct process_tree *list)
{
	return process_tree_read(&supervise->exempt_pid, supervise->exempt_pid > 0, list);
}

void supervise_note(struct supervise *supervise, const char *format, ...)
{
	char text[512];
	va_list ap;

	if (!supervise->events.note)
		return;
	va_start(ap, format);
	vsnprintf(text, sizeof text, format, ap);
	va_end(ap);
	supervise->events.note(supervise->events.context, text);
}

static void on_timer(struct loop_timer *timer);

int supervise_new(struct loop *loop, const struct supervise_options *options,
		  const struct supervise_events *events, struct supervise **out, struct error *err)
{
	int rc = supervise_become_subreaper(err);

	if (rc)
		return rc;

	struct supervise *supervise = calloc(1, sizeof *supervise);

	if (!supervise)
		return error_memory(err, "supervising the ranks");
	supervise->this_system = options->this_system;
	supervise->exempt_pid = options->exempt_pid;
	supervise->spared = options->spared;
	supervise->prompt = options->prompt;
	supervise->events = *events;
	supervise->reading = true;
	supervise->loop = loop;
	supervise->timer.due = on_timer;
	supervise->buffer = malloc(SUPERVISE_BUFFER);
	if (!supervise->buffer) {
		supervise_free(supervise);
		return error_memory(err, "supervising the ranks");
	}
	oom_watch_begin(&supervise->oom, options->cgroup_root);
	*out = supervise;
	return 0;
}

/* ---- output ---- */

static void on_stream_line(void *context, const char *text, size_t size, bool newline)
{
	struct stream *stream = context;
	const struct supervise_events *events = &stream->owner->events;

	if (events->line)
		events->line(events->context, stream->local_rank, stream->kind, text, size,
			     newline);
}

void supervise_close_stream(struct stream *stream)
{
	if (stream->fd < 0)
		return;
	/* Remove it explicitly: a child on its way to exec may hold a copy, which would keep it in
	 * the set. */
	loop_remove(stream->owner->loop, &stream->source);
	close(stream->fd);
	stream->fd = -1;
	logs_split_end(&stream->pending, on_stream_line, stream);
}

/* Read at most limit bytes of what is there. */
static void read_stream(struct stream *stream, size_t limit)
{
	struct supervise *supervise = stream->owner;

	while (limit && stream->fd >= 0) {
		size_t part = limit < SUPERVISE_BUFFER ? limit : SUPERVISE_BUFFER;
		ssize_t n = read(stream->fd, supervise->buffer, part);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			supervise_close_stream(stream);
			return;
		}
		bool fresh = !stream->pending.size || memchr(supervise->buffer, '\n', (size_t)n);

		if (fresh)
			stream->pending_ms = loop_now_ms(supervise->loop);
		logs_split(&stream->pending, supervise->buffer, (size_t)n, on_stream_line, stream);
		limit -= (size_t)n;
		if (fresh && supervise->prompt && stream->pending.size &&
		    supervise->state == STATE_RUN)
			/* During a stop, the timer belongs to supervise_continue_stop. */
			loop_timer_after(supervise->loop, &supervise->timer, PROMPT_MS);
	}
}

static void pass_unfinished(struct supervise *supervise, int64_t now_ms)
{
	int limit_ms = supervise->prompt ? PROMPT_MS : UNFINISHED_MS;

	for (size_t i = 0; i < supervise->count; i++) {
		for (size_t s = 0; s < 2; s++) {
			struct stream *stream = &supervise->processes[i].streams[s];
			struct pollfd more = {stream->fd, POLLIN, 0};

			/* The rest may be in the pipe, because a slow reader holds it back. */
			if (stream->pending.size && now_ms - stream->pending_ms >= limit_ms &&
			    !poll(&more, 1, 0))
				logs_split_end(&stream->pending, on_stream_line, stream);
		}
	}
}

/* Deliver everything that its writer, which has ended, can have left in the pipe. */
void supervise_drain_stream(struct stream *stream)
{
	if (stream->fd < 0)
		return;

	/* Not up to its end: a child of the rank may keep the pipe open, and write into it for
	 * ever. */
	int capacity = fcntl(stream->fd, F_GETPIPE_SZ);

	read_stream(stream, capacity > 0 ? (size_t)capacity : SUPERVISE_BUFFER);
	if (stream->fd >= 0 && stream->pending.size) {
		/* A child of the rank keeps the pipe open: deliver the rank's last output now. */
		logs_split_end(&stream->pending, on_stream_line, stream);
	}
}

void supervise_read(struct supervise *supervise, bool on)
{
	if (supervise->reading == on)
		return;
	supervise->reading = on;
	for (size_t i = 0; i < supervise->count * 2; i++) {
		struct stream *stream = &supervise->processes[i / 2].streams[i % 2];

		if (stream->fd < 0)
			continue;
		/* Removed, not masked: a pipe without writers reports EPOLLHUP regardless. */
		if (on)
			loop_add(supervise->loop, &stream->source, stream->fd, EPOLLIN, NULL);
		else
			loop_remove(supervise->loop, &stream->source);
	}
}

/* ---- ends ---- */

static void read_report(struct supervise *supervise, struct rank_process *process, bool ended)
{
	struct child_report report;
	ssize_t n;

	if (process->report.fd < 0)
		return;
	do
		n = read(process->report.fd, &report, sizeof report);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN && !ended)
		return;
	loop_close(supervise->loop, &process->report);
	if (n == (ssize_t)sizeof report) {
		process->start_code =
			child_report_text(&report, process->program, process->dir,
					  process->start_error, sizeof process->start_error);
	} else if (n == 0 && supervise->events.started && !process->start_code) {
		/* exec has closed the pipe without a report: the program runs. */
		supervise->events.started(supervise->events.context, process->local_rank,
					  process->pid);
	}
	supervise_free_names(process);
}

static void report_end(struct supervise *supervise, struct rank_process *process,
		       const siginfo_t *info, const struct rusage *usage)
{
	struct supervise_end end = {
		.rank = process->rank,
		.local_rank = process->local_rank,
		.pid = process->pid,
		.code = info->si_code == CLD_EXITED ? info->si_status : 128 + info->si_status,
		.signal = info->si_code == CLD_EXITED ? 0 : info->si_status,
		.core_dumped = info->si_code == CLD_DUMPED,
		.stopped_by_us = process->stopped_by_us,
		.peak_memory_bytes = (int64_t)usage->ru_maxrss * 1024,
	};

	if (process->start_code) {
		end.code = process->start_code;
		end.signal = 0;
		end.start_error = process->start_error;
	} else if (end.code && !end.stopped_by_us) {
		enum supervise_oom oom = oom_watch_poll(&supervise->oom);

		/* A rank that exits by itself may have lost a child (a data loader) to the OOM
		 * killer; a shell exits with 128 + 9 after such a command. */
		if (end.signal == SIGKILL)
			end.oom = oom;
		else if (oom == SUPERVISE_OOM_YES || (oom && end.code == 128 + SIGKILL))
			end.oom = SUPERVISE_OOM_LIKELY;
	}
	if (supervise->events.ended)
		supervise->events.ended(supervise->events.context, &end);
}

/* Keep the zombie (WNOWAIT): as long as it exists, its pid safely names its process group. */
static void check_process(struct supervise *supervise, struct rank_process *process)
{
	siginfo_t info = {0};
	struct rusage usage = {0};

	if (process->ended || process->pid <= 0)
		return;
	/* The system call itself: glibc's waitid gives no rusage. */
	if (syscall(SYS_waitid, P_PID, process->pid, &info, WEXITED | WNOHANG | WNOWAIT, &usage) ||
	    !info.si_pid)
		return;
	process->ended = true;
	/* The order below is what supervise.h promises: started, then the rank's last lines, then
	 * ended. */
	supervise->running--;
	loop_close(supervise->loop, &process->end);
	read_report(supervise, process, true);
	supervise_drain_stream(&process->streams[0]);
	supervise_drain_stream(&process->streams[1]);
	report_end(supervise, process, &info, &usage);
	/* Check for the remains of the last one at once. */
	if (supervise->state == STATE_TERM && !supervise->running)
		loop_timer_after(supervise->loop, &supervise->timer, 0);
}

void supervise_check_all(struct supervise *supervise)
{
	for (size_t i = 0; i < supervise->count; i++)
		check_process(supervise, &supervise->processes[i]);
}

static struct rank_process *process_of(struct supervise *supervise, pid_t pid)
{
	for (size_t i = 0; i < supervise->count; i++)
		if (supervise->processes[i].pid == pid)
			return &supervise->processes[i];
	return NULL;
}

/* Reap adopted orphans, up to the first rank that must stay a zombie. */
void supervise_reap_orphans(struct supervise *supervise)
{
	siginfo_t info;

	for (int i = 0; i < 1000; i++) {
		info.si_pid = 0;
		if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) || !info.si_pid ||
		    process_of(supervise, info.si_pid))
			return;
		waitpid(info.si_pid, NULL, WNOHANG | __WALL);
	}
}

/* If zombies of ranks are in the way, read /proc and release ranks whose process group is empty. */
static void reap_by_list(struct supervise *supervise)
{
	struct process_tree list = {0};
	bool used;

	if (supervise_list(supervise, &list)) {
		process_tree_free(&list);
		return;
	}
	for (size_t i = 0; i < list.count; i++)
		if (!list.items[i].alive && list.items[i].parent == getpid() &&
		    !process_of(supervise, list.items[i].pid))
			waitpid(list.items[i].pid, NULL, WNOHANG | __WALL);
	/* An incomplete list might lack a member of the rank's group, so none is released then. */
	for (size_t i = 0; i < supervise->count && !list.incomplete; i++) {
		struct rank_process *process = &supervise->processes[i];

		if (!process->ended || process->pid <= 0)
			continue;
		used = false;
		for (size_t k = 0; k < list.count; k++)
			used |= list.items[k].group == process->pid &&
				list.items[k].pid != process->pid;
		if (!used)
			supervise_reap(process);
	}
	process_tree_free(&list);
}

void supervise_reap(struct rank_process *process)
{
	if (process->pid > 0)
		waitpid(process->pid, NULL, WNOHANG | __WALL);
	process->pid = -1;
}

/* ---- events ---- */

static void check_exec_timeouts(struct supervise *supervise, int64_t now)
{
	for (size_t i = 0; i < supervise->count; i++) {
		struct rank_process *process = &supervise->processes[i];

		if (process->ended || process->report.fd < 0 || process->start_code ||
		    now < process->forked_ms + SUPERVISE_EXEC_MS)
			continue;
		snprintf(process->start_error, sizeof process->start_error,
			 "cannot start %.200s: it did not load within %d s; check that its file "
			 "system responds",
			 process->program, SUPERVISE_EXEC_MS / 1000);
		process->start_code = CHILD_CANNOT_START;
		kill(process->pid, SIGKILL);
	}
}

static void on_timer(struct loop_timer *timer)
{
	struct supervise *supervise = LOOP_OWNER(timer, struct supervise, timer);
	int64_t now = loop_now_ms(supervise->loop);

	pass_unfinished(supervise, now);
	if (!supervise->pidfds || supervise->state != STATE_RUN)
		supervise_check_all(supervise);
	if (supervise->state == STATE_TERM || supervise->state == STATE_KILL) {
		supervise_continue_stop(supervise);
		return;
	}
	supervise_start_timer(supervise);
	check_exec_timeouts(supervise, now);
	supervise_reap_orphans(supervise);
	if (supervise->running < supervise->count && now >= supervise->list_ms) {
		reap_by_list(supervise);
		supervise->list_ms = now + LIST_MS;
	}
}

static void on_stream(struct loop_source *source, uint32_t events)
{
	(void)events;
	read_stream(LOOP_OWNER(source, struct stream, source), SUPERVISE_BUFFER);
}

static void on_report(struct loop_source *source, uint32_t events)
{
	struct rank_process *process = LOOP_OWNER(source, struct rank_process, report);

	(void)events;
	read_report(process->streams[0].owner, process, false);
}

static void on_end(struct loop_source *source, uint32_t events)
{
	struct rank_process *process = LOOP_OWNER(source, struct rank_process, end);

	(void)events;
	check_process(process->streams[0].owner, process);
}

bool supervise_watch(struct supervise *supervise, struct rank_process *process, int report_fd)
{
	struct loop *loop = supervise->loop;
	struct stream *streams = process->streams;
	int pidfd = process_tree_pidfd_open(process->pid);

	if (pidfd < 0 && errno != ENOSYS)
		return false;
	supervise->pidfds &= pidfd >= 0;
	process->end.ready = on_end;
	process->report.ready = on_report;
	streams[0].source.ready = streams[1].source.ready = on_stream;
	if (pidfd >= 0 && loop_add(loop, &process->end, pidfd, EPOLLIN, NULL)) {
		close(pidfd);
		return false;
	}
	return !loop_add(loop, &process->report, report_fd, EPOLLIN, NULL) &&
	       !loop_add(loop, &streams[0].source, streams[0].fd, EPOLLIN, NULL) &&
	       !loop_add(loop, &streams[1].source, streams[1].fd, EPOLLIN, NULL);
}

size_t supervise_running(const struct supervise *supervise)
{
	return supervise->running;
}

void supervise_start_timer(struct supervise *supervise)
{
	loop_timer_after(supervise->loop, &supervise->timer,
			 supervise_repeat_signals(supervise) ? SUPERVISE_STOP_MS
			 : supervise->pidfds		     ? TICK_MS
							     : POLL_MS);
}

void supervise_free(struct supervise *supervise)
{
	if (!supervise)
		return;
	if (supervise->count && supervise->state != STATE_FINISHED)
		supervise_kill_descendants(&supervise->exempt_pid, supervise->exempt_pid > 0,
					   SUPERVISE_KILL_MS, NULL, 0);
	/* Closing a stream delivers the rest of its line, but the owner expects no more events. */
	supervise->events = (struct supervise_events){0};
	for (size_t i = 0; i < supervise->count; i++) {
		struct rank_process *process = &supervise->processes[i];

		supervise_close_stream(&process->streams[0]);
		supervise_close_stream(&process->streams[1]);
		loop_close(supervise->loop, &process->report);
		loop_close(supervise->loop, &process->end);
		supervise_free_names(process);
	}
	free(supervise->processes);
	free(supervise->buffer);
	loop_timer_stop(&supervise->timer);
	free(supervise);
}
