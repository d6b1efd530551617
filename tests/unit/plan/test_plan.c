/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks per node, the plan of all nodes, and the plan as JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "inventories.h"
#include "plan/plan_internal.h"

#define MAX_NODES 4

/* ---- how many ranks a node gets ---- */

static struct inventory with_gpus(int gpus)
{
	struct inventory inventory = make_inventory("node", 1, 1, 4, 1);

	for (int g = 0; g < gpus; g++) {
		char pci[20];

		snprintf(pci, sizeof pci, "0000:%02x:00.0", g + 1);
		make_gpu(&inventory, pci, 0);
	}
	return inventory;
}

static void test_spread(void **state)
{
	static const struct {
		int gpus[MAX_NODES]; /* -1 ends the nodes */
		int slots[MAX_NODES];
		struct plan_request request;
		const char *expected, *reason;
	} table[] = {
		{{4, 4, -1}, .expected = "4 4", .reason = "one rank per GPU"},
		{{4, 2, -1}, .slots = {9, 9}, .expected = "4 2", .reason = "GPUs before slots"},
		{{0, 0, -1},
		 .slots = {3, 9},
		 .expected = "3 4",
		 .reason = "one rank per slot, at most one per core"},
		{{0, -1}, .expected = "1", .reason = "slots unknown"},
		{{4, 4, -1},
		 .request = {.gpus_per_rank = 2},
		 .expected = "2 2",
		 .reason = "one rank per pair of GPUs"},
		{{4, 4, -1},
		 .request = {.ranks = 8},
		 .expected = "4 4",
		 .reason = "one rank on each GPU"},
		{{4, 4, -1},
		 .request = {.ranks = 5},
		 .expected = "3 2",
		 .reason = "the first node gets the odd rank"},
		{{4, 4, -1},
		 .request = {.ranks = 2},
		 .expected = "1 1",
		 .reason = "spread, not packed"},
		{{4, 2, -1},
		 .request = {.ranks = 3},
		 .expected = "2 1",
		 .reason = "in proportion to the GPUs"},
		{{4, 2, -1},
		 .request = {.ranks = 12},
		 .expected = "8 4",
		 .reason = "in proportion also with more ranks than GPUs"},
		{{4, 4, 4, -1},
		 .request = {.ranks = 2},
		 .expected = "1 1 0",
		 .reason = "fewer ranks than nodes"},
		{{4, 4, -1},
		 .request = {.ranks_per_node = 3},
		 .expected = "3 3",
		 .reason = "as requested"},
		{{4, 4, -1},
		 .request = {.ranks_per_node = 3, .ranks = 4},
		 .expected = "3 1",
		 .reason = "both options"},
		{{4, 4, -1},
		 .request = {.ranks_per_node = 3, .ranks = 7},
		 .expected = "7 ranks do not fit on 2 nodes with --ranks-per-node 3",
		 .reason = "too many"},
		{{4, 4, -1},
		 .request = {.per_node = true},
		 .expected = "1 1",
		 .reason = "one process per node"},
		{{4, 4, -1},
		 .request = {.per_node = true, .ranks = 6},
		 .expected = "1 1",
		 .reason = "for 3 workers each"},
		{{4, 4, -1},
		 .request = {.per_node = true, .ranks = 7},
		 .expected = "7 ranks do not divide evenly",
		 .reason = "not divisible"},
		{{4, -1},
		 .request = {.ranks = 5000},
		 .expected = "5000 ranks on one node, expected at most 4096",
		 .reason = "a typing error"},
		{{4, -1},
		 .request = {.ranks = -1},
		 .expected = "is negative",
		 .reason = "negative"},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct inventory inventories[MAX_NODES];
		struct alloc_node nodes[MAX_NODES];
		struct alloc alloc = {.nodes = nodes};
		int counts[MAX_NODES] = {0};
		struct error err = {0};
		char text[1100] = "";
		size_t used = 0;

		for (; alloc.node_count < MAX_NODES && table[i].gpus[alloc.node_count] >= 0;
		     alloc.node_count++) {
			inventories[alloc.node_count] = with_gpus(table[i].gpus[alloc.node_count]);
			nodes[alloc.node_count] =
				(struct alloc_node){inventories[alloc.node_count].node,
						    table[i].slots[alloc.node_count], -1};
		}
		if (plan_rank_counts(&alloc, inventories, alloc.node_count, &table[i].request,
				     counts, &err))
			snprintf(text, sizeof text, "%s", err.text);
		else
			for (size_t n = 0; n < alloc.node_count; n++)
				used += (size_t)snprintf(text + used, sizeof text - used, "%s%d",
							 n ? " " : "", counts[n]);
		if (err.code ? !strstr(text, table[i].expected) : strcmp(text, table[i].expected))
			fail_msg("row %zu (%s): expected '%s', got '%s'", i, table[i].reason,
				 table[i].expected, text);
		for (size_t n = 0; n < alloc.node_count; n++)
			inventory_free(&inventories[n]);
	}
}

