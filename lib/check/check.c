/* SPDX-License-Identifier: BSD-3-Clause */
/* The head: phases of questions to all probers, each with a deadline; then the judges. */
#include "check/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/loop.h"
#include "check/check_internal.h"
#include "controller/job.h"

#define BEGIN_MS 10000
#define CLOCK_MS 3000
#define CLOCK_EXCHANGES 5
#define LOOK_MS 15000 /* from begin: getaddrinfo of a dead server, a slow file system */
#define FILES_MS 8000
#define SLACK_MS 3000 /* for answers to come up the tree */
#define END_MS 2000
#define RING_ROUNDS 3 /* a link is slow when it is in all of them */
#define LINE_LIMIT (64 << 20)

enum phase {
	PHASE_BEGIN,
	PHASE_CLOCK,
	PHASE_REACH,
	PHASE_MEET,
	PHASE_LOOKS,
	PHASE_FILES,
	PHASE_OVER
};

struct session {
	struct check check;
	struct job *job;
	struct wire_secret secret;
	char token[32];
	int head_port;
	enum phase phase;
	int64_t begun_ms, deadline_ms;
	struct bytes *lines; /* [count]: pieces of a line that is not whole yet */
	int ring_rounds;
	bool judged;
};

static void note(const struct session *session, enum log_level level, const char *text)
{
	if (session->check.request->note)
		session->check.request->note(session->check.request->context, level, text);
}

/* ---- asking ---- */

/* question is consumed; NULL: memory out. node -1: all. */
static void ask(struct session *session, long node, json_t *question)
{
	char *text = question ? json_dumps(question, JSON_COMPACT) : NULL;
	char *line = NULL;
	struct error err = {0};

	if (!text || asprintf(&line, "%s\n", text) < 0)
		error_memory(&err, "a question");
	else
		job_input(session->job, node, line, strlen(line), &err);
	if (err.code)
		note(session, LOG_WARNING, err.text);
	free(line);
	free(text);
	json_decref(question);
}

/* The kind of a node's best NIC that is not for management. */
static const char *fabric_of(const struct machine *card)
{
	enum nic_kind best = NIC_ETHERNET;

	for (size_t n = 0; n < card->nic_count; n++)
		if (!card->nics[n].management && card->nics[n].kind > best)
			best = card->nics[n].kind;
	return nic_kind_name(best);
}

static void ask_begin(struct session *session)
{
	struct check *check = &session->check;
	json_t *names = json_array();
	char secret[65];

	wire_secret_format(&session->secret, secret);
	for (size_t i = 0; i < check->count && !check->pretended; i++)
		json_array_append_new(names, json_text(check->nodes[i].name));
	for (size_t i = 0; i < check->count; i++)
		ask(session, (long)i,
		    json_pack("{s:s, s:i, s:i, s:s, s:s, s:O, s:o, s:s, s:i}", "ask", "begin",
			      "node", (int)i, "count", (int)check->count, "token", session->token,
			      "secret", secret, "names", names, "checkpoint",
			      json_text(check->request->checkpoint), "fabric",
			      fabric_of(&check->cards[i]), "head_port",
			      i == 0 ? session->head_port : 0));
	json_decref(names);
}

static void ask_clock(struct session *session, size_t node)
{
	session->check.nodes[node].sent_us = clock_wall_us();
	ask(session, (long)node, json_pack("{s:s}", "ask", "clock"));
}

/* ---- phases ---- */

static bool looked(const struct check_node *node)
{
	for (const struct check_probe *probe = check_probes; probe->name; probe++)
		if (probe->look && !json_object_get(node->answers, probe->name))
			return false;
	return true;
}

