/* SPDX-License-Identifier: BSD-3-Clause */
/* berth's all-reduce over COMM (mpi, or gloo) compared with plain MPI_Allreduce in the same ranks:
 *     BERTH_MODULE_PATH=BUILD/lib/modules berth run -n 2 -- bench-all-reduce [MB] [TURNS] [COMM]
 * Reduces one buffer into a second one, as osu_allreduce does, and in place, as training needs it;
 * and the same elements as PyTorch's buckets of a ResNet-18 (2.1, 28.9 and the rest), begun one
 * after the other and finished together. The kinds take turns; a turn's time is that of the slower
 * rank. Prints medians, and the ratio of the faster plain one to ours. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../reference/reference.h"
#include "base/env.h"
#include "base/number.h"
#include "train/comm/meeting.h"
#include "train/device/device.h"

enum kind { RAW, RAW_IN_PLACE, OURS, RAW_BUCKETS, OURS_BUCKETS, KINDS };
static const char *const names[] = {"MPI_Allreduce", "MPI_Allreduce in place", "berth",
				    "MPI_Allreduce in place, 3 buckets", "berth, 3 buckets"};

struct bench {
	struct comm *comm;
	struct device_queue *queue;
	float *data, *second;
	float *ours; /* the comm's own memory, as for the trainer's gradients; or data */
	size_t count;
	int turns;
};

/* The buckets: bucket i ends after ends[i] elements. */
static int bucket_ends(enum kind kind, size_t count, size_t ends[3])
{
	if (kind == RAW || kind == RAW_IN_PLACE || kind == OURS) {
		ends[0] = count;
		return 1;
	}
	ends[0] = count * 44 / 1000;
	ends[1] = count * 661 / 1000;
	ends[2] = count;
	return 3;
}

static bool is_ours(enum kind kind)
{
	return kind == OURS || kind == OURS_BUCKETS;
}

