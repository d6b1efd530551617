/* SPDX-License-Identifier: BSD-3-Clause */
/* The controller against agents that misbehave: three nodes with one rank each. Children of this
 * test simulate the agents, through a launcher of the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "roles/jobs.h"
#include "base/loop.h"
#include "overlay/messages.h"
#include "base/json.h"
#include "launch/launcher.h"
#include "inventory/inventory.h"

#define NODES 3
#define LONG_TIMEOUT_MS 60000 /* must not expire */
#define SHORT_TIMEOUT_MS 3000
#define START_TIMEOUT_MS 4500
#define RANKS_TIMEOUT_MS 2000
#define WARNED_S 30

enum deed {
	NOTHING,
	DIE,	    /* SIGKILL itself */
	CLOSE,	    /* close the connection and live on */
	SILENT,	    /* stay connected, send nothing more */
	RUBBISH,    /* send bytes that are not a frame */
	NO_CARD,    /* send an inventory that is not one */
	BAD_TEXT,   /* send text that is not JSON */
	WRONG_NODE, /* send HELLO as another node */
	FAILED,	    /* cannot do its part */
	ENDS,	    /* its rank ends with code */
	KILLED,	    /* its rank is killed by signal code */
	ABORTS,	    /* its rank calls abort with code */
	UNSTARTED,  /* its program cannot be executed */
	UNSAID,	    /* never send it, but keep sending heartbeats */
	STOPPED,    /* report the launcher's SIGTERM instead */
	ENDED,	    /* the same, then end as the launcher does */
};

/* What one node's agent does instead, when it would send that message. */
struct act {
	size_t node;
	enum deed deed;
	enum message_type at;
	int code;
};

static const struct act *acts;
static size_t act_count;
static int fan_out;
static int ranks_timeout_ms;
static int spares;
static int warn_before_ms; /* the time limit is in as many; ranks end once they are warned */
static int fallback_ms;	   /* the same launcher again, after this time without an agent; 0: none */
static atomic_bool *welcomed; /* [NODES], shared with the simulated agents */
static char *inventory_text;
static const struct message_hello hello = {"/nowhere"};

/* ---- a simulated agent ---- */

struct fake {
	int fd;
	size_t node;
	struct wire *wire;
	bool silent;
};

static void flush(struct fake *fake)
{
	const void *bytes;
	size_t size;

	while ((size = wire_output(fake->wire, &bytes)) > 0) {
		ssize_t n = send(fake->fd, bytes, size, MSG_NOSIGNAL);

		if (n <= 0)
			_exit(1);
		wire_consume_output(fake->wire, (size_t)n);
	}
}

static void tell_text(struct fake *fake, enum message_type type, const char *text)
{
	struct wire_message message = {.type = (uint16_t)type,
				       .node = (uint32_t)fake->node,
				       .text = text,
				       .text_size = strlen(text)};

	if (fake->silent || wire_send(fake->wire, &message, NULL))
		return;
	flush(fake);
}

static void tell(struct fake *fake, enum message_type type, const void *body)
{
	char *text = message_write(type, body);

	tell_text(fake, type, text);
	free(text);
}

/* Wait for the next message of that type and skip others. Send heartbeats meanwhile. Of *out, wire
 * is not valid. */
static void await(struct fake *fake, enum message_type type, struct message *out)
{
	for (;;) {
		struct wire_message wire;
		struct pollfd wait = {.fd = fake->fd, .events = POLLIN};
		unsigned char buffer[65536];
		struct error err;
		int rc;

		while ((rc = wire_next(fake->wire, &wire, NULL)) > 0) {
			if (message_read(&wire, out, &err)) {
				print_error("%s\n", err.text);
				_exit(1);
			}
			if (wire.type == type)
				return;
			message_free(out);
			if (wire.type == MESSAGE_SETTLE)
				tell(fake, MESSAGE_SETTLED, NULL);
			else if (wire.type == MESSAGE_CLAIM)
				tell(fake, MESSAGE_CLAIMED,
				     &(struct message_claimed){true, json_array()});
		}
		flush(fake);
		if (poll(&wait, 1, 300) == 0) {
			tell(fake, MESSAGE_HEARTBEAT, NULL);
			continue;
		}
		ssize_t n = recv(fake->fd, buffer, sizeof buffer, 0);

		if (n <= 0 || wire_feed(fake->wire, buffer, (size_t)n, NULL))
			_exit(0);
	}
}

