/* SPDX-License-Identifier: BSD-3-Clause */
/* When a silence is noted, when it ends the job, and which stacks are printed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "controller/hang.h"

#define RANKS 4
#define MINUTE 60000

static char notes[8192];
static struct loop *loop;

static void on_note(void *context, enum log_level level, const char *text)
{
	size_t used = strlen(notes);

	(void)context, (void)level;
	snprintf(notes + used, sizeof notes - used, "%s\n", text);
}

static struct plan_rank ranks[RANKS] = {{.rank = 0}, {.rank = 1}, {.rank = 2}, {.rank = 3}};
static struct plan_node plan_node = {.ranks = ranks, .rank_count = RANKS};
static const struct plan plan = {
	.nodes = &plan_node, .node_count = 1, .world_size = RANKS, .nodes_with_ranks = 1};
static struct alloc_node alloc_node = {.name = (char *)"n0"};
static const struct alloc alloc = {.nodes = &alloc_node, .node_count = 1};
static const struct launch_options launch = {.alloc = &alloc};
static const struct job_sink sink = {.note = on_note};

static void begin(struct job_hang *hang, const struct job_request *request)
{
	struct error err = {0};

	notes[0] = '\0';
	assert_int_equal(job_hang_open(hang, request, &plan, NULL, &sink, loop, &err), 0);
}

/* Rank 1 loads, all others wait for it. */
static void answer(struct job_hang *hang)
{
	char stacks[2048] = "";

	for (int i = 0; i < RANKS; i++)
		sprintf(stacks + strlen(stacks),
			"rank %d, process 7 (python)\nThread 7: \"MainThread\"\n%s", i,
			i == 1 ? "    load (/me/train.py:58)\n"
			       : "    backward (site-packages/torch/_tensor.py:1)\n    main "
				 "(/me/train.py:63)\n");
	json_t *states = json_pack("[s, s, s, s]", "S", "S", "S", "S");

	job_hang_handle_stacks(hang, 0, &(struct message_stacks){states, stacks});
	json_decref(states);
}

static int count(const char *text, const char *part)
{
	int found = 0;

	for (; (text = strstr(text, part)); text++)
		found++;
	return found;
}

#define FOUND                                                                                      \
	"the job hangs: no step and no output for %d s; 3 ranks wait in backward (train.py:63); "  \
	"rank 1 on n0 is in load (train.py:58)"

static void test_note(void **state)
{
	struct job_request request = {.launch = &launch};
	struct job_hang_finding finding;
	struct job_hang hang;
	char expected[300];

	(void)state;
	begin(&hang, &request);
	int64_t now = hang.active_ms;

	assert_false(job_hang_check(&hang, now + 10 * MINUTE - 1, &finding));
	assert_int_equal(hang.stacks_requested_ms, 0);
	assert_false(job_hang_check(&hang, now + 10 * MINUTE, &finding));
	assert_string_equal(notes, "");
	assert_int_not_equal(hang.stacks_requested_ms, 0);
	answer(&hang);
	assert_false(job_hang_check(&hang, now + 10 * MINUTE + 1, &finding));
	snprintf(expected, sizeof expected,
		 FOUND ". berth run ends such a job only with --hang-timeout\n", 600);
	assert_string_equal(notes, expected);

	/* Once per silence. */
	assert_false(job_hang_check(&hang, now + 60 * MINUTE, &finding));
	assert_int_equal(hang.stacks_requested_ms, 0);
	hang.active_ms = now + 61 * MINUTE;
	assert_false(job_hang_check(&hang, now + 71 * MINUTE, &finding));
	answer(&hang);
	assert_false(job_hang_check(&hang, now + 72 * MINUTE, &finding));
	assert_int_equal(count(notes, "the job hangs"), 2);
	job_hang_close(&hang);

	/* A shell waits for its user. */
	request.pty = true;
	begin(&hang, &request);
	assert_false(job_hang_check(&hang, hang.active_ms + 60 * MINUTE, &finding));
	assert_int_equal(hang.stacks_requested_ms, 0);
	job_hang_close(&hang);
}

static void test_end(void **state)
{
	const struct job_request request = {.launch = &launch, .hang_timeout_ms = MINUTE};
	struct job_hang_finding finding;
	struct job_hang hang;
	char expected[300];

	(void)state;
	begin(&hang, &request);
	assert_false(job_hang_check(&hang, hang.active_ms + MINUTE, &finding));
	answer(&hang);
	assert_true(job_hang_check(&hang, hang.active_ms + MINUTE + 1, &finding));
	snprintf(expected, sizeof expected, FOUND, 60);
	assert_string_equal(finding.text, expected);
	assert_int_equal(finding.rank, 1);
	assert_int_equal(finding.node, -1);
	/* The stack of rank 1, then one of the three that are alike. */
	const char *first = strstr(notes, "| rank 1,"), *next = strstr(notes, "| rank 0,");

	assert_true(first && next && first < next);
	assert_int_equal(count(notes, "| rank "), 2);
	assert_int_equal(count(finding.stacks, "rank "), RANKS);
	free(finding.stacks);
	job_hang_close(&hang);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_note), cmocka_unit_test(test_end)};

	int rc = loop_new(&loop, NULL) ? 1 : cmocka_run_group_tests(tests, NULL, NULL);

	loop_free(loop);
	return rc;
}
