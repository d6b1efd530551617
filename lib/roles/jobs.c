/* SPDX-License-Identifier: BSD-3-Clause */
/* What belongs to this process and not to one job: the loop, signals, children, the output that
 * waits to be printed; and how jobs depend on each other (decide.h). */
#include "roles/jobs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/loop.h"
#include "controller/controller.h"
#include "process/supervise.h"
#include "roles/decide.h"

static const int handled_signals[] = {SIGINT,  SIGTERM, SIGHUP,	 SIGQUIT,  SIGUSR1, SIGUSR2,
				      SIGTSTP, SIGCONT, SIGTTIN, SIGWINCH, SIGCHLD};

struct jobs {
	const struct jobs_request *request;
	const struct job_sink *sink; /* of this process: the first job's */
	struct loop *loop;
	struct loop_source signals, drained;
	struct loop_timer wake; /* only wakes the loop: something is due after this round */
	int64_t suspended_ms;	/* for how long this process was, when last looked at */
	bool prepared;
	bool server_noted; /* that --service may be missing */
	long first;	   /* the job that failed first; -1: none did */
	struct {
		struct job *job;
		bool dismissed; /* a service that is no longer needed: its end does not count */
		bool forgone;	/* a replica that failed, of which enough were left: no failure */
		int restarts;	/* how often it was restarted */
		struct job_request own; /* the entry's, but for a restart or another launcher */
		struct launch_options launch;
	} jobs[]; /* [request->count] */
};

static void on_drained(struct loop_source *source, uint32_t events)
{
	(void)source;
	(void)events; /* apply_backpressure checks it */
}

static void on_wake(struct loop_timer *timer)
{
	(void)timer; /* round_of_all looks what is due */
}

static void on_signal(struct loop_source *source, uint32_t events)
{
	struct jobs *jobs = LOOP_OWNER(source, struct jobs, signals);
	struct signalfd_siginfo info;

	(void)events;
	while (read(source->fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGCHLD)
			controller_reap();
		for (size_t i = 0; i < jobs->request->count && info.ssi_signo != SIGCHLD; i++)
			if (!job_is_over(jobs->jobs[i].job))
				job_signal(jobs->jobs[i].job, &info);
		/* As srun and mpirun do, once all ranks are being stopped and the terminal is
		 * released. */
		if (info.ssi_signo == SIGTSTP)
			kill(getpid(), SIGSTOP);
	}
}

static bool any_runs(const struct jobs *jobs)
{
	for (size_t i = 0; i < jobs->request->count; i++)
		if (job_runs(jobs->jobs[i].job))
			return true;
	return false;
}

static void apply_backpressure(struct jobs *jobs)
{
	bool full = jobs->sink->full && jobs->sink->full(jobs->sink->context);

	for (size_t i = 0; jobs->sink->full && i < jobs->request->count; i++)
		job_pause(jobs->jobs[i].job, full);
}

static void check_reader(struct jobs *jobs)
{
	const struct job_sink *sink = jobs->sink;

	for (size_t i = 0; sink->abandoned && i < jobs->request->count; i++)
		if (job_runs(jobs->jobs[i].job) && !job_has_failed(jobs->jobs[i].job) &&
		    sink->abandoned(sink->context))
			job_fail(jobs->jobs[i].job, ERR_IO, -1,
				 "the reader of the output has gone, so the job was ended; "
				 "--log-dir keeps the output, and the job then continues");
}

static void note_suspension(struct jobs *jobs)
{
	int64_t ms = loop_suspended_ms(jobs->loop) - jobs->suspended_ms;

	jobs->suspended_ms += ms;
	if (ms > jobs->request->entries[0].request->launch->node_timeout_ms && any_runs(jobs))
		job_note(jobs->sink, LOG_NOTE,
			 "berth run was suspended for %lld s; the ranks continue",
			 (long long)(ms / 1000));
}

/* ---- how they depend on each other ---- */

