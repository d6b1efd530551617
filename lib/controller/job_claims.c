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

struct job_claims {
	/* A run that waits. Its place in the queue is a claim without uses in a directory of this
	 * process. */
	struct {
		char dir[128];	  /* ""; or the directory, until the ranks are started */
		int lock_fd;	  /* of dir */
		char before[128]; /* that of a run before it, which has to leave first, or "" */
		int64_t until_ms; /* give up then, by clock_now_ms; 0: never */
		bool noted;	  /* that it waits */
		int64_t asked_ms; /* when it asked the nodes first, by clock_now_ms; 0: not yet */
	} place;
	struct plan_fit fit;
	bool shares; /* too little is free: the ranks use GPUs of other runs, too */
	bool sent;   /* the nodes were asked to claim, not to give up */
	int rounds;  /* how often another run was faster */
	struct {
		bool awaited; /* its CLAIMED is */
		bool taken;   /* it has its claim */
		json_t *list; /* the claims of other runs of the job, or NULL */
	} nodes[];	      /* [node_count] */
};

/* ---- waiting ---- */

/* Ask the nodes again: the less often, the longer it takes, and the more runs come first. */
static void poll_soon(struct job *job, size_t before)
{
	int64_t now = clock_now_ms(), asked_ms = job->claims->place.asked_ms;
	int64_t pause_ms = (CLAIM_POLL_MS + (now - asked_ms) / 100) * (int64_t)(1 + before);

	/* Runs that start now have to know at once that this one waits. */
	if (!asked_ms) {
		job->claims->place.asked_ms = now;
		pause_ms = 0;
	}
	if (pause_ms > CLAIM_POLL_MAX_MS)
		pause_ms = CLAIM_POLL_MAX_MS;
	job_enter(job, JOB_PHASE_CLAIM);
	job->claims->sent = false;
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
	controller_run_names(launch, names, sizeof names);

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
	const struct plan_fit *fit = &job->claims->fit;
	char need[60] = "";

	if (job->claims->place.noted)
		return;
	job->claims->place.noted = true;
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
	if (*job->claims->place.before && tmpdir_is_live(job->claims->place.before))
		return 0;
	own = describe_run(job, true);
	if (claims_queue(job->claims->place.dir, own, &others, err))
		return -err->code;
	before = claims_before(others, own, QUEUE_STARTED, &before_dir);
	if (!before_dir) {
		job_continue(job, JOB_STEP_LAUNCH);
		return 0;
	}
	snprintf(job->claims->place.before, sizeof job->claims->place.before, "%s", before_dir);
	note_waiting(job, before);
	return 0;
}

int job_queue(struct job *job, struct error *err)
{
	const struct job_request *request = job->request;
	struct job_claims *claims = job->claims;
	int rc = tmpdir_create(env_get(request->launch->env, "TMPDIR"), claims->place.dir,
			       sizeof claims->place.dir, &claims->place.lock_fd, err);

	if (rc)
		return rc;
	if (request->share.wait_ms)
		claims->place.until_ms = clock_now_ms() + request->share.wait_ms;
	return job_look_at_queue(job, err);
}

void job_leave_queue(struct job *job)
{
	struct job_claims *claims = job->claims;

	if (!*claims->place.dir)
		return;
	tmpdir_remove(claims->place.dir);
	if (claims->place.lock_fd >= 0)
		close(claims->place.lock_fd);
	*claims->place.dir = '\0';
}

