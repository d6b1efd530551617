/* SPDX-License-Identifier: BSD-3-Clause */
/* What rank 0 decides from what the ranks have: jobs that can train, and jobs that cannot. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "train/comm/meeting.h"

#define GPU(node, uuid)                                                                            \
	{                                                                                          \
		node, "cuda", "nccl", "NCCL 2.28", uuid, "",                                       \
		{                                                                                  \
			0                                                                          \
		}                                                                                  \
	}

/* Their values are in the facts. */
static const struct meeting_setting settings[] = {{"--batch", 0, false}, {"--augment", 0, true}};

struct row {
	const char *name;
	int size;
	struct meeting_facts facts[4];
	bool allow;
	int code, first;
	bool shared, one_node;
	const char *says[4];
};

static const struct row rows[] = {
	{.name = "one GPU each",
	 .size = 3,
	 .facts = {GPU("a", "GPU-1"), GPU("a", "GPU-2"), GPU("b", "GPU-3")}},
	{.name = "alone", .size = 1, .facts = {GPU("a", "GPU-1")}, .one_node = true},
	{.name = "two ranks on one GPU",
	 .size = 3,
	 .facts = {GPU("a", "GPU-2"), GPU("a", "GPU-1"), GPU("a", "GPU-2")},
	 .code = ERR_UNAVAILABLE,
	 .shared = true,
	 .one_node = true,
	 .says = {"1 GPU is used by more than one rank", "rank 0  a  GPU-2; rank 2  a  GPU-2",
		  "LOCAL_RANK", "--allow-shared-gpu"}},
	{.name = "allowed",
	 .size = 2,
	 .facts = {GPU("a", "GPU-1"), GPU("a", "GPU-1")},
	 .allow = true,
	 .shared = true,
	 .one_node = true},
	{.name = "allowed, but not needed",
	 .size = 2,
	 .facts = {GPU("a", "GPU-1"), GPU("a", "GPU-2")},
	 .allow = true,
	 .one_node = true},
	{.name = "containers of one machine have different host names",
	 .size = 2,
	 .facts = {GPU("pod-0", "GPU-1"), GPU("pod-1", "GPU-1")},
	 .code = ERR_UNAVAILABLE,
	 .shared = true,
	 .says = {"rank 0  pod-0  GPU-1; rank 1  pod-1  GPU-1"}},
	{.name = "two GPUs with two ranks each",
	 .size = 4,
	 .facts = {GPU("a", "GPU-1"), GPU("a", "GPU-2"), GPU("a", "GPU-1"), GPU("a", "GPU-2")},
	 .code = ERR_UNAVAILABLE,
	 .shared = true,
	 .one_node = true,
	 .says = {"several GPUs are used",
		  "rank 0  a  GPU-1; rank 2  a  GPU-1; rank 1  a  GPU-2; rank 3"}},
	{.name = "two MIG devices of one GPU",
	 .size = 2,
	 .facts = {GPU("a", "MIG-1"), GPU("a", "MIG-2")},
	 .one_node = true},
	{.name = "unknown UUIDs are not equal",
	 .size = 2,
	 .facts = {GPU("a", ""), GPU("a", "")},
	 .one_node = true},
	{.name = "incompatible libraries",
	 .size = 3,
	 .facts = {GPU("a", "GPU-1"), GPU("b", "GPU-2"), {"c", "cuda", "nccl", "NCCL 2.27"}},
	 .code = ERR_UNAVAILABLE,
	 .says = {"rank 0 on a has NCCL 2.28, but rank 2 on c has NCCL 2.27", "LD_LIBRARY_PATH"}},
	{.name = "one has no GPU",
	 .size = 2,
	 .facts = {GPU("a", "GPU-1"), {"b", "cpu", "gloo", "", "", "no driver"}},
	 .code = ERR_UNAVAILABLE,
	 .says = {"rank 0 on a would train on cuda, but rank 1 on b cpu (no driver)"}},
	{.name = "rank 0 has no GPU",
	 .size = 2,
	 .facts = {{"a", "cpu", "gloo", "", "", "no driver"}, GPU("b", "GPU-1")},
	 .code = ERR_UNAVAILABLE,
	 .says = {"rank 0 on a would train on cpu, but rank 1 on b cuda (no driver)"}},
	{.name = "one has no NCCL",
	 .size = 2,
	 .facts = {GPU("a", "GPU-1"), {"b", "cuda", "mpi", "", "", "no NCCL"}},
	 .code = ERR_UNAVAILABLE,
	 .says = {"would communicate over nccl, but rank 1 on b mpi (no NCCL)"}},
	{.name = "a setting differs",
	 .size = 2,
	 .facts = {{.host = "a", .settings = {8, 1}}, {.host = "b", .settings = {16, 1}}},
	 .code = ERR_DATA,
	 .says = {"differ in --batch: rank 0 has 8, rank 1 has 16. "}},
	{.name = "a fingerprint differs",
	 .size = 3,
	 .facts = {{.host = "a", .settings = {8, 1}},
		   {.host = "b", .settings = {8, 1}},
		   {.host = "c", .settings = {8, 2}}},
	 .code = ERR_DATA,
	 .says = {"differ in --augment: rank 2 does not match rank 0. "}},
	{.name = "one cannot take part",
	 .size = 2,
	 .facts = {GPU("a", "GPU-1"), {.host = "b", .err = {ERR_DATA, "its data are missing"}}},
	 .code = ERR_DATA,
	 .first = 1,
	 .says = {"its data are missing"}},
};

static struct meeting *decide(const struct meeting_facts *facts, int size, bool allow)
{
	struct meeting *out = calloc(1, sizeof *out + (size_t)size * sizeof *out->hosts);

	assert_non_null(out);
	const struct meeting_rules rules = {settings, 2, allow};

	meeting_decide(facts, size, &rules, out);
	return out;
}

static void test_rows(void **state)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const struct row *row = &rows[i];
		struct meeting *out = decide(row->facts, row->size, row->allow);

		if (out->err.code != row->code || out->first != row->first ||
		    out->shared_gpu != row->shared || out->one_node != row->one_node)
			fail_msg("%s: %d by %d, shared %d, one node %d: %s", row->name,
				 out->err.code, out->first, out->shared_gpu, out->one_node,
				 out->err.text);
		for (int s = 0; s < 4 && row->says[s]; s++)
			if (!strstr(out->err.text, row->says[s]))
				fail_msg("%s: \"%s\" has no \"%s\"", row->name, out->err.text,
					 row->says[s]);
		assert_string_equal(out->hosts[row->size - 1], row->facts[row->size - 1].host);
		free(out);
	}
}

/* A large job on one GPU: the list is truncated, but the advice is still there. */
static void test_many(void **state)
{
	struct meeting_facts *facts = calloc(1000, sizeof *facts);

	assert_non_null(facts);
	for (int i = 0; i < 1000; i++) {
		memset(facts[i].host, 'h', sizeof facts[i].host - 1);
		memset(facts[i].gpu, 'u', sizeof facts[i].gpu - 1);
	}

	struct meeting *out = decide(facts, 1000, false);

	assert_int_equal(out->err.code, ERR_UNAVAILABLE);
	assert_non_null(strstr(out->err.text, "more"));
	assert_non_null(strstr(out->err.text, "--comm mpi"));
	free(out);
	free(facts);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