static struct role_view view(const struct jobs *jobs, size_t i)
{
	const struct job *job = jobs->jobs[i].job;
	struct role_view out = {
		.rule = &jobs->request->rules[i],
		.state = job_is_over(job)	? ROLE_OVER
			 : job_is_ending(job)	? ROLE_ENDING
			 : job_is_ready(job)	? ROLE_READY
			 : job_runs(job)	? ROLE_STARTING
			 : job_is_prepared(job) ? ROLE_PREPARED
			 : job_is_known(job)	? ROLE_KNOWN
						: ROLE_OPEN,
		.takes_rest = jobs->request->entries[i].request->plan.rest,
		.finished = job_has_finished(job),
		.silent_ms = job_silent_ms(job),
	};

	out.restarts =
		jobs->jobs[i].restarts < jobs->request->entries[i].restarts && !job_lost_port(job);
	out.stopped = !jobs->jobs[i].dismissed && job_has_stopped(job);
	out.failed = !jobs->jobs[i].dismissed && !jobs->jobs[i].forgone && job_has_failed(job) &&
		     !out.stopped;
	return out;
}

/* Tell a job what the jobs that have plans use on its nodes; the agents know only of other runs. */
static void tell_claims(struct jobs *jobs, size_t later)
{
	const struct alloc *own = jobs->request->entries[later].request->launch->alloc;

	for (size_t i = 0; i < jobs->request->count; i++) {
		const struct alloc *alloc = jobs->request->entries[i].request->launch->alloc;
		const struct plan *plan = jobs->request->entries[i].role->overlap
						  ? NULL
						  : job_plan(jobs->jobs[i].job);

		for (size_t a = 0; plan && a < plan->node_count; a++)
			for (size_t b = 0; b < own->node_count; b++) {
				json_t *claim = alloc->nodes[a].name == own->nodes[b].name
							? plan_claim(&plan->nodes[a])
							: NULL;

				if (!claim)
					continue;
				json_object_set_new(
					claim, "by",
					json_sprintf("role %s",
						     jobs->request->entries[i].role->name));
				job_add_claim(jobs->jobs[later].job, b, claim);
			}
	}
}

static void start(struct jobs *jobs, size_t i, struct job *const *all)
{
	struct error err = {0};

	if (!jobs->prepared && jobs->request->prepared(jobs->request->context, all, &err)) {
		job_fail(jobs->jobs[i].job, err.code, -1, "%s", err.text);
		return;
	}
	jobs->prepared = true;
	jobs->request->entries[i].role->released = true;
}

/* Start a service again, on the same nodes and at the same ports, while the others run. It blocks
 * the loop until the agents have ended, see job_close. */
static void restart(struct jobs *jobs, size_t i)
{
	const struct jobs_entry *entry = &jobs->request->entries[i];
	struct job_request *own = &jobs->jobs[i].own;
	const struct plan *plan = job_plan(jobs->jobs[i].job);
	int port = plan ? plan->port : own->plan.port;
	int first_port = job_first_port(jobs->jobs[i].job);
	struct job_result result;
	struct error err;

	jobs->request->restarted[i]++;
	job_finish(jobs->jobs[i].job, &result);
	job_announce_end(jobs->jobs[i].job, result.code, true);
	job_close(jobs->jobs[i].job, &result);
	job_note(entry->sink, LOG_WARNING, "role %s: %s", entry->role->name,
		 result.cause.text ? result.cause.text : "it has failed");
	job_note(entry->sink, LOG_WARNING, "restarting role %s, %d of at most %d times",
		 entry->role->name, ++jobs->jobs[i].restarts, entry->restarts);
	job_result_free(&result);
	own->plan.port = port;
	own->plan.attempt++;
	jobs->jobs[i].launch.first_port = first_port;
	/* The role is released, so a failure to open it is that of the job, but without memory for
	 * that there is none. */
	if (job_open(jobs->loop, own, entry->sink, &jobs->jobs[i].job, &err))
		abort();
}