/* ---- the plan of several nodes ---- */

struct job {
	struct inventory inventories[MAX_NODES];
	struct alloc_node nodes[MAX_NODES];
	struct alloc alloc;
	struct plan_request request;
	struct plan plan;
};

static void job_make(struct job *job, size_t count)
{
	struct error err = {0};

	job->alloc.job_id = (char *)(uintptr_t) "77";
	job->alloc.node_count = count;
	job->alloc.nodes = job->nodes;
	for (size_t n = 0; n < count; n++)
		job->nodes[n] = (struct alloc_node){job->inventories[n].node, 0, -1};
	if (plan_make(&job->alloc, job->inventories, count, &job->request, NULL, NULL, &job->plan,
		      &err))
		fail_msg("%s", err.text);
}

static void job_request_end(struct job *job)
{
	for (size_t n = 0; n < job->alloc.node_count; n++)
		inventory_free(&job->inventories[n]);
	plan_free(&job->plan);
}

/* Each node gets the same plan as it would get alone. */
static void test_copies(void **state)
{
	struct job job = {.request = {0}};

	for (int n = 0; n < MAX_NODES; n++)
		job.inventories[n] = make_cluster(n);
	/* Two nodes that differ from the others. */
	job.inventories[2].gpus[3].fault = strdup("lost");
	set_path(&job.inventories[3], 0, 0, PATH_SYS);
	set_path(&job.inventories[3], 0, 5, PATH_PIX);
	job_make(&job, MAX_NODES);
	for (size_t n = 0; n < MAX_NODES; n++) {
		struct plan_node alone = {0}, *node = &job.plan.nodes[n];
		struct error err = {0};
		json_t *a, *b;

		assert_int_equal(plan_map_node(&job.inventories[n], &job.request,
					       node->ranks[0].rank, (int)node->rank_count, &alone,
					       &err),
				 0);
		memcpy(alone.iface, node->iface, sizeof alone.iface);
		a = plan_node_to_json(&alone);
		b = plan_node_to_json(node);
		assert_true(json_equal(a, b));
		json_decref(a);
		json_decref(b);
		plan_node_free(&alone);
	}
	assert_int_equal(job.plan.nodes[2].rank_count, 7);
	assert_int_equal(job.plan.world_size, 31);
	assert_string_equal(job.plan.network.address, "10.0.0.1");
	job_request_end(&job);
}