/* Has the node said all that the phase wants of it? */
static bool answered(const struct session *session, size_t index)
{
	const struct check *check = &session->check;
	const struct check_node *node = &check->nodes[index];

	if (node->missing)
		return true;
	switch (session->phase) {
	case PHASE_BEGIN:
		return node->begun;
	case PHASE_CLOCK:
		return node->clock_left == 0;
	case PHASE_REACH:
		return check->count == 1 || json_object_get(node->answers, "reach?");
	case PHASE_MEET:
		return !check->planned ||
		       (json_object_get(node->answers, "port?") &&
			(!probe_ring_possible(check) || json_object_get(node->answers, "ring?")));
	case PHASE_LOOKS:
		return looked(node);
	case PHASE_FILES:
		return !check->request->checkpoint ||
		       !json_object_get(node->answers, "checkpoint") || /* its folder hangs */
		       json_object_get(node->answers, "checkpoint?");
	case PHASE_OVER:
		return true;
	}
	return true;
}

static void judge(struct session *session)
{
	if (session->judged)
		return;
	session->judged = true;
	for (const struct check_probe *probe = check_probes; probe->name; probe++)
		probe->judge(&session->check);
}

static void enter(struct session *session, enum phase phase);

static void ask_ring(struct session *session)
{
	struct check *check = &session->check;
	bool possible = probe_ring_possible(check);

	for (size_t i = 0; possible && i < check->count; i++)
		ask(session, (long)i, probe_ring_question(check, i));
	session->ring_rounds++;
	session->deadline_ms = clock_now_ms() + PROBE_RING_MS + SLACK_MS;
}

static void begin_phase(struct session *session)
{
	struct check *check = &session->check;
	int64_t now = clock_now_ms();

	switch (session->phase) {
	case PHASE_BEGIN:
		ask_begin(session);
		session->deadline_ms = now + BEGIN_MS;
		break;
	case PHASE_CLOCK:
		for (size_t i = 0; i < check->count; i++)
			if (!check->nodes[i].missing)
				ask_clock(session, i);
		session->deadline_ms = now + CLOCK_MS;
		break;
	case PHASE_REACH:
		for (size_t i = 0; check->count > 1 && i < check->count; i++)
			if (!check->nodes[i].missing)
				ask(session, (long)i, probe_reach_question(check, i));
		session->deadline_ms = now + probe_reach_ms(check) + SLACK_MS;
		break;
	case PHASE_MEET:
		check_make_plan(check, session->head_port);
		for (size_t i = 0; check->planned && i < check->count; i++)
			if (!check->nodes[i].missing)
				ask(session, (long)i, probe_port_question(check, i));
		ask_ring(session);
		break;
	case PHASE_LOOKS:
		session->deadline_ms = session->begun_ms + LOOK_MS;
		break;
	case PHASE_FILES:
		if (check->request->checkpoint)
			ask(session, -1, json_pack("{s:s}", "ask", "checkpoint"));
		session->deadline_ms = now + FILES_MS;
		break;
	case PHASE_OVER:
		judge(session);
		ask(session, -1, json_pack("{s:s}", "ask", "end"));
		session->deadline_ms = now + END_MS;
		break;
	}
}

/* Who did not come as far as listening takes no part in what follows. */
static void leave_out(struct session *session)
{
	for (size_t i = 0; i < session->check.count; i++) {
		struct check_node *node = &session->check.nodes[i];

		if (node->missing || node->begun)
			continue;
		node->missing = true;
		check_add(&session->check, i, "agent", CHECK_FAULT,
			  "look at the node: it may be out of memory or processes",
			  "its agent is there, but the prober did not answer within %d s",
			  BEGIN_MS / 1000);
	}
}

static bool all_answered(const struct session *session)
{
	for (size_t i = 0; i < session->check.count; i++)
		if (!answered(session, i))
			return false;
	return true;
}

static void enter(struct session *session, enum phase phase)
{
	session->phase = phase;
	begin_phase(session);
}

static void go_on(struct session *session)
{
	while (session->phase != PHASE_OVER &&
	       (all_answered(session) || clock_now_ms() >= session->deadline_ms)) {
		if (session->phase == PHASE_BEGIN)
			leave_out(session);
		if (session->phase == PHASE_MEET && session->ring_rounds < RING_ROUNDS &&
		    probe_ring_possible(&session->check) && probe_ring_again(&session->check)) {
			ask_ring(session);
			continue;
		}
		enter(session, session->phase + 1);
	}
}

