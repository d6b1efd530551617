/* SPDX-License-Identifier: BSD-3-Clause */
/* What the watchdog of GPU collectives decides and reports, row by row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "train/comm/nccl/watch.h"

/* ---- what the marks say ---- */

static void test_done(void **state)
{
	static const struct {
		int64_t slots[4];
		int count;
		int64_t step;
		int bucket;
	} rows[] = {
		{{0, 0, 0, 0}, 4, 0, 0}, /* nothing yet */
		{{0, 0, 0, 0}, 0, 0, 0}, /* the number of buckets is unknown */
		{{7, 0, 0, 0}, 4, 7, 1}, /* the first step of a resumed run */
		{{7, 7, 7, 7}, 4, 7, 4}, {{8, 7, 7, 7}, 4, 8, 1}, /* the next step has begun */
		{{8, 8, 8, 7}, 4, 8, 3}, {{9, 9, 8, 8}, 4, 9, 2}, {{8, 8, 8, 7}, 3, 8, 3},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct watch_position place = {0};

		watch_done(rows[i].slots, rows[i].count, &place);
		if (place.step != rows[i].step || place.bucket != rows[i].bucket)
			fail_msg("row %zu: step %ld bucket %d", i, (long)place.step, place.bucket);
	}
}

/* ---- what is late ---- */

#define T 1000 /* the deadline */

/* step, bucket, calls: begun, then done */
struct look {
	int64_t ms;
	struct watch_position begun, done;
	bool broken, capturing;
	enum watch_verdict verdict;
};

static void looks(const char *name, const struct look *rows, size_t count)
{
	struct watch_state state = {0};

	for (size_t i = 0; i < count; i++) {
		struct watch_sample sample = {.now_ms = 5000 + rows[i].ms,
					      .begun = rows[i].begun,
					      .done = rows[i].done,
					      .buckets = 2,
					      .broken = rows[i].broken,
					      .capturing = rows[i].capturing};
		enum watch_verdict verdict = watch_check(&state, &sample, T);

		if (verdict != rows[i].verdict)
			fail_msg("%s, sample %zu: verdict %d, expected %d", name, i, verdict,
				 rows[i].verdict);
	}
}
#define LOOKS(name, ...)                                                                           \
	do {                                                                                       \
		const struct look rows_[] = {__VA_ARGS__};                                         \
		looks(name, rows_, sizeof rows_ / sizeof *rows_);                                  \
	} while (0)