/* Warn if there are fewer ranks than nodes, but not about spares. */
static void test_idle_nodes(void **state)
{
	static const struct {
		struct plan_request request;
		const char *warning; /* NULL: none */
	} table[] = {
		{{.ranks = 2}, "1 of 3 nodes get no rank: there are fewer ranks than nodes"},
		{{.ranks = 1}, "2 of 3 nodes get no rank: there are fewer ranks than nodes"},
		{{.ranks = 2, .part = true}, NULL},
		{{.ranks = 4, .spares = 1}, NULL},
		{{.ranks = 2, .spares = 1}, NULL},
		{{.ranks = 1, .spares = 2}, NULL},
		{{.per_node = true, .spares = 1}, NULL},
		{{.ranks = 1, .spares = 1},
		 "1 of 2 nodes get no rank: there are fewer ranks than nodes, not counting spares"},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct job job = {.request = table[i].request};
		const char *want = table[i].warning, *got;

		for (int n = 0; n < 3; n++)
			job.inventories[n] = make_cluster(n);
		job_make(&job, 3);
		got = job.plan.warning_count ? job.plan.warnings[0] : NULL;
		if (job.plan.warning_count > 1 || !want != !got || (want && strcmp(want, got)))
			fail_msg("row %zu: '%s'", i, got ? got : "(no warning)");
		assert_int_equal(job.plan.nodes[2].rank_count, 0);
		job_request_end(&job);
	}
}

/* ---- what other runs use ---- */

/* A claim on the first GPUs of node n. */
static void claim_first(struct inventory *inventory, int count)
{
	json_t *gpus = json_array(), *claims;
	struct error err;

	for (int g = 0; g < count; g++)
		json_array_append_new(gpus, inventory->gpus[g].uuid
						    ? json_string(inventory->gpus[g].uuid)
						    : json_sprintf("%s/%d", inventory->gpus[g].pci,
								   inventory->gpus[g].index));
	claims = json_pack("[{s:s, s:o}]", "by", "process 7 on n1", "uses", gpus);
	assert_int_equal(plan_apply_claims(inventory, claims, &err), 0);
	json_decref(claims);
}