static void ended(struct fake *fake, int code, int number, const char *start_error, bool stopped)
{
	tell(fake, MESSAGE_ENDED,
	     &(struct message_ended){.rank = (int)fake->node,
				     .code = code,
				     .signal = number,
				     .stopped = stopped,
				     .start_error = start_error,
				     .last = json_pack("[s]", "its last words"),
				     .peak_memory_bytes = 1});
}

/* If the act replaces this message, perform it. Return whether it did. */
static bool instead(struct fake *fake, enum message_type at)
{
	for (size_t i = 0; i < act_count; i++) {
		const struct act *act = &acts[i];

		if (act->node != fake->node || act->at != at)
			continue;
		switch (act->deed) {
		case DIE:
			kill(getpid(), SIGKILL);
			break;
		case CLOSE:
			shutdown(fake->fd, SHUT_RDWR);
			close(fake->fd);
			sleep(60);
			break;
		case SILENT:
			fake->silent = true;
			return true;
		case RUBBISH:
			if (write(fake->fd, "\5\0\0\0hello this is no frame", 26) < 0)
				_exit(1);
			return true;
		case NO_CARD:
			tell(fake, MESSAGE_INVENTORY,
			     &(struct message_inventory){1, json_pack("{s:s}", "format", "x"),
							 json_array()});
			return true;
		case BAD_TEXT:
			tell_text(fake, at, "{\"port\":");
			return true;
		case WRONG_NODE:
			while (!welcomed[1]) /* the true one comes first */
				usleep(1000);
			fake->node = 1;
			tell(fake, MESSAGE_HELLO, &hello);
			return true;
		case FAILED:
			tell(fake, MESSAGE_FAILED, &(struct message_failed){73, "no room"});
			return true;
		case ENDS:
			ended(fake, act->code, 0, NULL, false);
			return true;
		case KILLED:
			ended(fake, 128 + act->code, act->code, NULL, false);
			return true;
		case UNSTARTED:
			ended(fake, act->code, 0, "cannot start ./x: why", false);
			return true;
		case ABORTS:
			tell(fake, MESSAGE_ABORT,
			     &(struct message_abort){(int)fake->node, act->code, "enough"});
			return true;
		case UNSAID:
			return true;
		case STOPPED:
		case ENDED:
			tell(fake, MESSAGE_SIGNALLED, &(struct message_signalled){SIGTERM, true});
			if (act->deed == ENDED)
				kill(getpid(), SIGKILL);
			return true;
		default:
			break;
		}
	}
	return false;
}

static void say(struct fake *fake, enum message_type type, const void *body)
{
	if (instead(fake, type))
		message_drop(type, body);
	else
		tell(fake, type, body);
}

static json_t *list_of(size_t count, int value)
{
	json_t *list = json_array();

	for (size_t i = 0; i < count; i++)
		json_array_append_new(list, json_integer(value));
	return list;
}

static void play(struct fake *fake)
{
	struct message got;
	bool over = false;
	size_t count;

	say(fake, MESSAGE_HELLO, &hello);
	await(fake, MESSAGE_WELCOME, &got);
	welcomed[fake->node] = true;
	if (got.welcome.listen)
		tell(fake, MESSAGE_LISTENING, &(struct message_listening){1});
	if (got.welcome.move)
		say(fake, MESSAGE_MOVE_FAILED, NULL);
	say(fake, MESSAGE_INVENTORY,
	    &(struct message_inventory){fake->node ? -1 : 4711, json_loads(inventory_text, 0, NULL),
					json_array()});
	await(fake, MESSAGE_PROBE, &got);
	count = json_array_size(got.probe.addresses);
	say(fake, MESSAGE_PROBED,
	    &(struct message_probed){1, list_of(count, 1), list_of(count, -1), list_of(count, -1)});
	await(fake, MESSAGE_START, &got);
	say(fake, MESSAGE_STARTED, NULL);
	for (size_t i = 0; i < act_count; i++) /* somebody's end is not the usual one */
		over |= acts[i].at == MESSAGE_ENDED ||
			(acts[i].at == MESSAGE_STARTED && acts[i].deed == UNSAID);
	if (over) {
		if (!instead(fake, MESSAGE_ENDED)) {
			await(fake, MESSAGE_STOP, &got);
			ended(fake, 143, 15, NULL, true);
		}
	} else {
		alarm(warn_before_ms ? WARNED_S : 0);
		if (warn_before_ms)
			await(fake, MESSAGE_SIGNAL, &got);
		ended(fake, 0, 0, NULL, false);
	}
	say(fake, MESSAGE_DONE, &(struct message_done){NULL});
	await(fake, 0, &got); /* until the final frame */
}

