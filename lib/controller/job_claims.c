/* SPDX-License-Identifier: BSD-3-Clause */
/* Runs beside others of the same job: each claims what its ranks use, and a run that waits has a
 * place in a queue until it has its claim. */
#include "controller/job_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "alloc/query.h"
#include "base/clock.h"
#include "base/json.h"
#include "overlay/messages.h"
#include "process/claims.h"
#include "process/tmpdir.h"

#define CLAIM_MS 10000	/* how long the nodes may take to claim what the ranks use */
#define CLAIM_ROUNDS 20 /* then share with the runs that were faster each time */
/* Until a run that waits asks again; 1 ms more per node. */
#define CLAIM_POLL_MS 30
#define CLAIM_POLL_MAX_MS 1000
#define QUEUE_POLL_MS 200 /* until it looks at the queue of this machine again */
#define QUEUE_STARTED 8	  /* so many of the runs that wait have agents */

/* ---- waiting ---- */

/* Ask the nodes again: the less often, the longer it takes, and the more runs come first. */
static void poll_soon(struct job *job, size_t before)
{
	int64_t now = clock_now_ms(), asked_ms = job->place.asked_ms;
	int64_t pause_ms = (CLAIM_POLL_MS + (now - asked_ms) / 100) * (int64_t)(1 + before);

	/* Runs that start now have to know at once that this one waits. */
	if (!asked_ms) {
		job->place.asked_ms = now;
		pause_ms = 0;
	}
	if (pause_ms > CLAIM_POLL_MAX_MS)
		pause_ms = CLAIM_POLL_MAX_MS;
	job->phase = JOB_PHASE_CLAIM;
	job->claims_sent = false;
	job_set_deadline(job, pause_ms + (int64_t)job->node_count);
}

/* What all claims of this run say. */
static json_t *describe_run(const struct job *job, bool waits)
{
	const struct launch_options *launch = job->request->launch;
	char host[65] = "", names[1024], since[16], scope[256];
	const char *text = controller_scope(launch, scope, sizeof scope);
	time_t begun = (time_t)(controller_begun_us() / 1000000);
	json_t *claim;
	struct tm tm;

	gethostname(host, sizeof host - 1);
	controller_run_names(launch->env, names, sizeof names);

	const char *own = strrchr(names, ',');

	strftime(since, sizeof since, "%H:%M", localtime_r(&begun, &tm));
	claim = json_pack("{s:o, s:o, s:o}", "scope", json_text(text), "run",
			  json_text(own ? own + 1 : names), "by",
			  json_sprintf("process %ld on %s, since %s", (long)getpid(), host, since));
	if (waits)
		json_object_set_new(claim, "since", json_integer(controller_begun_us()));
	return claim;
}

static void note_waiting(struct job *job, size_t before)
{
	const struct plan_fit *fit = &job->fit;
	char need[60] = "";

	if (job->place.noted)
		return;
	job->place.noted = true;
	if (*fit->need)
		snprintf(need, sizeof need, " for %s", fit->need);
	if (before)
		job_note(job->sink, LOG_NOTE, "waiting%s: %zu run%s before this one", need, before,
			 before == 1 ? "" : "s");
	else
		job_note(job->sink, LOG_NOTE, "waiting%s: %s", need, fit->why);
}

int job_look_at_queue(struct job *job, struct error *err)
{
	JSON_AUTO own = NULL;
	JSON_AUTO others = NULL;
	const char *before_dir;
	size_t before;

	if (job_is_late(job))
		return 0;
	job_set_deadline(job, QUEUE_POLL_MS);
	if (*job->place.before && tmpdir_is_live(job->place.before))
		return 0;
	own = describe_run(job, true);
	if (claims_queue(job->place.dir, own, &others, err))
		return -err->code;
	before = claims_before(others, own, QUEUE_STARTED, &before_dir);
	if (!before_dir)
		return job_launch(job, err);
	snprintf(job->place.before, sizeof job->place.before, "%s", before_dir);
	note_waiting(job, before);
	return 0;
}

int job_queue(struct job *job, struct error *err)
{
	const struct job_request *request = job->request;
	int rc = tmpdir_create(env_get(request->launch->env, "TMPDIR"), job->place.dir,
			       sizeof job->place.dir, &job->place.lock_fd, err);

	if (rc)
		return rc;
	if (request->wait_ms)
		job->place.until_ms = clock_now_ms() + request->wait_ms;
	return job_look_at_queue(job, err);
}

void job_leave_queue(struct job *job)
{
	if (!*job->place.dir)
		return;
	tmpdir_remove(job->place.dir);
	if (job->place.lock_fd >= 0)
		close(job->place.lock_fd);
	*job->place.dir = '\0';
}