static void test_claims(void **state)
{
	static const struct {
		int nodes, claimed[3];
		struct plan_request request;
		bool fits;
		const char *counts; /* if it fits */
	} table[] = {
		/* 8 GPUs per node */
		{1, .request = {.ranks = 8}, .fits = true, .counts = "8"},
		{1, .claimed = {3}, .request = {.ranks = 5}, .fits = true, .counts = "5"},
		{1, .claimed = {3}, .request = {.ranks = 6}, .fits = false},
		{1, .claimed = {3}, .fits = true, .counts = "5"},
		{1, .claimed = {8}, .fits = false},
		{1, .claimed = {8}, .request = {.ranks = 1}, .fits = false},
		{1, .claimed = {5}, .request = {.ranks = 1, .gpus_per_rank = 3}, .fits = true,
		 .counts = "1"},
		{1, .claimed = {6}, .request = {.ranks = 1, .gpus_per_rank = 3}, .fits = false},
		{1, .claimed = {1}, .request = {.per_node = true}, .fits = false},
		{1, .request = {.per_node = true}, .fits = true, .counts = "1"},
		{2, .claimed = {8, 0}, .request = {.ranks = 1}, .fits = true, .counts = "0 1"},
		{2, .claimed = {8, 0}, .request = {.ranks = 8}, .fits = true, .counts = "0 8"},
		{2, .claimed = {8, 7}, .request = {.ranks = 2}, .fits = false},
		{2, .claimed = {8, 4}, .fits = true, .counts = "0 4"},
		{2, .claimed = {7, 6}, .fits = true, .counts = "1 2"},
		{2, .claimed = {7, 6}, .request = {.ranks_per_node = 1}, .fits = true,
		 .counts = "1 1"},
		{2, .claimed = {7, 6}, .request = {.ranks_per_node = 2}, .fits = false},
		{2, .claimed = {8, 8}, .request = {.ranks = 1}, .fits = false},
		/* several nodes, but not the first, at which they would meet */
		{3, .claimed = {8, 0, 0}, .request = {.ranks = 16}, .fits = false},
		{3, .claimed = {7, 0, 0}, .request = {.ranks = 17}, .fits = true,
		 .counts = "1 8 8"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct job job = {.request = table[i].request};
		size_t count = (size_t)table[i].nodes, used = 0;
		struct plan_fit fit;
		char counts[40] = "";
		bool claimed = false;

		for (size_t n = 0; n < count; n++) {
			job.inventories[n] = make_cluster((int)n);
			job.nodes[n] = (struct alloc_node){job.inventories[n].node, 0, -1};
			claim_first(&job.inventories[n], table[i].claimed[n]);
			claimed |= table[i].claimed[n] > 0;
		}
		job.alloc = (struct alloc){.node_count = count, .nodes = job.nodes};
		print_message("row %zu\n", i);
		fit = plan_fit(&job.alloc, job.inventories, count, &job.request);
		assert_int_equal(fit.fits, table[i].fits);
		assert_int_equal(strstr(fit.why, "process 7 on n1") != NULL, claimed);
		if (table[i].fits)
			job_make(&job, count);
		for (size_t n = 0; n < job.plan.node_count; n++)
			used += (size_t)snprintf(counts + used, sizeof counts - used, "%s%zu",
						 n ? " " : "", job.plan.nodes[n].rank_count);
		if (table[i].fits)
			assert_string_equal(counts, table[i].counts);
		for (size_t n = 0; table[i].fits && n < count; n++)
			for (size_t r = 0; r < job.plan.nodes[n].rank_count; r++)
				for (size_t g = 0; g < job.plan.nodes[n].ranks[r].gpu_count; g++)
					assert_true(job.plan.nodes[n].ranks[r].gpus[g].index >=
						    table[i].claimed[n]);
		if (table[i].fits && count > 1 && !job.plan.nodes[0].rank_count) {
			assert_true(job.plan.network.single_node);
			assert_string_equal(job.plan.network.address, "127.0.0.1");
		}
		job_request_end(&job);
	}
}

/* The user has divided the GPUs: what others use does not matter. */
static void test_claims_elsewhere(void **state)
{
	struct job job = {.request = {.ranks = 4}};
	struct plan_fit fit;

	(void)state;
	job.inventories[0] = make_cluster(0);
	job.nodes[0] = (struct alloc_node){job.inventories[0].node, 0, -1};
	for (int g = 0; g < 4; g++)
		job.inventories[0].gpus[g].allowed = false;
	claim_first(&job.inventories[0], 4);
	job.alloc = (struct alloc){.node_count = 1, .nodes = job.nodes};
	fit = plan_fit(&job.alloc, job.inventories, 1, &job.request);
	assert_true(fit.fits);
	assert_string_equal(fit.why, "");
	job_make(&job, 1);
	assert_null(strstr(job.plan.nodes[0].ranks[0].why, "other runs"));
	job_request_end(&job);
}

#define RUNS 16

/* Runs that wait start and end in any order: none gets a GPU, or without GPUs a core, of another,
 * and those with GPUs share no core either. */
static void test_runs_that_wait(void **state)
{
	(void)state;
	for (int kind = 0; kind < 4; kind++) {
		struct job job = {.request = {.part = true}};
		const int gpus[] = {4, 2, 0, 0}, slots[] = {0, 0, 4, 2};
		json_t *claims[RUNS] = {NULL};
		struct idset *cpus[RUNS] = {NULL};
		unsigned random = 1;
		int started = 0, refused = 0;

		job.inventories[0] = with_gpus(gpus[kind]);
		job.nodes[0] = (struct alloc_node){job.inventories[0].node, slots[kind], -1};
		job.alloc = (struct alloc){
			.job_id = (char *)(uintptr_t) "77", .node_count = 1, .nodes = job.nodes};
		for (int turn = 0; turn < 400; turn++) {
			int i = (int)((random = random * 1103515245 + 12345) >> 16) % RUNS;
			JSON_AUTO list = json_array();
			struct error err = {0};
			struct plan_fit fit;

			if (claims[i]) {
				json_decref(claims[i]);
				idset_free(cpus[i]);
				claims[i] = NULL;
				cpus[i] = NULL;
				continue;
			}
			for (int r = 0; r < RUNS; r++)
				if (claims[r])
					json_array_append(list, claims[r]);
			assert_int_equal(plan_apply_claims(&job.inventories[0], list, &err), 0);
			job.request.ranks = 1 + (int)(random >> 24) % 2;
			fit = plan_fit(&job.alloc, job.inventories, 1, &job.request);
			refused += !fit.fits;
			if (!fit.fits)
				continue;
			assert_int_equal(plan_make(&job.alloc, job.inventories, 1, &job.request,
						   NULL, NULL, &job.plan, &err),
					 0);
			claims[i] = plan_claim(&job.plan.nodes[0]);
			cpus[i] = idset_new();
			for (size_t r = 0; r < job.plan.nodes[0].rank_count; r++) {
				struct plan_rank *rank = &job.plan.nodes[0].ranks[r];

				assert_int_equal(rank->threads, kind % 2 ? 2 : 1);
				assert_false(idset_intersects(cpus[i], rank->cpus_os));
				idset_unite(cpus[i], rank->cpus_os);
			}
			for (int r = 0; r < RUNS; r++)
				assert_false(r != i && claims[r] &&
					     idset_intersects(cpus[r], cpus[i]));
			assert_int_equal(job.plan.warning_count + job.plan.nodes[0].warning_count,
					 0);
			plan_free(&job.plan);
			started++;
		}
		for (int i = 0; i < RUNS; i++) {
			json_decref(claims[i]);
			idset_free(cpus[i]);
		}
		assert_true(started > 40 && refused > 40);
		inventory_free(&job.inventories[0]);
	}
}

static void test_waits_for(void **state)
{
	static const struct {
		int claimed;
		struct plan_request request;
		bool fits;
		const char *need;
	} table[] = {
		/* 8 GPUs */
		{0, {.part = true}, true, "8 GPUs"},
		{1, {.part = true}, false, "8 GPUs"}, /* its default is the whole job */
		{7, {.part = true, .ranks = 1}, true, "1 GPU"},
		{7, {.part = true, .ranks = 2}, false, "2 GPUs"},
		{4, {.part = true, .ranks = 2, .gpus_per_rank = 2}, true, "4 GPUs"},
		/* more than there are: they share, also alone */
		{0, {.part = true, .ranks = 20}, true, "8 GPUs"},
		{1, {.part = true, .ranks = 20}, false, "8 GPUs"},
		{1, {.part = true, .ranks_per_node = 7}, true, "7 GPUs"},
		{1, {.part = true, .per_node = true}, false, "8 GPUs"},
	};

	(void)state;
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct job job = {.request = table[i].request};
		struct plan_fit fit;

		job.inventories[0] = make_cluster(0);
		job.nodes[0] = (struct alloc_node){job.inventories[0].node, 0, -1};
		claim_first(&job.inventories[0], table[i].claimed);
		job.alloc = (struct alloc){.node_count = 1, .nodes = job.nodes};
		fit = plan_fit(&job.alloc, job.inventories, 1, &job.request);
		print_message("row %zu\n", i);
		assert_int_equal(fit.fits, table[i].fits);
		assert_string_equal(fit.need, table[i].need);
		if (table[i].fits && table[i].request.ranks == 1) {
			job_make(&job, 1);
			assert_null(strchr(job.plan.nodes[0].visible_devices, ','));
		}
		job_request_end(&job);
	}
}

