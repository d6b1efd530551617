/* SPDX-License-Identifier: BSD-3-Clause */
/* The controller: phases of questions to all probers, each with a deadline; then the judges. */
#include "check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "check/check_internal.h"
#include "roles/jobs.h"

#define BEGIN_MS 10000
#define CLOCK_MS 3000
#define CLOCK_EXCHANGES 5
#define COLLECT_MS 15000 /* covers getaddrinfo with a dead server, a slow file system */
#define FILES_MS 8000
#define SLACK_MS 3000 /* for answers to travel up the tree */
#define END_MS 2000
#define RING_ROUNDS 3 /* a link is slow only if it is slow in all of them */
#define LINE_LIMIT (64 << 20)

enum check_phase {
	CHECK_PHASE_BEGIN,
	CHECK_PHASE_CLOCK,
	CHECK_PHASE_REACH,
	CHECK_PHASE_RENDEZVOUS,
	CHECK_PHASE_COLLECT,
	CHECK_PHASE_FILES,
	CHECK_PHASE_OVER
};

struct check_session {
	struct check check;
	struct job *job;
	struct secret secret;
	char token[32];
	int master_port;
	enum check_phase phase;
	int64_t started_ms, deadline_ms;
	struct bytes *lines; /* [count]: pieces of an incomplete line */
	int ring_rounds;
	bool judged;
};

static void note(const struct check_session *session, enum log_level level, const char *text)
{
	if (session->check.request->note)
		session->check.request->note(session->check.request->context, level, text);
}

/* ---- questions ---- */

/* Send a question, whose reference is consumed. NULL: memory is out. node -1: all nodes. */
static void send_question(struct check_session *session, long node, json_t *question)
{
	char *text = question ? json_dumps(question, JSON_COMPACT) : NULL;
	char *line = NULL;
	struct error err = {0};

	if (!text || asprintf(&line, "%s\n", text) < 0)
		error_memory(&err, "a question");
	else
		job_write_stdin(session->job, node, line, strlen(line), &err);
	if (err.code)
		note(session, LOG_WARNING, err.text);
	free(line);
	free(text);
	json_decref(question);
}

/* The kind of a node's best NIC, management NICs excluded. */
static const char *fabric_of(const struct inventory *inventory)
{
	enum nic_kind best = NIC_ETHERNET;

	for (size_t n = 0; n < inventory->nic_count; n++)
		if (!inventory->nics[n].management && inventory->nics[n].kind > best)
			best = inventory->nics[n].kind;
	return nic_kind_name(best);
}

static void send_begin(struct check_session *session)
{
	struct check *check = &session->check;
	json_t *names = json_array();
	char secret[65];

	secret_format(&session->secret, secret);
	for (size_t i = 0; i < check->count && !check->simulated; i++)
		json_array_append_new(names, json_text(check->nodes[i].name));
	for (size_t i = 0; i < check->count; i++)
		send_question(session, (long)i,
			      json_pack("{s:s, s:i, s:i, s:s, s:s, s:O, s:o, s:s, s:i, s:O*}",
					"ask", "begin", "node", (int)i, "count", (int)check->count,
					"token", session->token, "secret", secret, "names", names,
					"checkpoint", json_text(check->request->checkpoint),
					"fabric", fabric_of(&check->inventories[i]), "head_port",
					i == 0 ? session->master_port : 0, "container",
					check->request->container));
	json_decref(names);
}

static void send_clock(struct check_session *session, size_t node)
{
	session->check.nodes[node].sent_us = clock_wall_us();
	send_question(session, (long)node, json_pack("{s:s}", "ask", "clock"));
}

/* ---- phases ---- */

static bool is_collected(const struct check_node *node)
{
	for (const struct check_probe *const *probe = check_probes; *probe; probe++)
		if ((*probe)->collect && !json_object_get(node->answers, (*probe)->name))
			return false;
	return true;
}

/* Has the node sent all answers that the phase needs? */
static bool answered(const struct check_session *session, size_t index)
{
	const struct check *check = &session->check;
	const struct check_node *node = &check->nodes[index];

	if (node->missing)
		return true;
	switch (session->phase) {
	case CHECK_PHASE_BEGIN:
		return node->listening;
	case CHECK_PHASE_CLOCK:
		return node->clock_exchanges_left == 0;
	case CHECK_PHASE_REACH:
		return check->count == 1 || json_object_get(node->answers, "reach?");
	case CHECK_PHASE_RENDEZVOUS:
		return !check->planned ||
		       (json_object_get(node->answers, "port?") &&
			(!probe_ring_possible(check) || json_object_get(node->answers, "ring?")));
	case CHECK_PHASE_COLLECT:
		return is_collected(node);
	case CHECK_PHASE_FILES:
		return !check->request->checkpoint ||
		       !json_object_get(node->answers, "checkpoint") || /* its directory hangs */
		       json_object_get(node->answers, "checkpoint?");
	case CHECK_PHASE_OVER:
		return true;
	}
	return true;
}