bool job_is_late(struct job *job)
{
	const struct job_request *request = job->request;
	const struct alloc_query *query = request->query;
	int64_t now = clock_now_ms(), need = request->min_time_ms;

	/* A run that starts so late is only told to stop. */
	if (request->plan.waits && need < request->warn_before_ms)
		need = request->warn_before_ms;
	if (need && job->end_ms && now + need > job->end_ms) {
		job->result->next = strdup("submit the job again: this run has not started");
		job->result->waited_ms = (clock_wall_us() - controller_begun_us()) / 1000;
		job_fail(
			job, ERR_STOPPED, -1,
			"not started: the job's time limit is reached in %lld s, and the run needs "
			"%lld s (%s)",
			(long long)(job->end_ms - now) / 1000, (long long)need / 1000,
			need == request->min_time_ms ? "--min-time" : "--warn-before");
		return true;
	}
	if (job->place.until_ms && now > job->place.until_ms) {
		job_fail(job, ERR_UNAVAILABLE, -1, "waited for %lld s (--wait)%s%s",
			 (long long)request->wait_ms / 1000, *job->fit.why ? ": " : "",
			 job->fit.why);
		return true;
	}
	if (!need || job->end_ms || !query || !alloc_query_runs(query) ||
	    job->phase == JOB_PHASE_QUEUE)
		return false;
	poll_soon(job, 0);
	return true;
}

/* Return 1 if something that the run needs is not free yet, or if it is another run's turn. */
static int wait_for_turn(struct job *job)
{
	JSON_AUTO own = describe_run(job, true);
	JSON_AUTO all = json_array();
	size_t before;

	for (size_t i = 0; i < job->node_count; i++)
		json_array_extend(all, job->nodes[i].claims);
	before = claims_before(all, own, 0, NULL);
	if (job->fit.fits && !before)
		return 0;
	if (job->place.asked_ms)
		note_waiting(job, before);
	poll_soon(job, before);
	return 1;
}

/* ---- claiming ---- */

int job_apply_claims(struct job *job, const struct plan_request *plan_request, struct error *err)
{
	const struct job_request *request = job->request;
	int rc = 0;

	for (size_t i = 0; !rc && i < job->node_count; i++)
		rc = plan_apply_claims(&job->inventories[i],
				       request->driver ? NULL : job->nodes[i].claims, err);
	if (rc)
		return rc;
	job->fit =
		plan_fit(request->launch->alloc, job->inventories, job->node_count, plan_request);
	if (plan_request->waits)
		return wait_for_turn(job);
	job->shares = !job->fit.fits || job->claim_rounds > CLAIM_ROUNDS;
	if (job->shares && request->no_share)
		return error_set(err, ERR_UNAVAILABLE,
				 "%s, and --share no refuses to share them. Start fewer ranks, or "
				 "wait for the other runs with --wait",
				 job->fit.why);
	for (size_t i = 0; !rc && job->shares && i < job->node_count; i++)
		rc = plan_apply_claims(&job->inventories[i], NULL, err);
	return rc;
}

/* Ask all nodes with ranks, or all nodes if the run waits. take false: they give up their claims,
 * and answer what others use. */
static void send_claims(struct job *job, bool take)
{
	bool waits = job->request->plan.waits;

	for (size_t i = 0; i < job->node_count; i++) {
		const struct plan_node *node = job->planned ? &job->plan.nodes[i] : NULL;
		bool has_ranks = node && node->rank_count;
		/* Ranks without GPUs share their cores, unless they wait. */
		bool share = job->shares || !has_ranks || (!waits && !node->ranks[0].gpu_count);
		json_t *claim;

		if ((!has_ranks && !waits) || controller_is_lost(job->controller, i))
			continue;
		claim = describe_run(job, waits && !take);
		if (take && has_ranks)
			json_object_update_new(claim, plan_claim(node));
		job->nodes[i].awaited = true;
		job->nodes[i].taken = false;
		controller_send(job->controller, MESSAGE_CLAIM, (uint32_t)i, 0, 0,
				&(struct message_claim){claim, share}, NULL, 0, NULL);
	}
	job->claims_sent = take;
	job->phase = JOB_PHASE_CLAIM;
	job_set_deadline(job, CLAIM_MS);
}

bool job_claim(struct job *job)
{
	char scope[256];

	if (job->request->driver || !controller_scope(job->request->launch, scope, sizeof scope))
		return false;
	send_claims(job, true);
	return true;
}

void job_handle_claimed(struct job *job, size_t node, const struct message *message)
{
	bool all = true;

	if (job->phase != JOB_PHASE_CLAIM || !job->nodes[node].awaited)
		return;
	job->nodes[node].awaited = false;
	job->nodes[node].taken = message->claimed.taken;
	json_decref(job->nodes[node].claims);
	job->nodes[node].claims = json_incref(message->claimed.claims);
	for (size_t i = 0; i < job->node_count; i++) {
		if (job->nodes[i].awaited)
			return;
		all &= job->nodes[i].taken || !job->claims_sent || !job->plan.nodes[i].rank_count;
	}
	if (!job->claims_sent) {
		job_begin_ranks(job);
	} else if (all) {
		job_start_ranks(job);
	} else {
		job->claim_rounds++;
		send_claims(job, false);
	}
}

void job_claims_due(struct job *job)
{
	bool awaited = false;

	for (size_t i = 0; i < job->node_count; i++)
		awaited |= job->nodes[i].awaited;
	if (job->claims_sent)
		job_start_ranks(job); /* whoever does not answer START either is named then */
	else if (awaited || !job->request->plan.waits)
		job_begin_ranks(job);
	else
		send_claims(job, false);
}

void job_free_claims(struct job *job)
{
	for (size_t i = 0; job->nodes && i < job->node_count; i++)
		json_decref(job->nodes[i].claims);
}
