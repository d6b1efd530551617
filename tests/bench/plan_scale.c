/* SPDX-License-Identifier: BSD-3-Clause */
/* How the cost of host lists, planning and the choice of the network grows with the number of
 * nodes. Inventories are in memory; no processes are started.
 *
 *   plan_scale            100 to 10,000 nodes, a table
 *   plan_scale NODES      that many, once, with checked results (a test, not timed)
 *
 * It measures hostlist_expand of one expression, then plan_make for all nodes (ranks per node,
 * binding of 8 ranks each, rendezvous address, each node's interface). Each size runs in its own
 * process, because a job's controller plans once; the best of three runs counts. Peak memory is
 * that process's, including the inventories. Making the inventories is not measured. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../unit/plan/inventories.h"
#include "hostlist/hostlist.h"
#include "base/number.h"

#define RANKS 8

struct timing {
	double hosts_ms, plan_ms, network_ms;
	long peak_kib;
};

static double now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static int wrong(const char *what, size_t node)
{
	fprintf(stderr, "plan_scale: %s (node %zu)\n", what, node);
	return -1;
}

/* Node n has ranks 8n to 8n+7, rank r of it GPU r with NIC ib<r> and 16 cores; the rendezvous
 * address is ib0's. */
static int check(const struct plan *plan, const struct hosts *hosts)
{
	if (strcmp(plan->network.address, "10.0.0.1") ||
	    strcmp(plan->network.subnet, "10.0.0.0/16"))
		return wrong(plan->network.address, 0);
	if (plan->world_size != (int)plan->node_count * RANKS || plan->warning_count)
		return wrong("world size or warnings", 0);
	for (size_t n = 0; n < plan->node_count; n++) {
		const struct plan_node *node = &plan->nodes[n];
		char uuid[64];

		if (strcmp(node->node, hosts->names[n]) || strcmp(node->iface, "ib0") ||
		    strcmp(node->visible_devices, "0,1,2,3,4,5,6,7") || node->rank_count != RANKS)
			return wrong("name, interface or devices", n);
		for (int r = 0; r < RANKS; r++) {
			const struct plan_rank *rank = &node->ranks[r];

			snprintf(uuid, sizeof uuid, "GPU-%08zx-%04x-0000-0000-000000000000", n, r);
			if (rank->rank != (int)n * RANKS + r || rank->threads != 16 ||
			    rank->gpu_count != 1 || strcmp(rank->gpus[0].uuid, uuid) ||
			    rank->nic_count != 1 || rank->nics[0].net[2] != '0' + r ||
			    idset_next(rank->cpus_os, -1) != r * 16)
				return wrong("a rank's GPU, cores or NIC", n);
		}
	}
	return 0;
}

static int measure(size_t count, const struct inventory *inventories, struct timing *out)
{
	struct alloc alloc = {.node_count = count, .end_time = 0};
	struct plan_request request = {0};
	struct plan_network network = {0};
	struct plan plan = {0};
	struct hosts hosts = {0};
	struct error err = {0};
	struct rusage usage;
	char expr[64], job[] = "bench";
	double start = now_ms(), middle;
	int rc;

	snprintf(expr, sizeof expr, "gpu[00000-%05zu]", count - 1);
	if (hostlist_expand(expr, &hosts, &err) || hosts.count != count)
		return wrong(err.text, 0);
	out->hosts_ms = now_ms() - start;
	alloc.job_id = job;
	alloc.nodes = calloc(count, sizeof *alloc.nodes);
	if (!alloc.nodes)
		return wrong("memory", 0);
	for (size_t n = 0; n < count; n++)
		alloc.nodes[n] = (struct alloc_node){hosts.names[n], RANKS, RANKS};
	start = now_ms();
	rc = plan_make(&alloc, inventories, count, &request, NULL, NULL, &plan, &err);
	out->plan_ms = now_ms() - start;
	if (rc)
		return wrong(err.text, 0);
	middle = now_ms();
	rc = plan_network(inventories, count, &request, NULL, &network, &err);
	out->network_ms = now_ms() - middle; /* part of plan_ms, measured again separately */
	getrusage(RUSAGE_SELF, &usage);
	out->peak_kib = usage.ru_maxrss;
	if (!rc)
		rc = check(&plan, &hosts);
	plan_network_free(&network);
	plan_free(&plan);
	hosts_free(&hosts);
	free(alloc.nodes);
	return rc;
}

static int run(size_t count, struct timing *timing)
{
	struct inventory *inventories = calloc(count, sizeof *inventories);
	int rc = -1;

	for (size_t n = 0; inventories && n < count; n++)
		inventories[n] = make_cluster((int)n);
	if (inventories)
		rc = measure(count, inventories, timing);
	for (size_t n = 0; inventories && n < count; n++)
		inventory_free(&inventories[n]);
	free(inventories);
	return rc;
}

/* run in a child, for its own peak memory and cold caches. */
static int run_apart(size_t count, struct timing *timing)
{
	int ends[2], status = 1;
	ssize_t got;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0 || (child = fork()) < 0) {
		perror("plan_scale");
		return -1;
	}
	if (!child) {
		struct timing mine = {0};

		_exit(run(count, &mine) || write(ends[1], &mine, sizeof mine) != sizeof mine);
	}
	close(ends[1]);
	got = read(ends[0], timing, sizeof *timing);
	close(ends[0]);
	waitpid(child, &status, 0);
	return got == (ssize_t)sizeof *timing && !status ? 0 : -1;
}

static int best_of_three(size_t count, struct timing *best)
{
	for (int i = 0; i < 3; i++) {
		struct timing timing;

		if (run_apart(count, &timing))
			return -1;
		if (!i || timing.hosts_ms + timing.plan_ms < best->hosts_ms + best->plan_ms)
			*best = timing;
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const size_t sizes[] = {100, 300, 1000, 3000, 10000};
	struct timing timing = {0};
	struct error err = {0};
	int nodes;

	if (argc > 1) {
		if (number_int("NODES", argv[1], 1, 62500, &nodes, &err)) {
			fprintf(stderr, "plan_scale: %s\n", err.text);
			return 64;
		}
		return run((size_t)nodes, &timing) ? 1 : 0;
	}
	printf("%8s %12s %12s %14s %12s %14s\n", "nodes", "hosts ms", "plan ms", "(network ms)",
	       "us per node", "peak MiB");
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		if (best_of_three(sizes[i], &timing))
			return 1;
		printf("%8zu %12.2f %12.2f %14.2f %12.2f %14.1f\n", sizes[i], timing.hosts_ms,
		       timing.plan_ms, timing.network_ms,
		       (timing.hosts_ms + timing.plan_ms) * 1e3 / (double)sizes[i],
		       (double)timing.peak_kib / 1024);
		fflush(stdout);
	}
	return 0;
}
