/* SPDX-License-Identifier: BSD-3-Clause */
/* Signals to berth run: forwarded to the ranks, and what follows a stop signal. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "controller/job_internal.h"
#include "overlay/messages.h"
#include "process/process_tree.h"

#define SAME_SIGNAL_MS 2000
#define EARLY_STOP_MS 2000 /* mpirun's own end follows within 0.1 s */

struct job_stop {
	struct job *job;
	int last_signal; /* the one that was forwarded last; 0: none was */
	int64_t last_ms; /* when */
	int interrupts;
	int early_signal;	  /* a stop signal from the launcher before the ranks run */
	struct loop_timer early;  /* it counts then */
	struct loop_timer kill;	  /* as struct stop_times */
	struct loop_timer report; /* likewise */
};

/* ---- stop signals ---- */

static const char *stop_name(const struct job *job)
{
	const char *name = error_signal_name(job->result.interrupted);

	return name ? name : "TERM";
}

/* The ranks that run: "0,3"; malloced, or NULL. */
static char *list_running(const struct job *job, size_t *count)
{
	struct idset *running = idset_new();
	char *list = NULL;
	size_t i;
	json_t *end;

	*count = 0;
	if (running && !idset_add_range(running, 0, job->plan.world_size - 1)) {
		json_array_foreach(job->result.ranks, i, end) idset_remove(
			running, (int)json_integer_value(json_object_get(end, "rank")));
		*count = idset_count(running);
		list = idset_format(running);
	}
	idset_free(running);
	return list;
}

static void begin_stop(struct job *job, int number, bool by_scheduler)
{
	struct stop_times times =
		stop_times(number, by_scheduler, job->kill_wait_ms, job_stop_grace_ms(job));

	job_stop_begins(job);
	if (times.kill_ms >= 0)
		loop_timer_after(job->loop, &job->stop->kill, times.kill_ms);
	if (times.report_ms >= 0)
		loop_timer_after(job->loop, &job->stop->report, times.report_ms);
	if (times.kill_ms >= 0 && (number == SIGINT || number == SIGTERM))
		job_note(job_common_sink(job), LOG_NOTE,
			 "forwarded SIG%s to the ranks, which have %lld s (--stop-grace); send it "
			 "again to kill them at once",
			 stop_name(job), (long long)times.kill_ms / 1000);
	else
		job_note(job_common_sink(job), LOG_NOTE, "forwarded SIG%s to the ranks",
			 stop_name(job));
}

/* The scheduler will soon kill what still runs: report it while there is time. */
static void report_so_far(struct job *job, char *text)
{
	struct job_result sofar = job->result;

	job_note(job->sink, LOG_WARNING, "%s", text);
	sofar.code = 128 + sofar.interrupted;
	if (!sofar.cause.text || job->first.cause == CAUSE_STOPPED)
		sofar.cause.text = text;
	if (job->request->calls.stop_report)
		job->request->calls.stop_report(job->request->calls.context, &sofar);
}

static void kill_late_ranks(struct job *job, const char *text)
{
	struct job_result *result = &job->result;

	if (result->cause.text && job->first.cause != CAUSE_STOPPED) {
		job_note(job->sink, LOG_WARNING, "%s", text);
	} else {
		free(result->cause.text);
		result->cause.text = strdup(text);
		result->cause.end = JOB_END_BERTH;
		result->cause.rank = -1;
	}
	job_request_end(job, 0);
}

static void end_stop(struct job *job, bool kill)
{
	long long seconds = (loop_now_ms(job->loop) - job->stop_begun_ms + 500) / 1000;
	size_t count;
	char text[500], *list;

	if (job->phase != JOB_PHASE_RUN)
		return;
	list = list_running(job, &count);

	snprintf(text, sizeof text, "rank%s %.200s had not ended %lld s after SIG%s%s",
		 count == 1 ? "" : "s", list ? list : "?", seconds, stop_name(job),
		 !kill	      ? ": the scheduler may kill the job now"
		 : count == 1 ? ", so berth killed it (--stop-grace)"
			      : ", so berth killed them (--stop-grace)");
	free(list);
	if (count && kill)
		kill_late_ranks(job, text);
	else if (count)
		report_so_far(job, text);
}

static void on_stop_kill(struct loop_timer *timer)
{
	end_stop(LOOP_OWNER(timer, struct job_stop, kill)->job, true);
}

static void on_stop_report(struct loop_timer *timer)
{
	end_stop(LOOP_OWNER(timer, struct job_stop, report)->job, false);
}

/* Sum up how the ranks have ended after a stop signal. */
void job_finish_stop(struct job *job)
{
	struct job_result *result = &job->result;
	struct stop_ends ends = {0};
	size_t i;
	json_t *end;

	if (!job->stop_begun_ms || job->first.cause == CAUSE_BERTH)
		return;
	json_array_foreach(result->ranks, i, end)
	{
		int code = (int)json_integer_value(json_object_get(end, "code"));
		int number = (int)json_integer_value(json_object_get(end, "signal"));
		bool stopped = json_is_true(json_object_get(end, "stopped"));

		if (!stopped && !ends.crash && stop_is_crash(number, result->interrupted))
			ends.crash = code;
		ends.done += !code;
		ends.saved += !stopped && code == ERR_STOPPED;
	}
	ends.others = job->plan.world_size - ends.done - ends.saved;
	result->code = stop_code(result->interrupted, &ends);
}

/* ---- forwarding ---- */