static void act(struct jobs *jobs, size_t i, enum role_action action, struct job *const *all)
{
	const struct jobs_entry *entry = &jobs->request->entries[i];
	int grace_ms = entry->request->end.stop_grace_ms;

	switch (action) {
	case ROLE_WAIT:
		break;
	case ROLE_PROBE:
	case ROLE_PLAN:
		if (!entry->role->others)
			entry->role->others = jobs->request->others(jobs->request->context, all, i);
		if (action == ROLE_PROBE)
			break;
		if (!entry->role->turn)
			tell_claims(jobs, i);
		entry->role->turn = true;
		break;
	case ROLE_START:
		start(jobs, i, all);
		break;
	case ROLE_RESTART:
		restart(jobs, i);
		break;
	case ROLE_FORGO:
		job_note(entry->sink, LOG_WARNING,
			 "role %s: %s; the others go on without it (--need %d)", entry->role->name,
			 job_first_cause(all[i]), jobs->request->rules[i].need);
		jobs->jobs[i].forgone = true;
		break;
	case ROLE_DISMISS:
		jobs->jobs[i].dismissed = true;
		job_request_end(all[i], SUPERVISE_GRACE_MS);
		break;
	case ROLE_END:
		job_request_end(all[i], SUPERVISE_GRACE_MS);
		break;
	case ROLE_STOP:
		job_request_end(all[i], grace_ms ? grace_ms : JOB_STOP_GRACE_MS);
		break;
	}
}

static void note_server(struct jobs *jobs, const struct role_view *views)
{
	long server = roles_find_server(views, jobs->request->count);

	if (server < 0 || jobs->server_noted)
		return;
	jobs->server_noted = true;
	job_note(jobs->sink, LOG_NOTE,
		 "role %s runs on without output, although others have ended: if it is a server, "
		 "give it --service, and it ends with them",
		 jobs->request->entries[server].role->name);
}

/* Return true if something was changed that the jobs should see at once. */
static bool act_on_all(struct jobs *jobs)
{
	size_t count = jobs->request->count;
	struct role_view views[ROLES_MAX];
	enum role_action actions[ROLES_MAX];
	struct job *all[ROLES_MAX];
	bool interrupted = false, changed = false;

	for (size_t i = 0; i < count; i++) {
		views[i] = view(jobs, i);
		all[i] = jobs->jobs[i].job;
		interrupted |= job_is_interrupted(all[i]);
	}
	roles_decide(views, count, interrupted, &jobs->first, actions);
	note_server(jobs, views);
	for (size_t i = 0; i < count; i++) {
		const struct job_role role = *jobs->request->entries[i].role;

		act(jobs, i, actions[i], all);
		all[i] = jobs->jobs[i].job; /* it may have been restarted */
		changed |= role.others != jobs->request->entries[i].role->others ||
			   role.turn != jobs->request->entries[i].role->turn ||
			   role.released != jobs->request->entries[i].role->released;
	}
	return changed;
}

/* ---- the loop ---- */

/* What the callbacks of the loop have made possible. Return false if all jobs are over. */
static bool round_of_all(struct jobs *jobs)
{
	int64_t now_ms = clock_now_ms(), due_ms = 0;
	bool over = true;

	do {
		due_ms = 0;
		over = true;
		for (size_t i = 0; i < jobs->request->count; i++) {
			int64_t job_ms;

			/* Only the first one asks the scheduler. */
			if (i)
				job_copy_limit(jobs->jobs[i].job, jobs->jobs[0].job);
			job_ms = job_round(jobs->jobs[i].job, now_ms);

			if (job_ms && (!due_ms || job_ms < due_ms))
				due_ms = job_ms;
			over &= job_is_over(jobs->jobs[i].job);
		}
	} while (!over && jobs->request->entries[0].role && act_on_all(jobs));
	note_suspension(jobs);
	apply_backpressure(jobs);
	check_reader(jobs);
	if (jobs->sink->tick) {
		int64_t sink_ms = jobs->sink->tick(jobs->sink->context, now_ms);

		if (sink_ms && (!due_ms || sink_ms < due_ms))
			due_ms = sink_ms;
	}
	if (due_ms)
		loop_timer_after(jobs->loop, &jobs->wake, due_ms - now_ms);
	else
		loop_timer_stop(&jobs->wake);
	return !over;
}