static void test_look(void **state)
{
	LOOKS("a step that stalls", {0, {1, 2, 0}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {999, {1, 2, 0}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {1000, {1, 2, 0}, {0, 0, 0}, .verdict = WATCH_STALLED});
	LOOKS("one bucket at a time, each within the deadline",
	      {0, {1, 2, 0}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {900, {1, 2, 0}, {1, 1, 0}, .verdict = WATCH_FINE},
	      {1800, {1, 2, 0}, {1, 2, 0}, .verdict = WATCH_FINE},
	      {2700, {2, 2, 0}, {2, 1, 0}, .verdict = WATCH_FINE},
	      {3699, {2, 2, 0}, {2, 1, 0}, .verdict = WATCH_FINE},
	      {3700, {2, 2, 0}, {2, 1, 0}, .verdict = WATCH_STALLED});
	LOOKS("a host that runs ahead does not hide a stall",
	      {0, {1, 2, 0}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {400, {2, 2, 0}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {800, {3, 2, 0}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {1200, {4, 2, 0}, {0, 0, 0}, .verdict = WATCH_STALLED});
	LOOKS("new work after a long pause has the full deadline",
	      {0, {1, 2, 0}, {1, 2, 0}, .verdict = WATCH_FINE},
	      {900, {1, 2, 0}, {1, 2, 0}, .verdict = WATCH_FINE},
	      {1500, {2, 2, 0}, {1, 2, 0}, .verdict = WATCH_FINE},
	      {2400, {2, 2, 0}, {1, 2, 0}, .verdict = WATCH_FINE},
	      {2500, {2, 2, 0}, {1, 2, 0}, .verdict = WATCH_STALLED});
	LOOKS("without work in progress it is idle, not failed",
	      {0, {1, 2, 3}, {1, 2, 3}, .verdict = WATCH_FINE},
	      {1000, {1, 2, 3}, {1, 2, 3}, .verdict = WATCH_IDLE},
	      {1100, {1, 2, 4}, {1, 2, 3}, .verdict = WATCH_FINE},
	      {1200, {1, 2, 4}, {1, 2, 4}, .verdict = WATCH_FINE});
	LOOKS("a call that stalls", {0, {0, 0, 1}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {1000, {0, 0, 1}, {0, 0, 0}, .verdict = WATCH_STALLED});
	LOOKS("a step that began without handing over a bucket",
	      {0, {2, 0, 0}, {1, 2, 0}, .verdict = WATCH_FINE},
	      {1000, {2, 0, 0}, {1, 2, 0}, .verdict = WATCH_IDLE});
	LOOKS("a graph capture is never late, however long it takes",
	      {0, {1, 2, 0}, {0, 0, 0}, .capturing = true, .verdict = WATCH_FINE},
	      {5000, {1, 2, 0}, {0, 0, 0}, .capturing = true, .verdict = WATCH_FINE},
	      {5999, {1, 2, 0}, {0, 0, 0}, .verdict = WATCH_FINE},
	      {6000, {1, 2, 0}, {0, 0, 0}, .verdict = WATCH_STALLED});
	LOOKS("an error is reported at once",
	      {0, {1, 2, 0}, {1, 2, 0}, .broken = true, .verdict = WATCH_BROKEN});
}

static void test_next(void **state)
{
	static const struct {
		struct watch_position begun, done;
		bool call;
		struct watch_position next;
	} rows[] = {
		{{3, 2, 0}, {0, 0, 0}, false, {3, 0, 0}}, /* the run's first step */
		{{3, 2, 0}, {3, 1, 0}, false, {3, 1, 0}}, /* within a step */
		{{5, 2, 0}, {3, 1, 0}, false, {3, 1, 0}}, /* the host is two steps ahead */
		{{5, 2, 0}, {3, 2, 0}, false, {4, 0, 0}}, /* between two steps */
		{{3, 2, 8}, {3, 2, 7}, true, {3, 2, 7}},  /* after the step */
		{{3, 2, 7}, {3, 1, 6}, false, {3, 1, 6}}, /* buckets come first */
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct watch_sample sample = {
			.begun = rows[i].begun, .done = rows[i].done, .buckets = 2};
		bool call;
		struct watch_position next = watch_next(&sample, &call);

		if (call != rows[i].call || next.step != rows[i].next.step ||
		    next.bucket != rows[i].next.bucket || next.calls != rows[i].next.calls)
			fail_msg("row %zu: call %d step %ld bucket %d", i, call, (long)next.step,
				 next.bucket);
	}
}

/* ---- words ---- */

static void test_text(void **state)
{
	static const char hosts[12][64] = {"a", "a", "b", "b", "c", "c",
					   "d", "d", "e", "e", "f", "f"};
	const struct watch_report here = {{4, 1, 9}, 0, 0}, behind = {{4, 0, 9}, 0, 0},
				  elsewhere = {{4, 1, 9}, 0, 1}, call = {{4, 2, 9}, 1, 0};
	const struct watch_report *reports[12] = {&here, &here, &behind, NULL, &elsewhere, &call};
	char text[1024], small[40];

	watch_text(0, 6, hosts, &here, reports, 600000, text, sizeof text);
	assert_string_equal(
		text, "rank 0 on a waited 600 s at step 4, bucket 1 for rank 2 on b (at step 4, "
		      "bucket 0); rank 3 on b (does not respond: it has ended or hangs); rank 4 on "
		      "c (not in a collective; last at step 4, bucket 1); rank 5 on c (at "
		      "collective 10 (after "
		      "step 4)). Look for earlier errors in those ranks' output, or raise "
		      "--comm-timeout");
	watch_text(1, 2, hosts, &here, reports, 2000, text, sizeof text);
	assert_string_equal(text, "rank 1 on a waited 2 s at step 4, bucket 1, and so did all "
				  "other ranks: the network or a GPU has stalled. Look for earlier "
				  "errors in those ranks' output, or raise --comm-timeout");
	memset(reports, 0, sizeof reports);
	watch_text(0, 12, hosts, &here, reports, 2000, text, sizeof text);
	assert_non_null(strstr(
		text, "rank 8 on e (does not respond: it has ended or hangs) and 3 more. Look"));
	watch_text(0, 12, hosts, &here, reports, 2000, small, sizeof small);
	assert_int_equal(strlen(small), sizeof small - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_done),
		cmocka_unit_test(test_look),
		cmocka_unit_test(test_next),
		cmocka_unit_test(test_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