static void forward_signal(struct job *job, int number, bool by_scheduler)
{
	bool first = stop_is_signal(number) && !job->result.interrupted;

	if (first) {
		job->result.interrupted = number;
		job_record_time_left(job);
	} else if (!stop_is_signal(number) && !job->result.user_signal) {
		job->result.user_signal = number;
	}
	if (job->phase < JOB_PHASE_RUN) {
		if (stop_is_signal(number))
			job_fail(job, 128 + number, -1,
				 "stopped by %s before the ranks were started", strsignal(number));
		return;
	}
	job_signal_ranks(job, number, number == SIGTERM ? "SIGTERM" : NULL);
	job->stop->last_signal = number;
	job->stop->last_ms = loop_now_ms(job->loop);
	if (first && (!job->first.failed || job->first.cause == CAUSE_STOPPED))
		begin_stop(job, number, by_scheduler);
}

/* A scheduler that signals every task signals the controller and all agents. Count that as one
 * signal. */
static bool is_duplicate(const struct job *job, int number)
{
	return job->stop->last_signal == number &&
	       loop_now_ms(job->loop) - job->stop->last_ms < SAME_SIGNAL_MS;
}

/* An agent received this signal, from its launcher or from anyone: forward it to all ranks, unless
 * it is a duplicate of the one that was just forwarded.
 *
 * If an agent cannot be started, mpirun stops the other agents before it ends. Its end tells more
 * than the signal, so a launcher's stop signal before the ranks run counts only if the launcher
 * still runs EARLY_STOP_MS later. */
static void handle_signalled(struct job *job, size_t node, const struct message *message)
{
	int number = message->signalled.signal;
	bool by_launcher = message->signalled.launcher;

	if (by_launcher && job->phase < JOB_PHASE_RUN && stop_is_signal(number)) {
		if (!job->stop->early.due_ms)
			loop_timer_after(job->loop, &job->stop->early, EARLY_STOP_MS);
		job->stop->early_signal = number;
	} else if (!is_duplicate(job, number)) {
		forward_signal(job, number, by_launcher && job->kill_wait_ms);
	}
}

static void on_early_stop(struct loop_timer *timer)
{
	struct job *job = LOOP_OWNER(timer, struct job_stop, early)->job;

	forward_signal(job, job->stop->early_signal, job->kill_wait_ms != 0);
}

/* Describe the sender of a signal if it is one of the job's own processes on this machine. */
static void find_sender(pid_t sender, char *text, size_t size)
{
	struct process_tree_entry first, process;

	if (!process_tree_find(sender, &first))
		return;
	process = first;
	for (int level = 0; process.parent != getpid(); level++)
		if (process.parent <= 1 || level == 64 ||
		    !process_tree_find(process.parent, &process))
			return;
	snprintf(text, size, "process %d (%s) of this job", (int)sender, first.name);
}

/* Did the scheduler's daemon send the signal? It runs as root, outside the job. A terminal's
 * signals have no sender. */
static bool is_from_scheduler(const struct job *job, const struct signalfd_siginfo *info)
{
	static const char *const daemons[] = {"slurmstepd", "slurmd", "pbs_mom"};
	char path[64], name[32];

	if (!job->kill_wait_ms || info->ssi_code > 0)
		return false;
	if (info->ssi_uid != getuid())
		return true;
	snprintf(path, sizeof path, "/proc/%d/comm", (int)info->ssi_pid);
	file_read_line(path, name, sizeof name);
	for (size_t i = 0; i < sizeof daemons / sizeof *daemons; i++)
		if (!strcmp(name, daemons[i]))
			return true;
	return false;
}

static void on_signal(struct job *job, const struct signalfd_siginfo *info)
{
	int number = (int)info->ssi_signo;
	bool by_scheduler = is_from_scheduler(job, info);

	if (number == SIGWINCH || number == SIGTTIN)
		return;
	if (number == SIGTSTP || number == SIGCONT) {
		job_signal_ranks(job, number == SIGTSTP ? SIGSTOP : SIGCONT, NULL);
		return;
	}
	/* A scheduler repeats its signal, and kills by itself. */
	if ((number == SIGINT || number == SIGTERM) && !by_scheduler &&
	    ++job->stop->interrupts > 1) {
		job_note(job_common_sink(job), LOG_WARNING,
			 "second signal: killing all ranks at once");
		if (!job->first.failed)
			job_fail(job, 128 + number, -1, "stopped by a second %s",
				 strsignal(number));
		job_request_end(job, 0);
		return;
	}
	if (stop_is_signal(number) && !job->result.interrupted && info->ssi_code <= 0)
		find_sender((pid_t)info->ssi_pid, job->result.sender, sizeof job->result.sender);
	forward_signal(job, number, by_scheduler);
}

static int open_stop(struct job *job, struct error *err)
{
	job->stop = malloc(sizeof *job->stop);
	if (!job->stop)
		return error_memory(err, "signals");
	*job->stop = (struct job_stop){
		.job = job,
		.early.due = on_early_stop,
		.kill.due = on_stop_kill,
		.report.due = on_stop_report,
	};
	return 0;
}

static void close_stop(struct job *job)
{
	loop_timer_stop(&job->stop->early);
	loop_timer_stop(&job->stop->kill);
	loop_timer_stop(&job->stop->report);
	free(job->stop);
}

const struct job_part job_stop_part = {
	.open = open_stop,
	.handlers = (const struct job_handler[]){{MESSAGE_SIGNALLED, handle_signalled}, {0}},
	.on_signal = on_signal,
	.close = close_stop,
};