/* ---- what the job tells ---- */

static int copy_cards(struct check *check, const struct machine *cards)
{
	check->cards = calloc(check->count, sizeof *check->cards);
	for (size_t i = 0; check->cards && i < check->count; i++) {
		JSON_AUTO json = machine_to_json(&cards[i]);

		if (!json || machine_from_json(json, &check->cards[i], NULL))
			return -1;
	}
	return check->cards ? 0 : -1;
}

static void on_begun(void *context, struct job *job, const struct machine *cards, int port)
{
	struct session *session = context;

	session->job = job;
	session->head_port = port;
	session->begun_ms = clock_now_ms();
	session->check.carded = copy_cards(&session->check, cards) == 0;
	if (!session->check.carded) {
		note(session, LOG_ERROR, "out of memory for the nodes' cards");
		job_end(job, 0);
		return;
	}
	enter(session, PHASE_BEGIN);
}

static int64_t on_tick(void *context, int64_t now_ms)
{
	struct session *session = context;

	if (!session->job || !session->check.carded)
		return 0;
	go_on(session);
	if (session->phase == PHASE_OVER && now_ms >= session->deadline_ms) {
		/* A thread that hangs in the kernel keeps its process: it is ended with the rest.
		 */
		job_end(session->job, 0);
		session->deadline_ms = INT64_MAX;
	}
	return session->deadline_ms == INT64_MAX ? 0 : session->deadline_ms;
}

static void on_missing(void *context, size_t node, const char *words)
{
	struct session *session = context;

	session->check.nodes[node].missing = true;
	check_add(
		&session->check, node, "agent", CHECK_FAULT,
		"is the node up, and does it see this berth's folder? Its firewall must let TCP of "
		"the job's other nodes in",
		"no agent within %d s%s%s", session->check.request->start_timeout_ms / 1000,
		*words ? "; " : "", words);
}

static void take_clock(struct session *session, size_t index, const json_t *answer)
{
	struct check_node *node = &session->check.nodes[index];
	int64_t now = clock_wall_us(), half = (now - node->sent_us) / 2, theirs;

	if (!node->clock_left || json_get_int("clock", answer, "us", 0, INT64_MAX, &theirs, NULL))
		return;
	if (node->clock_left == CLOCK_EXCHANGES || half < node->clock_error_us) {
		node->clock_error_us = half;
		node->clock_off_us = theirs - (node->sent_us + half);
	}
	if (--node->clock_left)
		ask_clock(session, index);
}

static void take_answer(struct session *session, size_t index, const char *text, size_t size)
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
		node->begun = !node->missing;
	}
	if (!strcmp(name, "clock"))
		take_clock(session, index, answer);
	else
		json_object_set(node->answers, name, answer);
	if (session->check.carded)
		go_on(session);
}