/* A core runs one rank unless the user says otherwise. */
static void test_fewer_ranks_than_tasks(void **state)
{
	struct error err = {0};

	for (int given = 0; given < 2; given++) {
		struct job job = {.request = {.ranks = given ? 9 : 0}};
		bool warned = false;

		job.inventories[0] = with_gpus(0);
		job.nodes[0] = (struct alloc_node){job.inventories[0].node, 9, -1};
		job.alloc = (struct alloc){
			.job_id = (char *)(uintptr_t) "77", .node_count = 1, .nodes = job.nodes};
		if (plan_make(&job.alloc, job.inventories, 1, &job.request, NULL, NULL, &job.plan,
			      &err))
			fail_msg("%s", err.text);
		for (size_t i = 0; i < job.plan.warning_count; i++)
			warned |= !strcmp(job.plan.warnings[i],
					  "4 ranks, although the scheduler granted 9 tasks: node "
					  "has 4 cores for 9 tasks. -n 9 starts as many ranks as "
					  "tasks");
		assert_int_equal(warned, !given);
		job_request_end(&job);
	}
}

/* GPU ranks with less than two cores each, on a node that has more. */
static void test_few_cores(void **state)
{
	static const struct {
		enum alloc_from source;
		int gpus, cores_of_node; /* of 4 cores that the job may use */
		struct plan_request request;
		const char *warning; /* its end, or NULL */
	} table[] = {
		{ALLOC_FROM_SLURM, 4, 64, .warning = "#SBATCH --cpus-per-gpu=16"},
		{ALLOC_FROM_PBS, 4, 64, .warning = "-l select=1:ncpus=64:ngpus=4"},
		{ALLOC_FROM_SLURM, 4, 64, .request = {.per_node = true},
		 .warning = "#SBATCH --cpus-per-gpu=16"},
		{ALLOC_FROM_SLURM, 3, 64, .warning = "#SBATCH --cpus-per-gpu=21"},
		{ALLOC_FROM_SLURM, 2, 64, .warning = NULL},			     /* two each */
		{ALLOC_FROM_SLURM, 4, 64, .request = {.ranks = 2}, .warning = NULL}, /* two each */
		{ALLOC_FROM_SLURM, 4, 4, .warning = NULL},  /* the node has no more */
		{ALLOC_FROM_SLURM, 4, 7, .warning = NULL},  /* nor enough for all its GPUs */
		{ALLOC_FROM_SLURM, 4, -1, .warning = NULL}, /* unknown */
		{ALLOC_FROM_SLURM, 0, 64, .request = {.ranks = 4}, .warning = NULL}, /* no GPUs */
		{ALLOC_FROM_LOCAL, 4, 64, .warning = NULL}, /* nothing to request it from */
		{ALLOC_FROM_NOWHERE, 4, 64, .warning = NULL},
	};

	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		struct job job = {.request = table[i].request};
		const char *got = NULL;

		job.inventories[0] = with_gpus(table[i].gpus);
		job.inventories[0].node_core_count = table[i].cores_of_node;
		job.alloc.source = table[i].source;
		job_make(&job, 1);
		for (size_t w = 0; w < job.plan.warning_count; w++)
			if (strstr(job.plan.warnings[w], "data loaders will be slow"))
				got = job.plan.warnings[w];
		print_message("row %zu: %s\n", i, got ? got : "(no warning)");
		assert_int_equal(!got, !table[i].warning);
		if (got)
			assert_string_equal(got + strlen(got) - strlen(table[i].warning),
					    table[i].warning);
		if (!i)
			assert_string_equal(
				got, "the job has 4 cores on node for 4 processes with GPUs, "
				     "although the node has 64: data loaders will be slow. Request "
				     "more cores with #SBATCH --cpus-per-gpu=16");
		job_request_end(&job);
	}
}

