/* SPDX-License-Identifier: BSD-3-Clause */
/* Signals to the ranks, and ending everything that descends from them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/log.h"
#include "process/supervise_internal.h"

#define LEFTOVER_MS 1000 /* the remaining grace once no rank runs */

static bool in_rank_group(const struct supervise *supervise, pid_t group)
{
	for (size_t i = 0; i < supervise->count; i++)
		if (supervise->processes[i].pid == group)
			return true;
	return false;
}

static bool is_spared(const struct supervise *supervise, const struct process_tree_entry *process,
		      int signal)
{
	if (!supervise->spared || signal == SIGKILL)
		return false;
	for (size_t i = 0; supervise->spared[i]; i++)
		if (!strcmp(supervise->spared[i], process->name))
			return true;
	return false;
}

/* Signal what is listed in a process group, or, with group 0, what is in no rank's. Return the
 * number of processes. */
static size_t signal_listed(const struct supervise *supervise, const struct process_tree *list,
			    pid_t group, int signal)
{
	size_t count = 0;

	for (size_t i = 0; i < list->count; i++) {
		const struct process_tree_entry *process = &list->items[i];

		if (process->alive && !is_spared(supervise, process, signal) &&
		    (group ? process->group == group : !in_rank_group(supervise, process->group)))
			count += !process_tree_signal(process, signal);
	}
	return count;
}

/* Signal the descendants that have left the ranks' process groups. */
static void signal_others(const struct supervise *supervise, int signal)
{
	struct process_tree list = {0};

	if (!supervise_list(supervise, &list))
		signal_listed(supervise, &list, 0, signal);
	process_tree_free(&list);
}

/* Signal the process groups of the ranks; ended: also of those that have ended, in which children
 * may be left. */
static void signal_ranks(struct supervise *supervise, bool ended, int signal)
{
	struct process_tree list = {0};
	bool listed = supervise->spared && signal != SIGKILL && !supervise_list(supervise, &list);

	for (size_t i = 0; i < supervise->count; i++) {
		struct rank_process *process = &supervise->processes[i];

		if (process->pid <= 0 || (process->ended && !ended))
			continue;
		if (listed &&
		    (signal_listed(supervise, &list, process->pid, signal) || process->ended))
			continue;
		/* The program has not started yet: what starts it gets the signal, and may end, or
		 * not pass it on. */
		if (listed && signal != SIGCONT && signal != SIGSTOP)
			process->unheard = signal;
		/* Before its setsid a rank has no group yet. */
		if (kill(-process->pid, signal) && errno == ESRCH)
			kill(process->pid, signal);
	}
	process_tree_free(&list);
}

bool supervise_repeat_signals(struct supervise *supervise)
{
	struct process_tree list = {0};
	bool more = false;

	for (size_t i = 0; i < supervise->count; i++) {
		struct rank_process *process = &supervise->processes[i];

		if (!process->unheard || process->ended || !supervise->spared)
			continue;
		if (!list.items && supervise_list(supervise, &list))
			return true;
		if (signal_listed(supervise, &list, process->pid, process->unheard))
			process->unheard = 0;
		more |= process->unheard;
	}
	process_tree_free(&list);
	return more;
}

void supervise_signal(struct supervise *supervise, int signal)
{
	signal_ranks(supervise, false, signal);
	if (supervise->state == STATE_RUN && supervise_repeat_signals(supervise))
		supervise_start_timer(supervise);
	/* A stopped process does not see these. */
	if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT)
		signal_ranks(supervise, false, SIGCONT);
	if (signal == SIGSTOP || signal == SIGCONT)
		/* Other signals are for the rank's own group. A suspended job, however, must not
		 * use any CPU, so whatever has left the groups stops and continues, too. */
		signal_others(supervise, signal);
}

static void mark_stopped(struct supervise *supervise)
{
	for (size_t i = 0; i < supervise->count; i++)
		if (!supervise->processes[i].ended)
			supervise->processes[i].stopped_by_us = true;
}