static void on_output(void *context, int rank, bool is_err, const char *text, size_t size,
		      bool newline)
{
	struct session *session = context;
	size_t index = (size_t)rank, mark = sizeof CHECK_MARK - 1;
	struct bytes *line;

	if (rank < 0 || index >= session->check.count)
		return;
	if (is_err) { /* a library's words, or the prober's last ones */
		char words[600];

		snprintf(words, sizeof words, "%s: %.*s", session->check.nodes[index].name,
			 size > 500 ? 500 : (int)size, text);
		note(session, LOG_DEBUG, words);
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
	if (whole.size > mark && !memcmp(whole.data, CHECK_MARK, mark))
		take_answer(session, index, (char *)whole.data + mark, whole.size - mark);
	bytes_free(&whole);
}

static void on_note(void *context, enum log_level level, const char *text)
{
	/* What a job would warn of is told by the probes, or of no matter here. */
	note(context, level == LOG_WARNING ? LOG_DEBUG : level, text);
}

/* ---- the end ---- */

/* The job that carried it failed: whose fault that is. */
static int take_failure(struct session *session, const struct job_result *result, struct error *err)
{
	struct check *check = &session->check;
	const char *why = result->first_cause ? result->first_cause : "it failed";
	size_t missing = 0;

	for (size_t i = 0; i < check->count; i++) {
		struct check_node *node = &check->nodes[i];

		if (result->node && !strcmp(node->name, result->node) && !node->missing) {
			size_t name = strlen(node->name);
			/* The table names the node in a column of its own. */
			bool twice = !strncmp(why, node->name, name) && !strncmp(why + name, ": ", 2);

			node->missing = true;
			check_add(check, i, "agent", CHECK_FAULT,
				  "mend what is named here, or leave the node out", "%s",
				  why + (twice ? name + 2 : 0));
		}
		missing += node->missing;
	}
	if (!missing)
		return error_set(err, result->code, "%s", why);
	if (check->carded)
		judge(session);
	return 0;
}

static int prepare(struct session *session, const struct check_request *request, struct error *err)
{
	struct check *check = &session->check;
	unsigned char random[8];
	struct wire_secret name;
	int rc = wire_secret_make(&session->secret, err);

	if (!rc)
		rc = wire_secret_make(&name, err);
	if (rc)
		return rc;
	memcpy(random, name.bytes, sizeof random);
	for (size_t i = 0; i < sizeof random; i++)
		sprintf(session->token + 2 * i, "%02x", random[i]);
	check->request = request;
	check->count = request->alloc->node_count;
	check->pretended = request->engine->one_machine && check->count > 1;
	check->nodes = calloc(check->count, sizeof *check->nodes);
	session->lines = calloc(check->count, sizeof *session->lines);
	for (size_t i = 0; check->nodes && i < check->count; i++) {
		check->nodes[i].name = request->alloc->nodes[i].name;
		check->nodes[i].answers = json_object();
		check->nodes[i].results = json_array();
		check->nodes[i].clock_left = CLOCK_EXCHANGES;
	}
	return check->nodes && session->lines ? 0 : error_memory(err, "the nodes");
}

static void clean(struct session *session)
{
	struct check *check = &session->check;

	for (size_t i = 0; check->nodes && i < check->count; i++) {
		json_decref(check->nodes[i].answers);
		json_decref(check->nodes[i].results);
		if (check->cards)
			machine_free(&check->cards[i]);
		if (session->lines)
			bytes_free(&session->lines[i]);
	}
	if (check->planned)
		plan_free(&check->plan);
	free(check->cards);
	free(check->nodes);
	free(session->lines);
	wire_secret_forget(&session->secret);
}

int check_run(const struct check_request *request, json_t **out, struct error *err)
{
	struct session session = {0};
	struct job_driver driver = {&session, on_begun, on_tick, on_missing};
	struct job_sink sink = {
		.context = &session, .output = on_output, .note = on_note, .drained_fd = -1};
	struct job_request job = {
		.alloc = request->alloc,
		.engine = request->engine,
		.env = request->env,
		.program = request->program,
		.argv = request->prober,
		.plan = {.ranks_per_node = 1, .port = request->wish.port},
		.pmix = JOB_PMIX_OFF,
		.port_hold = true,
		.node_timeout_ms = request->node_timeout_ms,
		.start_timeout_ms = request->start_timeout_ms,
		.any_head = true,
		.driver = &driver,
	};
	struct job_result result = {.rank = -1};
	int rc = prepare(&session, request, err);

	if (!rc)
		rc = job_run(&job, &sink, &result, err);
	if (!rc && result.interrupted)
		rc = error_set(err, 128 + result.interrupted,
			       "stopped by %s before all was looked at",
			       strsignal(result.interrupted));
	else if (!rc && result.code)
		rc = take_failure(&session, &result, err);
	else if (!rc && !session.judged)
		rc = error_set(err, ERR_INTERNAL, "the probers ended before all was asked");
	if (!rc) {
		*out = check_to_json(&session.check);
		rc = *out ? 0 : error_memory(err, "the results");
	}
	job_result_free(&result);
	clean(&session);
	return rc;
}
