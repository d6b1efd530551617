/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/shared_gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 8 /* of the table, to limit the length of the message */

void gpu_uuid_text(const unsigned char uuid[16], char *text)
{
	char *at = text + sprintf(text, "GPU");

	for (int i = 0; i < 16; i++)
		at += sprintf(at, "%s%02x",
			      i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

void gpu_version_text(int32_t version, char *text)
{
	int big = version >= 10000 ? 10000 : 1000;

	snprintf(text, 16, "%d.%d.%d", version / big, version % big / 100, version % 100);
}

static int by_uuid(const void *left, const void *right, void *context)
{
	const struct rank_gpu *rank_gpus = context;
	int a = *(const int *)left, b = *(const int *)right;
	int order = strcmp(rank_gpus[a].uuid, rank_gpus[b].uuid);

	return order ? order : a - b;
}

static int versions_check(const struct rank_gpu *rank_gpus, int count, struct error *err)
{
	char first[16], other[16];

	for (int rank = 1; rank < count; rank++) {
		if (rank_gpus[rank].version / 100 == rank_gpus[0].version / 100)
			continue;
		gpu_version_text(rank_gpus[0].version, first);
		gpu_version_text(rank_gpus[rank].version, other);
		return error_set(err, ERR_UNAVAILABLE,
				 "rank 0 on %s has NCCL %s, but rank %d on %s has NCCL %s: these "
				 "versions are incompatible. Set LD_LIBRARY_PATH so that all nodes "
				 "load the same libnccl.so.2",
				 rank_gpus[0].host, first, rank, rank_gpus[rank].host, other);
	}
	return 0;
}

/* The rows of ranks that share a GPU; returns how many GPUs are shared. */
static int shared_rows(const struct rank_gpu *rank_gpus, const int *order, int count, char *rows,
		       size_t size)
{
	size_t used = 0;
	int gpus = 0, written = 0, left = 0;

	rows[0] = 0;
	for (int i = 0; i < count; i++) {
		const char *uuid = rank_gpus[order[i]].uuid;
		bool before = i > 0 && !strcmp(uuid, rank_gpus[order[i - 1]].uuid);
		bool after = i + 1 < count && !strcmp(uuid, rank_gpus[order[i + 1]].uuid);

		if (!*uuid || (!before && !after))
			continue;
		gpus += !before;
		if (written == ROWS_MAX || used >= size) {
			left++;
			continue;
		}
		used += (size_t)snprintf(rows + used, size - used, "%srank %d  %s  %s",
					 written++ ? "; " : "", order[i], rank_gpus[order[i]].host,
					 uuid);
	}
	if (left && used < size)
		snprintf(rows + used, size - used, "; and %d more", left);
	return gpus;
}

int gpus_check(const struct rank_gpu *rank_gpus, int count, bool allow_shared, bool *shared,
	       struct error *err)
{
	int *order = calloc((size_t)count, sizeof *order);
	int rc = versions_check(rank_gpus, count, err);
	char rows[720];

	if (!order)
		return error_memory(err, "the ranks' GPUs");
	for (int i = 0; i < count; i++)
		order[i] = i;
	qsort_r(order, (size_t)count, sizeof *order, by_uuid, (void *)(uintptr_t)rank_gpus);

	int gpus = shared_rows(rank_gpus, order, count, rows, sizeof rows);

	free(order);
	if (rc)
		return rc;
	if (gpus && !allow_shared)
		return error_set(err, ERR_UNAVAILABLE,
				 "%s used by more than one rank, so NCCL would hang (%s). Start "
				 "one rank per GPU. Check that each rank of a node has its own "
				 "LOCAL_RANK and that CUDA_VISIBLE_DEVICES lists all GPUs of the "
				 "node. Or use --allow-shared-gpu or --comm mpi",
				 gpus == 1 ? "1 GPU is" : "several GPUs are", rows);
	*shared = gpus > 0;
	return 0;
}
