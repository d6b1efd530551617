/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank has which GPU: jobs that can train, and jobs that would hang. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "train/comm/shared_gpu.h"

#define NEW 22809

struct row {
	const char *name;
	int count;
	struct rank_gpu rank_gpus[6];
	bool allow;
	int rc;
	bool shared;
	const char *says[6];
};

static const struct row rows[] = {
	{.name = "one GPU each",
	 .count = 3,
	 .rank_gpus = {{"a", "GPU-1", NEW}, {"a", "GPU-2", NEW}, {"b", "GPU-3", NEW}}},
	{.name = "alone", .count = 1, .rank_gpus = {{"a", "GPU-1", NEW}}},
	{.name = "two ranks on one GPU",
	 .count = 3,
	 .rank_gpus = {{"a", "GPU-2", NEW}, {"a", "GPU-1", NEW}, {"a", "GPU-2", NEW}},
	 .rc = -ERR_UNAVAILABLE,
	 .says = {"1 GPU is used by more than one rank", "rank 0  a  GPU-2; rank 2  a  GPU-2",
		  "LOCAL_RANK", "--allow-shared-gpu"}},
	{.name = "allowed",
	 .count = 2,
	 .rank_gpus = {{"a", "GPU-1", NEW}, {"a", "GPU-1", NEW}},
	 .allow = true,
	 .shared = true},
	{.name = "allowed, but not needed",
	 .count = 2,
	 .rank_gpus = {{"a", "GPU-1", NEW}, {"a", "GPU-2", NEW}},
	 .allow = true},
	{.name = "containers of one machine have different host names",
	 .count = 2,
	 .rank_gpus = {{"pod-0", "GPU-1", NEW}, {"pod-1", "GPU-1", NEW}},
	 .rc = -ERR_UNAVAILABLE,
	 .says = {"rank 0  pod-0  GPU-1; rank 1  pod-1  GPU-1"}},
	{.name = "two GPUs with two ranks each",
	 .count = 4,
	 .rank_gpus = {{"a", "GPU-1", NEW},
		       {"a", "GPU-2", NEW},
		       {"a", "GPU-1", NEW},
		       {"a", "GPU-2", NEW}},
	 .rc = -ERR_UNAVAILABLE,
	 .says = {"several GPUs are used",
		  "rank 0  a  GPU-1; rank 2  a  GPU-1; rank 1  a  GPU-2; rank 3"}},
	{.name = "two MIG devices of one GPU",
	 .count = 2,
	 .rank_gpus = {{"a", "MIG-1", NEW}, {"a", "MIG-2", NEW}}},
	{.name = "unknown UUIDs are not equal",
	 .count = 2,
	 .rank_gpus = {{"a", "", NEW}, {"a", "", NEW}}},
	{.name = "incompatible NCCL versions",
	 .count = 3,
	 .rank_gpus = {{"a", "GPU-1", NEW}, {"b", "GPU-2", NEW}, {"c", "GPU-3", 22703}},
	 .rc = -ERR_UNAVAILABLE,
	 .says = {"rank 0 on a has NCCL 2.28.9, but rank 2 on c has NCCL 2.27.3"}},
	{.name = "different patch levels are compatible",
	 .count = 2,
	 .rank_gpus = {{"a", "GPU-1", NEW}, {"b", "GPU-2", 22803}}},
};

static void test_rows(void **state)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct row *row = &rows[i];
		struct error err = {0};
		bool shared = false;
		int rc = gpus_check(row->rank_gpus, row->count, row->allow, &shared, &err);

		if (rc != row->rc || shared != row->shared)
			fail_msg("%s: %d, shared %d: %s", row->name, rc, shared, err.text);
		for (int s = 0; s < 6 && row->says[s]; s++)
			if (!strstr(err.text, row->says[s]))
				fail_msg("%s: \"%s\" has no \"%s\"", row->name, err.text,
					 row->says[s]);
	}
}

/* A large job on one GPU: the list is truncated, but the advice is still there. */
static void test_many(void **state)
{
	struct rank_gpu rank_gpus[1000] = {0};
	struct error err = {0};
	bool shared;

	for (int i = 0; i < 1000; i++) {
		memset(rank_gpus[i].host, 'h', sizeof rank_gpus[i].host - 1);
		memset(rank_gpus[i].uuid, 'u', sizeof rank_gpus[i].uuid - 1);
		rank_gpus[i].version = NEW;
	}
	assert_int_equal(gpus_check(rank_gpus, 1000, false, &shared, &err), -ERR_UNAVAILABLE);
	assert_non_null(strstr(err.text, "more"));
	assert_non_null(strstr(err.text, "--comm mpi"));
}

static void test_words(void **state)
{
	const unsigned char uuid[16] = {0x8a, 0x1b, 0x2c, 0x3d, 0, 1, 2,  3,
					4,    5,    6,	  7,	8, 9, 10, 255};
	char text[48];

	gpu_uuid_text(uuid, text);
	assert_string_equal(text, "GPU-8a1b2c3d-0001-0203-0405-060708090aff");
	gpu_version_text(22809, text);
	assert_string_equal(text, "2.28.9");
	gpu_version_text(2708, text); /* before 2.9 */
	assert_string_equal(text, "2.7.8");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_many),
		cmocka_unit_test(test_words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