static void run(struct jobs *jobs)
{
	struct error err = {0};

	while (round_of_all(jobs))
		if (loop_once(jobs->loop, &err)) {
			for (size_t i = 0; i < jobs->request->count; i++)
				job_fail(jobs->jobs[i].job, err.code, -1, "%s", err.text);
			return;
		}
}

/* ---- the result ---- */

/* How much a role's result says about the job: least a service's, or one's whose ranks a stop
 * signal kept from starting; most a failure. */
static int weight(const struct jobs *jobs, const struct job_result *result, size_t i)
{
	if (jobs->request->entries[i].role->service || (result->interrupted && !result->start_sent))
		return 0;
	return !result->code ? 1 : result->code == ERR_STOPPED ? 2 : 3;
}

/* The job whose result is that of all. */
static size_t pick(const struct jobs *jobs, const struct job_result *results)
{
	size_t best = 0;

	if (jobs->first >= 0)
		return (size_t)jobs->first;
	for (size_t i = 1; i < jobs->request->count; i++)
		if (weight(jobs, &results[i], i) > weight(jobs, &results[best], best))
			best = i;
	return best;
}

static void name_role(struct job_result *result, const char *role)
{
	char *text;

	if (!result->cause.text || asprintf(&text, "role %s: %s", role, result->cause.text) < 0)
		return;
	free(result->cause.text);
	result->cause.text = text;
}

/* Nodes as the allocation counts them. */
static void translate_nodes(struct jobs *jobs, const struct job_result *results,
			    struct job_result *out)
{
	bool *lost = calloc(jobs->request->node_count, sizeof *lost);

	for (size_t i = 0; lost && i < jobs->request->count; i++) {
		const struct jobs_entry *entry = &jobs->request->entries[i];

		for (size_t n = 0; n < entry->request->launch->alloc->node_count; n++)
			lost[entry->nodes[n]] |= results[i].lost && results[i].lost[n];
	}
	free(out->lost);
	out->lost = lost;
}

static void combine(struct jobs *jobs, struct job_result *results, struct job_result *out)
{
	size_t best = pick(jobs, results);
	const struct jobs_entry *entries = jobs->request->entries;
	json_t *ranks = json_array(), *roles = json_array(), *rank;
	size_t k;

	for (size_t i = 0; i < jobs->request->count; i++) {
		const struct plan *plan = job_plan(jobs->jobs[i].job);

		json_array_foreach(results[i].ranks, k, rank)
			json_object_set_new(rank, "role", json_string(entries[i].role->name));
		json_array_extend(ranks, results[i].ranks);
		json_array_append_new(
			roles, json_pack("{s:s, s:b, s:i, s:i, s:i}", "role", entries[i].role->name,
					 "service", entries[i].role->service, "code",
					 jobs->jobs[i].dismissed ? 0 : results[i].code, "nodes",
					 plan ? (int)plan->nodes_with_ranks : 0, "world_size",
					 plan ? plan->world_size : 0));
	}
	*out = results[best];
	out->role = best;
	name_role(out, entries[best].role->name);
	if (out->cause.node_index >= 0)
		out->cause.node_index = (long)entries[best].nodes[out->cause.node_index];
	translate_nodes(jobs, results, out);
	json_decref(out->ranks);
	out->ranks = ranks;
	out->roles = roles;
	results[best] = (struct job_result){.cause = JOB_NO_CAUSE};
}

static void finish(struct jobs *jobs, struct job_result *out, bool *use_fallback)
{
	const struct job_request *request = jobs->request->entries[0].request;
	size_t count = jobs->request->count;
	struct job_result *results = calloc(count, sizeof *results);
	bool restart;

	if (!results) {
		*out = (struct job_result){.code = ERR_UNAVAILABLE, .cause = JOB_NO_CAUSE};
		return;
	}
	for (size_t i = 0; i < count; i++) {
		*use_fallback |= job_needs_fallback(jobs->jobs[i].job);
		job_finish(jobs->jobs[i].job, &results[i]);
	}
	if (request->role) {
		combine(jobs, results, out);
	} else {
		*out = results[0];
		results[0] = (struct job_result){.cause = JOB_NO_CAUSE};
	}
	restart = !*use_fallback && request->calls.should_restart &&
		  request->calls.should_restart(request->calls.restart_context, out);
	out->restart = restart;
	for (size_t i = 0; i < count; i++) {
		if (!*use_fallback)
			job_announce_end(jobs->jobs[i].job, out->code, restart);
		job_result_free(&results[i]);
	}
	free(results);
}