static int start(const struct launcher_job *job, struct launcher_process **out, size_t *count,
		 struct error *err)
{
	struct launcher_process *children = calloc(NODES, sizeof *children);
	struct secret secret;

	(void)err;
	assert_non_null(children);
	secret_parse(job->secret, &secret, NULL);
	for (size_t i = 0; i < NODES; i++) {
		int pair[2];

		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
		children[i] = (struct launcher_process){fork(), (long)i, pair[0]};
		assert_true(children[i].pid >= 0);
		if (children[i].pid == 0) {
			struct fake fake = {.fd = dup2(pair[1], 3), .node = i};

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close_range(4, ~0u, 0);
			fake.wire = wire_new(WIRE_CONNECTS, &secret, job->launch->alloc->job_id);
			play(&fake);
			_exit(0);
		}
		close(pair[1]);
	}
	*out = children;
	*count = NODES;
	return 0;
}

static const char *cancelled_line; /* what the launcher's tool prints; NULL: nothing */

static const char *cancelled(const char *output, size_t *size)
{
	(void)output;
	*size = cancelled_line ? strlen(cancelled_line) : 0;
	return cancelled_line;
}

static const struct launcher launcher_simulated = {
	.name = "played", .shape = LAUNCH_HERE, .start = start};
static const struct launcher launcher_that_tells = {
	.name = "played", .shape = LAUNCH_HERE, .start = start, .cancelled = cancelled};
static const struct launcher *launcher = &launcher_simulated;

/* ---- the controller ---- */

static char notes[8192];

static void on_output(void *context, int rank, bool is_err, const char *text, size_t size,
		      bool newline)
{
	(void)context, (void)rank, (void)is_err, (void)text, (void)size, (void)newline;
}