static void test_mixed_fabrics(void **state)
{
	struct job job = {.request = {0}};

	job.inventories[0] = make_cluster(0);
	job.inventories[1] = make_cluster(1);
	for (int n = 0; n < 8; n++)
		job.inventories[1].nics[n].kind = NIC_SLINGSHOT;
	job_make(&job, 2);
	assert_int_equal(job.plan.warning_count, 1);
	assert_non_null(strstr(job.plan.warnings[0], "gpu00000 has InfiniBand but gpu00001 has "
						     "Slingshot"));
	job_request_end(&job);
}

/* ---- JSON ---- */

/* Each node's part of a plan is the same after it was written, read and written again. */
static void test_round_trip(void **state)
{
	struct job job = {.request = {.ranks = 20, .port = 29500, .attempt = 3}};

	job.alloc.end_time = 1800000000;
	for (int n = 0; n < 3; n++)
		job.inventories[n] = make_cluster(n);
	job.inventories[1].nics[2].state = NIC_STATE_DOWN;
	job.inventories[1].nics[3].state = NIC_STATE_UNKNOWN;
	job_make(&job, 3);
	for (size_t n = 0; n < 3; n++) {
		const struct plan_node *node = &job.plan.nodes[n];
		struct plan back = {0};
		struct error err = {0};
		size_t index = 77;
		json_t *out = plan_file_to_json(&job.plan, n), *again;

		assert_non_null(out);
		if (plan_file_from_json(out, &back, &index, &err))
			fail_msg("%s", err.text);
		assert_int_equal(index, n);
		again = plan_file_to_json(&back, n);
		assert_true(json_equal(out, again));
		assert_int_equal(back.world_size, 20);
		assert_int_equal(back.end_time, 1800000000);
		assert_int_equal(back.node_count, 3);
		assert_int_equal(back.nodes[n].rank_count, node->rank_count);
		assert_true(idset_equal(back.nodes[n].ranks[1].cpus_os, node->ranks[1].cpus_os));
		assert_int_equal(back.nodes[n].ranks[1].nics[0].state,
				 node->ranks[1].nics[0].state);
		json_decref(out);
		json_decref(again);
		plan_free(&back);
	}
	job_request_end(&job);
}