void check_judge(struct check *check, const struct check_probe *probe)
{
	if (probe->judge)
		probe->judge(check);
	for (size_t i = 0; probe->judge_node && i < check->count; i++)
		probe->judge_node(check, i, check_answer(check, i, probe->name));
}

static void judge(struct check_session *session)
{
	if (session->judged)
		return;
	session->judged = true;
	for (const struct check_probe *const *probe = check_probes; *probe; probe++)
		check_judge(&session->check, *probe);
}

static void send_ring(struct check_session *session)
{
	struct check *check = &session->check;
	bool possible = probe_ring_possible(check);

	for (size_t i = 0; possible && i < check->count; i++)
		send_question(session, (long)i, probe_ring_question(check, i));
	session->ring_rounds++;
	session->deadline_ms = clock_now_ms() + PROBE_RING_MS + SLACK_MS;
}

static void enter_phase(struct check_session *session, enum check_phase phase)
{
	struct check *check = &session->check;
	int64_t now = clock_now_ms();

	session->phase = phase;
	switch (phase) {
	case CHECK_PHASE_BEGIN:
		send_begin(session);
		session->deadline_ms = now + BEGIN_MS;
		break;
	case CHECK_PHASE_CLOCK:
		for (size_t i = 0; i < check->count; i++)
			if (!check->nodes[i].missing)
				send_clock(session, i);
		session->deadline_ms = now + CLOCK_MS;
		break;
	case CHECK_PHASE_REACH:
		for (size_t i = 0; check->count > 1 && i < check->count; i++)
			if (!check->nodes[i].missing)
				send_question(session, (long)i, probe_reach_question(check, i));
		session->deadline_ms = now + probe_reach_ms(check) + SLACK_MS;
		break;
	case CHECK_PHASE_RENDEZVOUS:
		check_make_plan(check, session->master_port);
		for (size_t i = 0; check->planned && i < check->count; i++)
			if (!check->nodes[i].missing)
				send_question(session, (long)i, probe_port_question(check, i));
		send_ring(session);
		break;
	case CHECK_PHASE_COLLECT:
		session->deadline_ms = session->started_ms + COLLECT_MS;
		break;
	case CHECK_PHASE_FILES:
		if (check->request->checkpoint)
			send_question(session, -1, json_pack("{s:s}", "ask", "checkpoint"));
		session->deadline_ms = now + FILES_MS;
		break;
	case CHECK_PHASE_OVER:
		judge(session);
		send_question(session, -1, json_pack("{s:s}", "ask", "end"));
		/* A prober that is killed leaves its file in the checkpoint directory. */
		session->deadline_ms = now + (check->request->checkpoint ? FILES_MS : END_MS);
		break;
	}
}

/* Nodes that did not reach the listening state take no further part. */
static void exclude_silent(struct check_session *session)
{
	for (size_t i = 0; i < session->check.count; i++) {
		struct check_node *node = &session->check.nodes[i];

		if (node->missing || node->listening)
			continue;
		node->missing = true;
		check_add(&session->check, i, "agent", CHECK_FAULT,
			  "check whether the node has run out of memory or processes",
			  "its agent started, but the prober did not answer within %d s",
			  BEGIN_MS / 1000);
	}
}

static bool all_answered(const struct check_session *session)
{
	for (size_t i = 0; i < session->check.count; i++)
		if (!answered(session, i))
			return false;
	return true;
}

static void advance(struct check_session *session)
{
	while (session->phase != CHECK_PHASE_OVER &&
	       (all_answered(session) || clock_now_ms() >= session->deadline_ms)) {
		if (session->phase == CHECK_PHASE_BEGIN)
			exclude_silent(session);
		if (session->phase == CHECK_PHASE_RENDEZVOUS &&
		    session->ring_rounds < RING_ROUNDS && probe_ring_possible(&session->check) &&
		    probe_ring_should_repeat(&session->check)) {
			send_ring(session);
			continue;
		}
		enter_phase(session, session->phase + 1);
	}
}