static void on_note(void *context, enum log_level level, const char *text)
{
	(void)context;
	(void)level;
	snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

/* Do the job's agents include one that does this, at this message? */
static bool does(enum deed deed, enum message_type at)
{
	for (size_t i = 0; i < act_count; i++)
		if (acts[i].deed == deed && acts[i].at == at)
			return true;
	return false;
}

static void run(const struct act *what, size_t count, struct job_result *result)
{
	struct alloc_node nodes[NODES] = {
		{(char *)"n0", 1, -1}, {(char *)"n1", 1, -1}, {(char *)"n2", 1, -1}};
	struct alloc alloc = {.source = ALLOC_FROM_LOCAL,
			      .job_id = (char *)"test-job",
			      .node_count = NODES,
			      .nodes = nodes,
			      .end_time = warn_before_ms ? time(NULL) + warn_before_ms / 1000 : 0,
			      .why = (char *)"a test"};
	const char *const argv[] = {"true", NULL};
	struct env *env = env_new();

	acts = what;
	act_count = count;
	for (size_t i = 0; i < NODES; i++)
		welcomed[i] = false;
	/* Only what a job waits for may expire: its other agents may be scheduled late. */
	bool silent = does(SILENT, MESSAGE_INVENTORY) || does(SILENT, MESSAGE_ENDED) ||
		      does(SILENT, MESSAGE_MOVE_FAILED);
	bool absent = does(SILENT, MESSAGE_HELLO) || does(UNSAID, MESSAGE_HELLO) ||
		      does(UNSAID, MESSAGE_INVENTORY);
	struct job_sink sink = {.output = on_output, .note = on_note, .drained_fd = -1};
	struct launch_options launch = {
		.alloc = &alloc,
		.launcher = launcher,
		.env = env,
		.berth_path = "berth",
		.fan_out = fan_out,
		.node_timeout_ms = silent ? SHORT_TIMEOUT_MS : LONG_TIMEOUT_MS,
		.start_timeout_ms = absent ? START_TIMEOUT_MS : LONG_TIMEOUT_MS,
		.fallback = fallback_ms ? &launcher_simulated : NULL,
		.launch_timeout_ms = fallback_ms};
	struct job_request request = {.launch = &launch,
				      .argv = argv,
				      .cwd = "/work",
				      .plan = {.ranks = NODES - spares},
				      .spares = (size_t)spares,
				      .end.warn_before_ms = warn_before_ms,
				      .ranks_timeout_ms = ranks_timeout_ms};
	struct jobs_entry entry = {.request = &request, .sink = &sink};
	struct error err = {0};

	notes[0] = 0;
	memset(result, 0, sizeof *result);
	if (jobs_run(&(struct jobs_request){.entries = &entry, .count = 1}, result, &err))
		fail_msg("%s", err.text);
	env_free(env);
	/* No process of the agents is left. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* Only if no agent has connected is the fallback used, and once. */
static void test_fallback(void **state)
{
	static const struct act none[] = {{0, UNSAID, MESSAGE_HELLO},
					  {1, UNSAID, MESSAGE_HELLO},
					  {2, UNSAID, MESSAGE_HELLO}},
				slow[] = {{1, UNSAID, MESSAGE_INVENTORY}};
	struct job_result result;
	int64_t begin;

	(void)state;
	fallback_ms = START_TIMEOUT_MS - 500;
	run(NULL, 0, &result);
	assert_int_equal(result.code, 0);
	assert_null(strstr(notes, "trying launcher"));
	job_result_free(&result);

	begin = clock_now_ms();
	run(slow, 1, &result);
	assert_int_equal(result.code, 76);
	assert_true(clock_now_ms() - begin >= START_TIMEOUT_MS);
	assert_null(strstr(notes, "trying launcher"));
	job_result_free(&result);

	fallback_ms = 300;
	run(none, 3, &result);
	assert_int_equal(result.code, 76);
	assert_non_null(strstr(notes, "has started no agent within 0.3 s; trying launcher"));
	assert_non_null(strstr(result.cause.text, "no agent or no inventory"));
	job_result_free(&result);
	fallback_ms = 0;
}

static void test_all_well(void **state)
{
	struct job_result result;

	(void)state;
	run(NULL, 0, &result);
	if (result.code)
		fail_msg("code %d: %s", result.code, result.cause.text);
	assert_null(result.cause.text);
	assert_int_equal(json_array_size(result.ranks), NODES);
	job_result_free(&result);
}

static void test_first_cause(void **state)
{
	static const struct {
		struct act act;
		int code;
		bool by_program;
		int rank;
		const char *node, *cause;
	} rows[] = {
		/* each phase: killed, closed, silent */
		{{1, DIE, MESSAGE_HELLO}, 76, false, -1, "n1", "killed by signal 9"},
		{{1, DIE, MESSAGE_INVENTORY}, 76, false, -1, "n1", "killed by signal 9"},
		{{2, DIE, MESSAGE_PROBED}, 76, false, -1, "n2", "killed by signal 9"},
		{{2, DIE, MESSAGE_STARTED}, 76, false, -1, "n2", "killed by signal 9"},
		{{0, DIE, MESSAGE_ENDED}, 76, false, -1, "n0", "killed by signal 9"},
		{{0, DIE, MESSAGE_DONE}, 76, false, -1, "n0", "killed by signal 9"},
		{{1, CLOSE, MESSAGE_INVENTORY}, 76, false, -1, "n1", "node n1 was lost"},
		{{1, CLOSE, MESSAGE_ENDED}, 76, false, -1, "n1", "node n1 was lost"},
		{{1, SILENT, MESSAGE_HELLO}, 76, false, -1, NULL, "no agent or no inventory"},
		{{1, SILENT, MESSAGE_INVENTORY}, 76, false, -1, "n1", "from its agent for 3 s"},
		{{2, SILENT, MESSAGE_ENDED}, 76, false, -1, "n2", "from its agent for 3 s"},
		/* garbage from an authenticated peer */
		{{1, RUBBISH, MESSAGE_INVENTORY}, 76, false, -1, "n1", "node n1 was lost"},
		{{1, NO_CARD, MESSAGE_INVENTORY}, 65, false, -1, "n1", "the inventory of n1"},
		{{1, BAD_TEXT, MESSAGE_INVENTORY}, 65, false, -1, "n1", "INVENTORY of node 1"},
		{{2, WRONG_NODE, MESSAGE_HELLO}, 76, false, -1, "n2", "n2"},
		{{2, FAILED, MESSAGE_INVENTORY}, 73, false, -1, "n2", "n2: no room"},
		/* the launcher's signal before the ranks run: its end says more */
		{{1, ENDED, MESSAGE_INVENTORY}, 76, false, -1, "n1", "killed by signal 9"},
		{{1, STOPPED, MESSAGE_INVENTORY}, 143, false, -1, NULL, "stopped by Terminated"},
		/* ends of ranks */
		{{1, ENDS, MESSAGE_ENDED, 3}, 3, true, 1, "n1", "rank 1 on n1 exited with code 3"},
		{{2, KILLED, MESSAGE_ENDED, 11}, 139, true, 2, "n2", "killed by signal 11"},
		{{0, ABORTS, MESSAGE_ENDED, 5}, 5, true, 0, "n0", "abort with code 5: enough"},
		{{0, ABORTS, MESSAGE_ENDED, 256}, 1, true, 0, "n0", "abort with code 256"},
		{{1, UNSTARTED, MESSAGE_ENDED, 127}, 66, false, 1, "n1", "could not be started"},
		{{1, UNSTARTED, MESSAGE_ENDED, 126}, 69, false, 1, "n1", "could not be started"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct job_result result;

		run(&rows[i].act, 1, &result);
		if (result.code != rows[i].code ||
		    (result.cause.end >= JOB_END_PROGRAM) != rows[i].by_program ||
		    result.cause.rank != rows[i].rank || !result.cause.text ||
		    !strstr(result.cause.text, rows[i].cause) ||
		    (rows[i].node &&
		     (!result.cause.node || strcmp(result.cause.node, rows[i].node))))
			fail_msg("row %zu (%s): code %d, rank %d, node %s: %s\n%s", i,
				 rows[i].cause, result.code, result.cause.rank,
				 result.cause.node ? result.cause.node : "-",
				 result.cause.text ? result.cause.text : "-", notes);
		job_result_free(&result);
	}
}

/* Nodes that cannot reach their parent in the tree stay connected to the controller, and the job
 * continues. */
static void test_parents_that_cannot_be_reached(void **state)
{
	static const struct act silent = {2, SILENT, MESSAGE_MOVE_FAILED, 0};
	struct job_result result;

	(void)state;
	fan_out = 1;
	run(NULL, 0, &result);
	if (result.code)
		fail_msg("code %d: %s", result.code, result.cause.text);
	assert_int_equal(json_array_size(result.ranks), NODES);
	job_result_free(&result);
	/* A node that can do neither is named. */
	run(&silent, 1, &result);
	assert_int_equal(result.code, 76);
	assert_non_null(strstr(result.cause.text, "n2"));
	job_result_free(&result);
	fan_out = 0;
}

/* Any second failure is part of the cascade. */
static void test_first_one_wins(void **state)
{
	static const struct act two[] = {{1, ENDS, MESSAGE_ENDED, 3}, {2, DIE, MESSAGE_DONE, 0}};
	struct job_result result;

	(void)state;
	run(two, 2, &result);
	assert_int_equal(result.code, 3);
	assert_int_equal(result.cause.rank, 1);
	JSON_AUTO report = job_report(&result);

	assert_string_equal(json_string_value(json_object_get(report, "by")), "program");
	assert_string_equal(json_string_value(json_object_get(report, "node")), "n1");
	assert_string_equal(
		json_string_value(json_array_get(json_object_get(report, "last_lines"), 0)),
		"its last words");
	job_result_free(&result);
}

/* An agent that never sends DONE does not delay the job forever. */
static void test_done_has_a_deadline(void **state)
{
	static const struct act acts_here[] = {{1, ENDS, MESSAGE_ENDED, 3},
					       {2, UNSAID, MESSAGE_DONE, 0}};
	struct job_result result;
	int64_t begun = clock_now_ms();

	(void)state;
	run(acts_here, 2, &result);
	assert_int_equal(result.code, 3);
	assert_true(clock_now_ms() - begun < 3 * 8000);
	job_result_free(&result);
}

/* Nodes that are alive but never report that their ranks were started are named at the deadline. */
static void test_started_has_a_deadline(void **state)
{
	static const struct act two[] = {{1, UNSAID, MESSAGE_STARTED, 0},
					 {2, UNSAID, MESSAGE_STARTED, 0}};
	struct job_result result;

	(void)state;
	ranks_timeout_ms = RANKS_TIMEOUT_MS;
	run(two, 2, &result);
	ranks_timeout_ms = 0;
	assert_int_equal(result.code, 76);
	assert_true(result.cause.end < JOB_END_PROGRAM);
	/* (On a busy machine n0 may be late as well.) */
	if (!strstr(result.cause.text,
		    " did not report within 2 s that its ranks were started; check that the file "
		    "systems of the program and of its directory /work respond there") ||
	    !strstr(result.cause.text, "n1, n2 did not report"))
		fail_msg("%s", result.cause.text);
	assert_int_equal(json_array_size(result.ranks), NODES); /* all were stopped */
	job_result_free(&result);
}

/* A cancelled step kills ranks and agents alike, and an agent may report its rank's end before its
 * own. Without a cancel that is a killed rank. */
static void test_cancelled(void **state)
{
	static const struct act lost[] = {{1, DIE, MESSAGE_ENDED}},
				reported[] = {{1, KILLED, MESSAGE_ENDED, SIGKILL},
					      {1, DIE, MESSAGE_DONE}},
				alive[] = {{1, KILLED, MESSAGE_ENDED, SIGKILL}};
	static const struct {
		const struct act *acts;
		size_t count;
		const char *line;
		int code;
		bool cancelled;
	} rows[] = {
		{lost, 1, "CANCELLED", 143, true},     {lost, 1, NULL, 76, false},
		{reported, 2, "CANCELLED", 143, true}, {reported, 2, NULL, 137, false},
		{alive, 1, "CANCELLED", 137, false},
	};

	(void)state;
	launcher = &launcher_that_tells;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct job_result result;

		cancelled_line = rows[i].line;
		run(rows[i].acts, rows[i].count, &result);
		if (result.code != rows[i].code ||
		    (result.cause.end == JOB_END_CANCELLED) != rows[i].cancelled ||
		    (rows[i].cancelled && result.cause.signal))
			fail_msg("row %zu: code %d, %s", i, result.code, result.cause.text);
		job_result_free(&result);
	}
	launcher = &launcher_simulated;
}

/* The ranks are warned of the time limit although a spare node was lost before its STARTED. */
static void test_warning_without_a_spare(void **state)
{
	static const struct act dies = {2, DIE, MESSAGE_STARTED, 0};
	struct job_result result;

	(void)state;
	spares = 1;
	warn_before_ms = LONG_TIMEOUT_MS;
	run(&dies, 1, &result);
	spares = warn_before_ms = 0;
	if (result.code || !result.warned || !strstr(notes, "spare node n2 was lost"))
		fail_msg("code %d: %s\n%s", result.code,
			 result.cause.text ? result.cause.text : "-", notes);
	assert_int_equal(json_array_size(result.ranks), NODES - 1);
	job_result_free(&result);
}

static int make_inventory_text(void **state)
{
	struct inventory_source source = {.nvml_library = ""};
	struct inventory inventory;
	struct error err = {0};

	(void)state;
	welcomed = mmap(NULL, NODES * sizeof *welcomed, PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (welcomed == MAP_FAILED || inventory_discover(&source, &inventory, &err)) {
		print_error("%s\n", err.text);
		return -1;
	}
	JSON_AUTO json = inventory_to_json(&inventory);

	inventory_text = json_dumps(json, JSON_COMPACT);
	inventory_free(&inventory);
	return inventory_text ? 0 : -1;
}

static int free_inventory_text(void **state)
{
	(void)state;
	free(inventory_text);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_well),
		cmocka_unit_test(test_fallback),
		cmocka_unit_test(test_first_cause),
		cmocka_unit_test(test_parents_that_cannot_be_reached),
		cmocka_unit_test(test_first_one_wins),
		cmocka_unit_test(test_done_has_a_deadline),
		cmocka_unit_test(test_started_has_a_deadline),
		cmocka_unit_test(test_cancelled),
		cmocka_unit_test(test_warning_without_a_spare),
	};

	return cmocka_run_group_tests(tests, make_inventory_text, free_inventory_text);
}