/* The job's part counts only nodes with ranks; that of a node without ranks can be read, too. */
static void test_round_trip_idle(void **state)
{
	static const struct {
		size_t node, index, ranks;
	} table[] = {{0, 0, 8}, {1, 0, 0}, {2, 1, 8}, {3, 0, 0}};
	struct job job = {.request = {.ranks = 16, .spares = 1}};

	for (int n = 0; n < 4; n++)
		job.inventories[n] = make_cluster(n);
	claim_first(&job.inventories[1], 8);
	job_make(&job, 4);
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		json_t *out = plan_file_to_json(&job.plan, table[i].node), *again;
		struct plan back = {0};
		struct error err = {0};
		size_t index = 77;

		if (plan_file_from_json(out, &back, &index, &err))
			fail_msg("row %zu: %s", i, err.text);
		again = plan_file_to_json(&back, index);
		assert_true(json_equal(out, again));
		assert_int_equal(back.node_count, 2);
		assert_int_equal(index, table[i].index);
		assert_int_equal(back.nodes[index].rank_count, table[i].ranks);
		json_decref(out);
		json_decref(again);
		plan_free(&back);
	}
	job_request_end(&job);
}

/* berth.plan/1 has the documented keys. */
static void test_schema(void **state)
{
	static const char *const rank_keys[] = {"local_rank", "gpus", "cpus", "numa",
						"threads",    "nics", "why"};
	static const char *const gpu_keys[] = {"pci", "index", "ordinal", "uuid"};
	static const char *const nic_keys[] = {"net", "rdma", "port", "pci", "kind", "path", "up"};
	struct job job = {.request = {0}};
	json_t *node, *rank;

	job.inventories[0] = make_cluster(0);
	job_make(&job, 1);
	node = plan_node_to_json(&job.plan.nodes[0]);
	assert_string_equal(json_string_value(json_object_get(node, "schema")), "berth.plan/1");
	assert_true(json_is_array(json_object_get(node, "warnings")));
	rank = json_array_get(json_object_get(node, "ranks"), 7);
	for (size_t i = 0; i < sizeof rank_keys / sizeof *rank_keys; i++)
		assert_non_null(json_object_get(rank, rank_keys[i]));
	for (size_t i = 0; i < sizeof gpu_keys / sizeof *gpu_keys; i++)
		assert_non_null(json_object_get(json_array_get(json_object_get(rank, "gpus"), 0),
						gpu_keys[i]));
	for (size_t i = 0; i < sizeof nic_keys / sizeof *nic_keys; i++)
		assert_non_null(json_object_get(json_array_get(json_object_get(rank, "nics"), 0),
						nic_keys[i]));
	json_decref(node);
	job_request_end(&job);
}