static int reduce_once(struct bench *bench, enum kind kind, struct error *err)
{
	size_t ends[3], begin = 0;
	int n = bucket_ends(kind, bench->count, ends), rc = 0;
	bool ours = is_ours(kind);

	for (int i = 0; !rc && i < n; i++) {
		if (ours)
			rc = bench->comm->ops->all_reduce(bench->comm, bench->queue,
							  bench->ours + begin, ends[i] - begin,
							  ELEMENT_F32, COMM_SUM, err);
		else
			MPI_Allreduce(kind == RAW ? bench->second : MPI_IN_PLACE,
				      bench->data + begin, (int)(ends[i] - begin), MPI_FLOAT,
				      MPI_SUM, MPI_COMM_WORLD);
		begin = ends[i];
	}
	return rc || !ours ? rc : bench->comm->ops->finish(bench->comm, bench->queue, err);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Each turn makes one call of each kind; the first turn is not counted. */
static int measure(struct bench *bench, double *taken, struct error *err)
{
	for (int turn = -1; turn < bench->turns; turn++)
		for (int kind = 0; kind < KINDS; kind++) {
			/* Fill it again, or sums of sums become infinite. */
			for (size_t i = 0; i < bench->count; i++)
				bench->data[i] = bench->second[i] = bench->ours[i] =
					(float)(i % 1000);
			MPI_Barrier(MPI_COMM_WORLD);

			double begin = MPI_Wtime(), slower;
			int rc = reduce_once(bench, (enum kind)kind, err);

			if (rc)
				return rc;
			begin = MPI_Wtime() - begin;
			MPI_Allreduce(&begin, &slower, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
			const float *sums = is_ours((enum kind)kind) ? bench->ours : bench->data;

			for (size_t i = 0; i < bench->count; i++)
				if (sums[i] != (float)(i % 1000) * (float)bench->comm->size)
					return error_set(err, ERR_INTERNAL, "%s: element %zu is %g",
							 names[kind], i, sums[i]);
			if (turn >= 0)
				taken[kind * bench->turns + turn] = slower * 1000;
		}
	return 0;
}

static void say(const struct bench *bench, double *taken)
{
	double median[KINDS];

	for (int kind = 0; kind < KINDS; kind++) {
		double *mine = taken + kind * bench->turns;

		qsort(mine, (size_t)bench->turns, sizeof *mine, compare);
		median[kind] = mine[bench->turns / 2];
		printf("%-34s %7.1f ms  (fastest %.1f, slowest %.1f)\n", names[kind], median[kind],
		       mine[0], mine[bench->turns - 1]);
	}
	printf("%.1f MB, %d ranks, %d turns: ratio %.2f; in buckets %.2f (aim: 0.9)\n",
	       (double)bench->count * 4e-6, bench->comm->size, bench->turns,
	       (median[RAW] < median[RAW_IN_PLACE] ? median[RAW] : median[RAW_IN_PLACE]) /
		       median[OURS],
	       median[RAW_BUCKETS] / median[OURS_BUCKETS]);
}

int main(int argc, char **argv)
{
	struct error err = {0};
	struct bench bench = {.turns = 21};
	struct ranks_place place;
	struct device *device = NULL;
	double *taken = NULL;
	const char *comm = argc > 3 ? argv[3] : "mpi";
	int mb = 45, started = 0, finalised = 0;
	int rc = argc > 1 ? number_int("MB", argv[1], 1, 2000, &mb, &err) : 0;

	if (!rc && argc > 2)
		rc = number_int("TURNS", argv[2], 1, 1000, &bench.turns, &err);
	struct env *env = env_capture();

	bench.count = (size_t)mb * 250000;
	bench.data = malloc(bench.count * sizeof *bench.data);
	bench.second = malloc(bench.count * sizeof *bench.second);
	taken = malloc(sizeof *taken * KINDS * (size_t)bench.turns);
	if (!rc && (!bench.data || !bench.second || !taken || !env))
		rc = error_memory(&err, "the buffers");
	if (!rc)
		rc = place_from_env(env, &place, &err);
	if (!rc)
		rc = device_cpu_reference.device.open(0, &device, &err);
	if (!rc)
		rc = device->ops->queue_new(device, &bench.queue, &err);
	if (!rc) {
		struct comm_request request = {.rank = place.rank,
					       .size = place.size,
					       .local_rank = place.local_rank,
					       .timeout_ms = 60000,
					       .env = env};

		MPI_Init(NULL, NULL);
		struct meeting_facts facts = {0};
		const struct meeting_rules rules = {0};
		struct comm_choice choice;
		struct meeting *meeting;

		request.queue = bench.queue;
		rc = ranks_join_store(env, &request.ranks, &err);
		if (!rc)
			rc = comm_choose(comm, &request, env_get(env, "BERTH_MODULE_PATH"), &choice,
					 &err);
		if (!rc)
			meeting_describe(&choice, &request, &rules, &facts);
		if (!rc)
			rc = meeting_hold(request.ranks, &facts, &rules, 60000, &meeting, &err);
		request.meeting = meeting;
		if (!rc)
			rc = choice.ops->open(&request, &bench.comm, &err);
	}
	if (!rc && bench.comm->ops->memory)
		rc = bench.comm->ops->memory(bench.comm, bench.queue,
					     bench.count * sizeof *bench.data, (void **)&bench.ours,
					     &err);
	if (!bench.ours)
		bench.ours = bench.data;
	if (!rc)
		rc = measure(&bench, taken, &err);
	if (rc)
		fprintf(stderr, "bench-all-reduce: %s\n", err.text);
	else if (!place.rank)
		say(&bench, taken);
	if (bench.comm)
		bench.comm->ops->close(bench.comm);
	MPI_Initialized(&started);
	MPI_Finalized(&finalised);
	if (started && !finalised)
		MPI_Finalize();
	if (bench.queue)
		device->ops->queue_free(bench.queue);
	if (device)
		device->ops->close(device);
	env_free(env);
	free(bench.data);
	free(bench.second);
	free(taken);
	return -rc;
}