bool job_is_late(struct job *job)
{
	const struct job_request *request = job->request;
	const struct alloc_query *query = request->calls.query;
	int64_t now = clock_now_ms(), need = request->end.min_time_ms;

	/* A run that starts so late is only told to stop. */
	if (request->share.waits && need < request->end.warn_before_ms)
		need = request->end.warn_before_ms;
	if (need && job->end_ms && now + need > job->end_ms) {
		job->result.next = strdup("submit the job again: this run has not started");
		job->result.waited_ms = (clock_wall_us() - controller_begun_us()) / 1000;
		job_fail(
			job, ERR_STOPPED, -1,
			"not started: the job's time limit is reached in %lld s, and the run needs "
			"%lld s (%s)",
			(long long)(job->end_ms - now) / 1000, (long long)need / 1000,
			need == request->end.min_time_ms ? "--min-time" : "--warn-before");
		return true;
	}
	if (job->claims->place.until_ms && now > job->claims->place.until_ms) {
		job_fail(job, ERR_UNAVAILABLE, -1, "waited for %lld s (--wait)%s%s",
			 (long long)request->share.wait_ms / 1000,
			 *job->claims->fit.why ? ": " : "", job->claims->fit.why);
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
		json_array_extend(all, job->claims->nodes[i].list);
	before = claims_before(all, own, 0, NULL);
	if (job->claims->fit.fits && !before)
		return 0;
	if (job->claims->place.asked_ms)
		note_waiting(job, before);
	poll_soon(job, before);
	return 1;
}

/* ---- claiming ---- */

/* The run neither claims anything nor leaves to others what they have claimed. */
static bool is_beside_claims(const struct job_request *request)
{
	return request->driver || (request->role && request->role->overlap);
}

int job_apply_claims(struct job *job, const struct plan_request *plan_request, struct error *err)
{
	const struct job_request *request = job->request;
	struct job_claims *claims = job->claims;
	int rc = 0;

	for (size_t i = 0; !rc && i < job->node_count; i++)
		rc = plan_apply_claims(&job->inventories[i],
				       is_beside_claims(request) ? NULL : claims->nodes[i].list,
				       err);
	if (rc)
		return rc;
	claims->fit =
		plan_fit(request->launch->alloc, job->inventories, job->node_count, plan_request);
	if (request->share.waits)
		return wait_for_turn(job);
	claims->shares = !claims->fit.fits || claims->rounds > CLAIM_ROUNDS;
	if (request->role && plan_refuse_sharing(&claims->fit, err))
		return -err->code;
	if (claims->shares && request->share.refuse)
		return error_set(err, ERR_UNAVAILABLE,
				 "%s, and --share no refuses to share them. Start fewer ranks, or "
				 "wait for the other runs with --wait",
				 claims->fit.why);
	for (size_t i = 0; !rc && claims->shares && i < job->node_count; i++)
		rc = plan_apply_claims(&job->inventories[i], NULL, err);
	return rc;
}

/* Ask all nodes with ranks, or all nodes if the run waits. take false: they give up their claims,
 * and answer what others use. */
static void send_claims(struct job *job, bool take)
{
	bool waits = job->request->share.waits;
	struct job_claims *claims = job->claims;

	for (size_t i = 0; i < job->node_count; i++) {
		const struct plan_node *node = job->planned ? &job->plan.nodes[i] : NULL;
		bool has_ranks = node && node->rank_count;
		/* Ranks without GPUs share their cores, unless they wait. */
		bool share = claims->shares || !has_ranks || (!waits && !node->ranks[0].gpu_count);
		json_t *claim;

		if ((!has_ranks && !waits) || controller_is_lost(job->controller, i))
			continue;
		claim = describe_run(job, waits && !take);
		if (take && has_ranks)
			json_object_update_new(claim, plan_claim(node));
		claims->nodes[i].awaited = true;
		claims->nodes[i].taken = false;
		controller_send(job->controller, MESSAGE_CLAIM, (uint32_t)i, 0, 0,
				&(struct message_claim){claim, share}, NULL, 0, NULL);
	}
	claims->sent = take;
	job_enter(job, JOB_PHASE_CLAIM);
	job_set_deadline(job, CLAIM_MS);
}

bool job_claim(struct job *job)
{
	char scope[256];

	if (is_beside_claims(job->request) ||
	    !controller_scope(job->request->launch, scope, sizeof scope))
		return false;
	send_claims(job, true);
	return true;
}

static void set_list(struct job *job, size_t node, json_t *list)
{
	json_decref(job->claims->nodes[node].list);
	job->claims->nodes[node].list = json_incref(list);
}

void job_add_claim(struct job *job, size_t node, json_t *claim)
{
	json_t **list = &job->claims->nodes[node].list;

	if (!*list)
		*list = json_array();
	json_array_append_new(*list, claim);
}

static void handle_inventory(struct job *job, size_t node, const struct message *message)
{
	set_list(job, node, message->inventory.claims);
}

/* Continue once all nodes have answered: start the ranks, or plan again. */
static void handle_claimed(struct job *job, size_t node, const struct message *message)
{
	struct job_claims *claims = job->claims;
	bool all = true;

	/* A next step: the deadline has passed in the same round of the loop. */
	if (job->phase != JOB_PHASE_CLAIM || job->next || !claims->nodes[node].awaited)
		return;
	claims->nodes[node].awaited = false;
	claims->nodes[node].taken = message->claimed.taken;
	set_list(job, node, message->claimed.claims);
	for (size_t i = 0; i < job->node_count; i++) {
		if (claims->nodes[i].awaited)
			return;
		all &= claims->nodes[i].taken || !claims->sent || !job->plan.nodes[i].rank_count;
	}
	if (!claims->sent) {
		job_continue(job, JOB_STEP_PLAN);
	} else if (all) {
		job_continue(job, JOB_STEP_START);
	} else {
		claims->rounds++;
		send_claims(job, false);
	}
}

void job_claims_due(struct job *job)
{
	bool awaited = false;

	for (size_t i = 0; i < job->node_count; i++)
		awaited |= job->claims->nodes[i].awaited;
	if (job->claims->sent)
		job_continue(
			job,
			JOB_STEP_START); /* whoever does not answer START either is named then */
	else if (awaited || !job->request->share.waits)
		job_continue(job, JOB_STEP_PLAN);
	else
		send_claims(job, false);
}

void job_announce_claims(struct job *job)
{
	const struct plan_request *plan = &job->request->plan;
	const struct job_claims *claims = job->claims;

	if (job->request->role && claims->fit.cores)
		return; /* roles may share cores */
	if (claims->shares)
		job_note(job->sink, LOG_WARNING,
			 "%s, and too few are free for these ranks: they share GPUs with the other "
			 "runs. Start fewer ranks, wait for free ones with --wait, or let --share "
			 "no refuse this",
			 claims->fit.why);
	else if (*claims->fit.why)
		job_note(job->sink,
			 plan->ranks || plan->ranks_per_node || job->request->role ? LOG_DEBUG
										   : LOG_NOTE,
			 "%s; these ranks use the others", claims->fit.why);
}

static int open_claims(struct job *job, struct error *err)
{
	job->claims =
		calloc(1, sizeof *job->claims + job->node_count * sizeof job->claims->nodes[0]);
	return job->claims ? 0 : error_memory(err, "the nodes' claims");
}

static void close_claims(struct job *job)
{
	job_leave_queue(job);
	for (size_t i = 0; i < job->node_count; i++)
		json_decref(job->claims->nodes[i].list);
	free(job->claims);
}

const struct job_part job_claims_part = {
	.open = open_claims,
	.handlers =
		(const struct job_handler[]){
			{MESSAGE_INVENTORY, handle_inventory},
			{MESSAGE_CLAIMED, handle_claimed},
			{0},
		},
	.close = close_claims,
};