/* If a part of a plan is damaged, the error names the member, and the output stays empty. */
static void test_damage(void **state)
{
	static const struct {
		const char *path;  /* members and indices */
		const char *value; /* JSON; NULL: the member is removed */
		const char *said;
	} table[] = {
		{"schema", "\"berth.plan/2\"", "schema"},
		{"job", NULL, "job"},
		{"job.world_size", "7", "rank 7 of 7"},
		{"job.world_size", "-1", "world_size"},
		{"job.port", "65536", "port"},
		{"job.end_time", "1.5", "end_time"},
		{"job.network", NULL, "network"},
		{"job.network.address", "5", "address"},
		{"job.network.kind", "\"carrier-pigeon\"", "kind"},
		{"job.network.single_node", "1", "single_node"},
		{"job.node_count", "0", "node_count"},
		{"job.node_index", "1", "node_index"},
		{"node", NULL, "node"},
		{"ranks", "{}", "ranks"},
		{"iface", "\"a-name-of-sixteen\"", "iface"},
		{"ranks.0", "null", "rank"},
		{"ranks.1.rank", "2", "index 1 has rank 2"},
		{"ranks.0.local_rank", "1", "local rank 1"},
		{"ranks.0.cpus", "\"0-\"", "rank of a plan"},
		{"ranks.0.cpus", "\"0-70000\"", "rank of a plan"},
		{"ranks.0.threads", "true", "threads"},
		{"ranks.0.gpus.0.pci", "\"0000:00:00.0000000000\"", "pci"},
		{"ranks.0.gpus.0.index", "-1", "index"},
		{"ranks.0.nics.0.up", "\"yes\"", "up"},
		{"ranks.0.nics.0.path", "\"NEAR\"", "path"},
		{"warnings", "[1]", "warnings"},
		{"warnings", "[null]", "warnings"},
		{"warnings", NULL, "warnings"},
	};
	struct job job = {.request = {0}};
	json_t *good;

	job.inventories[0] = make_cluster(0);
	job_make(&job, 1);
	good = plan_file_to_json(&job.plan, 0);
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		json_t *bad = json_deep_copy(good), *at = bad;
		json_t *value =
			table[i].value ? json_loads(table[i].value, JSON_DECODE_ANY, NULL) : NULL;
		char copy[128], *rest = copy, *part;
		struct plan plan = {0};
		struct error err = {0};
		size_t index;

		snprintf(copy, sizeof copy, "%s", table[i].path);
		while ((part = strsep(&rest, ".")) && rest)
			at = json_is_array(at) ? json_array_get(at, (size_t)atoi(part))
					       : json_object_get(at, part);
		if (json_is_array(at))
			json_array_set(at, (size_t)atoi(part), value);
		else if (value)
			json_object_set(at, part, value);
		else
			json_object_del(at, part);
		assert_int_equal(plan_file_from_json(bad, &plan, &index, &err), -ERR_DATA);
		if (!strstr(err.text, table[i].said))
			fail_msg("%s: '%s' does not contain '%s'", table[i].path, err.text,
				 table[i].said);
		assert_null(plan.nodes);
		json_decref(value);
		json_decref(bad);
	}
	json_decref(good);
	job_request_end(&job);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spread),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_idle_nodes),
		cmocka_unit_test(test_claims),
		cmocka_unit_test(test_claims_elsewhere),
		cmocka_unit_test(test_runs_that_wait),
		cmocka_unit_test(test_waits_for),
		cmocka_unit_test(test_mixed_fabrics),
		cmocka_unit_test(test_fewer_ranks_than_tasks),
		cmocka_unit_test(test_few_cores),
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_round_trip_idle),
		cmocka_unit_test(test_schema),
		cmocka_unit_test(test_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