/* ---- events of the job ---- */

static void on_starting(void *context, struct job *job, const struct inventory *inventories,
			int port)
{
	struct check_session *session = context;

	session->job = job;
	session->master_port = port;
	session->started_ms = clock_now_ms();
	session->check.inventories = job_take_inventories(job);
	enter_phase(session, CHECK_PHASE_BEGIN);
}

static int64_t on_tick(void *context, int64_t now_ms)
{
	struct check_session *session = context;

	if (!session->job || !session->check.inventories)
		return 0;
	advance(session);
	if (session->phase == CHECK_PHASE_OVER && now_ms >= session->deadline_ms) {
		/* A thread that hangs in the kernel keeps its process alive: the end of the job
		 * kills it. */
		job_request_end(session->job, 0);
		session->deadline_ms = INT64_MAX;
	}
	return session->deadline_ms == INT64_MAX ? 0 : session->deadline_ms;
}

static void on_missing(void *context, size_t node, const char *tail)
{
	struct check_session *session = context;

	session->check.nodes[node].missing = true;
	check_add(&session->check, node, "agent", CHECK_FAULT,
		  "check that the node is up, that it sees the directory of this berth, and that "
		  "its firewall accepts TCP from the job's other nodes",
		  "no agent started within %d s%s%s",
		  session->check.request->launch->start_timeout_ms / 1000, *tail ? "; " : "", tail);
}

static void handle_clock(struct check_session *session, size_t index, const json_t *answer)
{
	struct check_node *node = &session->check.nodes[index];
	int64_t now = clock_wall_us(), half = (now - node->sent_us) / 2, theirs;

	if (!node->clock_exchanges_left ||
	    json_get_int("clock", answer, "us", 0, INT64_MAX, &theirs, NULL))
		return;
	if (node->clock_exchanges_left == CLOCK_EXCHANGES || half < node->clock_error_us) {
		node->clock_error_us = half;
		node->clock_offset_us = theirs - (node->sent_us + half);
	}
	if (--node->clock_exchanges_left)
		send_clock(session, index);
}

static void handle_answer(struct check_session *session, size_t index, const char *text,
			  size_t size)
{
	struct check_node *node = &session->check.nodes[index];
	JSON_AUTO line = NULL;
	struct error err = {0};
	const char *name;
	json_t *answer;
	int64_t port, ring_port;
	int rc = json_read(node->name, text, size, LINE_LIMIT, &line, &err);

	if (!rc)
		rc = json_get_string(node->name, line, "name", &name, &err);
	if (rc) {
		note(session, LOG_WARNING, err.text);
		return;
	}
	answer = json_object_get(line, "answer");
	if (!strcmp(name, "begin")) {
		if (json_get_int(name, answer, "port", 1, 65535, &port, &err) ||
		    json_get_int(name, answer, "ring_port", 1, 65535, &ring_port, &err))
			return;
		node->port = (int)port;
		node->ring_port = (int)ring_port;
		node->listening = !node->missing;
	}
	if (!strcmp(name, "clock"))
		handle_clock(session, index, answer);
	else
		json_object_set(node->answers, name, answer);
	if (session->check.inventories)
		advance(session);
}

static void on_output(void *context, int rank, bool is_err, const char *text, size_t size,
		      bool newline)
{
	struct check_session *session = context;
	size_t index = (size_t)rank, prefix = sizeof CHECK_LINE_PREFIX - 1;
	struct bytes *line;

	if (rank < 0 || index >= session->check.count)
		return;
	if (is_err) { /* a library's output, or the prober's last lines */
		char tail[600];

		snprintf(tail, sizeof tail, "%s: %.*s", session->check.nodes[index].name,
			 size > 500 ? 500 : (int)size, text);
		note(session, LOG_DEBUG, tail);
		return;
	}
	line = &session->lines[index];
	if (line->size + size > LINE_LIMIT || bytes_add(line, text, size)) {
		bytes_free(line);
		return;
	}
	if (!newline)
		return;
	struct bytes whole = *line;

	memset(line, 0, sizeof *line);
	while (whole.size && whole.data[whole.size - 1] == '\n')
		whole.size--;
	if (whole.size > prefix && !memcmp(whole.data, CHECK_LINE_PREFIX, prefix))
		handle_answer(session, index, (char *)whole.data + prefix, whole.size - prefix);
	bytes_free(&whole);
}