static void term_all(struct supervise *supervise)
{
	mark_stopped(supervise);
	signal_ranks(supervise, true, SIGTERM);
	signal_ranks(supervise, true, SIGCONT);
	signal_others(supervise, SIGTERM);
}

static void kill_all(struct supervise *supervise, char *left, size_t size)
{
	struct process_tree list = {0};

	mark_stopped(supervise);
	signal_ranks(supervise, true, SIGKILL);
	if (!supervise_list(supervise, &list)) {
		for (size_t i = 0; i < list.count; i++)
			if (list.items[i].alive)
				process_tree_signal(&list.items[i], SIGKILL);
		process_tree_format(&list, left, size);
	}
	process_tree_free(&list);
}

/* No rank runs and no child of ours is left; orphans become our children. */
static bool are_all_gone(struct supervise *supervise)
{
	if (supervise->running)
		return false;
	for (size_t i = 0; i < supervise->count; i++)
		supervise_reap(&supervise->processes[i]);
	supervise_reap_orphans(supervise);
	return process_tree_is_empty();
}

static void finish_stop(struct supervise *supervise, const char *left)
{
	log_info(LOG_PROCESS, "the ranks' process trees have ended%s%s", left ? ", except " : "",
		 left ? left : "");
	supervise->state = STATE_FINISHED;
	for (size_t i = 0; i < supervise->count * 2; i++) {
		struct stream *stream = &supervise->processes[i / 2].streams[i % 2];

		supervise_drain_stream(stream);
		supervise_close_stream(stream);
	}
	loop_timer_stop(&supervise->timer);
	if (supervise->events.finished)
		supervise->events.finished(supervise->events.context, left);
}

void supervise_continue_stop(struct supervise *supervise)
{
	char left[512] = "";
	int64_t now = loop_now_ms(supervise->loop);

	if (are_all_gone(supervise)) {
		finish_stop(supervise, NULL);
		return;
	}
	if (supervise->state == STATE_TERM) {
		/* No rank needs them any longer. */
		if (!supervise->running && supervise->spared) {
			supervise->spared = NULL;
			term_all(supervise);
		}
		if (!supervise->running && supervise->deadline_ms > now + LEFTOVER_MS)
			supervise->deadline_ms = now + LEFTOVER_MS;
		if (now < supervise->deadline_ms) {
			supervise_repeat_signals(supervise);
			loop_timer_after(supervise->loop, &supervise->timer, SUPERVISE_STOP_MS);
			return;
		}
		log_info(LOG_PROCESS,
			 "%zu ranks still run, or processes that they left: sending SIGKILL",
			 supervise->running);
		supervise->state = STATE_KILL;
		supervise->deadline_ms = now + SUPERVISE_KILL_MS;
	}
	/* Every round sends SIGKILL again: while the list is read, processes may fork. */
	kill_all(supervise, left, sizeof left);
	supervise_check_all(supervise);
	if (are_all_gone(supervise))
		finish_stop(supervise, NULL);
	else if (now >= supervise->deadline_ms)
		finish_stop(supervise, left[0] ? left : "a process hidden from /proc");
	else
		loop_timer_after(supervise->loop, &supervise->timer, SUPERVISE_STOP_MS);
}

void supervise_stop(struct supervise *supervise, int grace_ms)
{
	int64_t deadline = loop_now_ms(supervise->loop) + grace_ms;

	if (supervise->state >= STATE_KILL)
		return;
	if (supervise->state == STATE_RUN) {
		supervise->state = STATE_TERM;
		supervise->deadline_ms = deadline;
		if (!supervise->running)
			supervise->spared = NULL;
		if (grace_ms > 0 && !are_all_gone(supervise))
			term_all(supervise);
	} else if (deadline < supervise->deadline_ms) {
		supervise->deadline_ms = deadline;
	}
	loop_timer_after(supervise->loop, &supervise->timer,
			 supervise->running ? SUPERVISE_STOP_MS : 0);
}