/* ---- all of it ---- */

static int open_loop(struct jobs *jobs, struct error *err)
{
	const struct job_sink *sink = jobs->sink;
	int rc = loop_new(&jobs->loop, err);

	if (!rc)
		rc = loop_add_signals(jobs->loop, &jobs->signals, handled_signals,
				      sizeof handled_signals / sizeof *handled_signals, err);
	if (!rc && sink->full && sink->drained_fd >= 0)
		rc = loop_add(jobs->loop, &jobs->drained, sink->drained_fd, EPOLLIN, err);
	return rc;
}

static int open_job(struct jobs *jobs, size_t i, const struct launcher *other, struct error *err)
{
	const struct jobs_entry *entry = &jobs->request->entries[i];

	jobs->jobs[i].own = *entry->request;
	jobs->jobs[i].launch = *entry->request->launch;
	jobs->jobs[i].own.launch = &jobs->jobs[i].launch;
	if (other) {
		jobs->jobs[i].launch.launcher = other;
		jobs->jobs[i].launch.fallback = NULL;
	}
	if (entry->role) {
		entry->role->turn = entry->role->released = false;
		entry->role->others = NULL;
	}
	return job_open(jobs->loop, &jobs->jobs[i].own, entry->sink, &jobs->jobs[i].job, err);
}

/* other: a launcher instead of the request's; controllers then have new secrets, which keep late
 * agents of the first one out. Set *use_fallback if the launcher brought no agent, so that another
 * one may. */
static int run_with(const struct jobs_request *request, const struct launcher *other,
		    struct job_result *out, bool *use_fallback, struct error *err)
{
	struct sigaction ignore = {.sa_handler = SIG_IGN}, old_pipe;
	struct jobs *jobs = calloc(1, sizeof *jobs + request->count * sizeof jobs->jobs[0]);
	sigset_t old;
	int rc;

	if (!jobs)
		return error_memory(err, "the jobs");
	*jobs = (struct jobs){.request = request,
			      .sink = request->entries[0].sink,
			      .signals = {on_signal, -1, 0},
			      .drained = {on_drained, -1, 0},
			      .wake.due = on_wake,
			      .first = -1};
	sigprocmask(SIG_SETMASK, NULL, &old);
	sigaction(SIGPIPE, &ignore, &old_pipe);
	rc = open_loop(jobs, err);
	for (size_t i = 0; !rc && i < request->count; i++)
		rc = open_job(jobs, i, other, err);
	if (!rc) {
		run(jobs);
		finish(jobs, out, use_fallback);
	}
	loop_remove(jobs->loop, &jobs->drained);
	for (size_t i = 0; i < request->count; i++)
		job_close(jobs->jobs[i].job, rc ? NULL : out);
	if (jobs->sink->tick)
		jobs->sink->tick(jobs->sink->context, INT64_MAX);
	loop_close(jobs->loop, &jobs->signals);
	loop_free(jobs->loop);
	sigaction(SIGPIPE, &old_pipe, NULL);
	sigprocmask(SIG_SETMASK, &old, NULL);
	free(jobs);
	return rc;
}

int jobs_run(const struct jobs_request *request, struct job_result *out, struct error *err)
{
	const struct launcher *other = request->entries[0].request->launch->fallback;
	bool use_fallback = false;
	int rc = run_with(request, NULL, out, &use_fallback, err);

	if (rc || !use_fallback)
		return rc;
	job_note(request->entries[0].sink, LOG_WARNING, "%s; trying launcher %s", out->cause.text,
		 other->name);
	job_result_free(out);
	return run_with(request, other, out, &use_fallback, err);
}