static void on_note(void *context, enum log_level level, const char *text)
{
	/* A job's warnings either come from the probes or do not matter here. */
	note(context, level == LOG_WARNING ? LOG_DEBUG : level, text);
}

/* ---- the end ---- */

/* The job that carried the check failed: find out which nodes are to blame. */
static int handle_failure(struct check_session *session, const struct job_result *result,
			  struct error *err)
{
	struct check *check = &session->check;
	const char *why = result->cause.text ? result->cause.text : "it failed";
	size_t missing = 0;

	for (size_t i = 0; i < check->count; i++) {
		struct check_node *node = &check->nodes[i];

		if (result->cause.node && !strcmp(node->name, result->cause.node) &&
		    !node->missing) {
			size_t name = strlen(node->name);
			/* The table already has a column for the node's name. */
			bool twice =
				!strncmp(why, node->name, name) && !strncmp(why + name, ": ", 2);

			node->missing = true;
			check_add(check, i, "agent", CHECK_FAULT,
				  "fix what the message names, or exclude the node", "%s",
				  why + (twice ? name + 2 : 0));
		}
		missing += node->missing;
	}
	if (!missing)
		return error_set(err, result->code, "%s", why);
	if (check->inventories)
		judge(session);
	return 0;
}

static int prepare(struct check_session *session, const struct check_request *request,
		   struct error *err)
{
	struct check *check = &session->check;
	struct secret name; /* its beginning becomes the token */
	int rc = secret_generate(&session->secret, err);

	if (!rc)
		rc = secret_generate(&name, err);
	if (rc)
		return rc;
	for (size_t i = 0; i < 8; i++)
		sprintf(session->token + 2 * i, "%02x", name.bytes[i]);
	check->request = request;
	check->count = request->launch->alloc->node_count;
	check->simulated = launcher_is_here(request->launch->launcher) && check->count > 1;
	check->nodes = calloc(check->count, sizeof *check->nodes);
	session->lines = calloc(check->count, sizeof *session->lines);
	for (size_t i = 0; check->nodes && i < check->count; i++)
		check->nodes[i] = (struct check_node){
			.name = request->launch->alloc->nodes[i].name,
			.answers = json_object(),
			.results = json_array(),
			.clock_exchanges_left = CLOCK_EXCHANGES,
		};
	return check->nodes && session->lines ? 0 : error_memory(err, "the nodes");
}

static void clean(struct check_session *session)
{
	struct check *check = &session->check;

	for (size_t i = 0; check->nodes && i < check->count; i++) {
		json_decref(check->nodes[i].answers);
		json_decref(check->nodes[i].results);
		if (check->inventories)
			inventory_free(&check->inventories[i]);
		if (session->lines)
			bytes_free(&session->lines[i]);
	}
	if (check->planned)
		plan_free(&check->plan);
	free(check->inventories);
	free(check->nodes);
	free(session->lines);
	secret_wipe(&session->secret);
}

int check_run(const struct check_request *request, json_t **out, struct error *err)
{
	struct check_session session = {0};
	struct job_driver driver = {&session, on_starting, on_tick, on_missing};
	struct job_sink sink = {
		.context = &session, .output = on_output, .note = on_note, .drained_fd = -1};
	struct job_request job = {
		.launch = request->launch,
		.argv = request->prober,
		.plan = {.ranks_per_node = 1, .port = request->plan_request.port},
		.pmix = JOB_PMIX_OFF,
		.port_hold = true,
		.any_master_addr = true,
		.driver = &driver,
	};
	const struct jobs_entry entry = {.request = &job, .sink = &sink};
	struct job_result result = {.cause = JOB_NO_CAUSE};
	int rc = prepare(&session, request, err);

	if (!rc)
		rc = jobs_run(&(struct jobs_request){.entries = &entry, .count = 1}, &result, err);
	if (!rc && result.interrupted)
		rc = error_set(err, 128 + result.interrupted,
			       "interrupted by %s before all checks were done",
			       strsignal(result.interrupted));
	else if (!rc && result.code)
		rc = handle_failure(&session, &result, err);
	else if (!rc && !session.judged)
		rc = error_set(err, ERR_INTERNAL,
			       "the probers ended before they had answered all questions");
	if (!rc) {
		*out = check_to_json(&session.check);
		rc = *out ? 0 : error_memory(err, "the results");
	}
	job_result_free(&result);
	clean(&session);
	return rc;
}
