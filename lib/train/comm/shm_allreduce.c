/* SPDX-License-Identifier: BSD-3-Clause */
#include "train/comm/shm_allreduce.h"

#include <errno.h>
#include <fcntl.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"

#define CHUNK                                                                                      \
	16384 /* floats: long compared with the cost of taking a chunk, short compared with a step \
	       */
#define BLOCK 1024 /* floats that stay in the nearest cache while ranks are added */
#define LINE 64	   /* bytes of a cache line: what only one rank writes has its own */

struct line {
	alignas(LINE) _Atomic uint64_t chunks;
};

/* Chunks are numbered across all sums. next: the first chunk not taken yet. done: how many are
 * complete. begun[rank]: how many that rank has started. No chunk is taken before all ranks have
 * begun it, so done equals a rank's own count only once all of these are complete. */
struct header {
	uint64_t nonce;
	struct line next, done, begun[];
};

struct sum {
	size_t offset, count; /* floats of a part */
	uint64_t first;	      /* its first chunk */
};

struct shm_allreduce {
	struct header *header;
	int rank, ranks, fd;
	size_t part_bytes, total_bytes, header_bytes;
	size_t sum_count, sum_capacity;
	struct sum *sums; /* begun since everything was last complete */
	uint64_t begun;
};

static float *part(const struct shm_allreduce *shm, int rank)
{
	return (float *)((char *)shm->header + shm->header_bytes + (size_t)rank * shm->part_bytes);
}

static int shm_allreduce_new(int rank, int ranks, size_t size_bytes, struct shm_allreduce **out,
			     struct error *err)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct shm_allreduce *shm = calloc(1, sizeof *shm);

	if (!shm)
		return error_memory(err, "the shm all-reduce");
	*shm = (struct shm_allreduce){.rank = rank, .ranks = ranks, .fd = -1};
	shm->header_bytes = (sizeof *shm->header + (size_t)ranks * sizeof(struct line) + page - 1) /
			    page * page;
	if (size_bytes > SIZE_MAX / 2 / (size_t)ranks - page) {
		free(shm);
		return error_memory(err, "the shm all-reduce");
	}
	shm->part_bytes = (size_bytes + page - 1) / page * page;
	shm->total_bytes = shm->header_bytes + (size_t)ranks * shm->part_bytes;
	*out = shm;
	return 0;
}

static int map(struct shm_allreduce *shm, int fd, struct error *err)
{
	void *memory = mmap(NULL, shm->total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		return error_set(err, ERR_UNAVAILABLE, "cannot map %zu bytes of shared memory: %s",
				 shm->total_bytes, strerror(errno));
	/* Reduces page faults and TLB misses if the system allows it; otherwise no effect. */
	madvise(memory, shm->total_bytes, MADV_HUGEPAGE);
	shm->header = memory;
	return 0;
}

/* A limit on file sizes (ulimit -f) also applies to this memory, and would kill the process. */
static bool may_grow(size_t bytes)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
	       bytes <= limit.rlim_cur;
}

int shm_allreduce_create(int rank, int ranks, size_t size_bytes, uint64_t nonce,
			 struct shm_allreduce **out, struct shm_handle *name, struct error *err)
{
	struct shm_allreduce *shm = NULL;
	int rc = shm_allreduce_new(rank, ranks, size_bytes, &shm, err);

	if (rc)
		return rc;
	if (may_grow(shm->total_bytes))
		shm->fd = memfd_create("berth-gradients", MFD_CLOEXEC);
	else
		errno = EFBIG;
	if (shm->fd < 0 || ftruncate(shm->fd, (off_t)shm->total_bytes))
		rc = error_set(err, ERR_UNAVAILABLE, "cannot create %zu bytes of shared memory: %s",
			       shm->total_bytes, strerror(errno));
	else
		rc = map(shm, shm->fd, err);
	if (rc) {
		shm_allreduce_free(shm);
		return rc;
	}
	shm->header->nonce = nonce;
	*name = (struct shm_handle){.pid = getpid(), .fd = shm->fd, .nonce = nonce};
	*out = shm;
	return 0;
}

int shm_allreduce_attach(int rank, int ranks, size_t size_bytes, const struct shm_handle *name,
			 struct shm_allreduce **out, struct error *err)
{
	struct shm_allreduce *shm = NULL;
	char path[64];
	struct stat found;
	int rc = shm_allreduce_new(rank, ranks, size_bytes, &shm, err);

	if (rc)
		return rc;
	snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)name->pid,
		 (long long)name->fd);

	/* Do not block: in another PID namespace the path may be anything, even a pipe. */
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0 || fstat(fd, &found))
		rc = error_set(err, ERR_UNAVAILABLE, "%s: %s", path, strerror(errno));
	else if (!S_ISREG(found.st_mode) || found.st_size != (off_t)shm->total_bytes)
		rc = error_set(err, ERR_UNAVAILABLE, "%s is not the shared memory of this job",
			       path);
	else
		rc = map(shm, fd, err);
	if (fd >= 0)
		close(fd);
	if (!rc && shm->header->nonce != name->nonce)
		rc = error_set(err, ERR_UNAVAILABLE, "%s is the shared memory of another job",
			       path);
	if (rc)
		shm_allreduce_free(shm);
	else
		*out = shm;
	return rc;
}

int shm_allreduce_open(struct comm *comm, struct device_queue *queue, size_t size_bytes,
		       struct shm_allreduce **out, void **buffer, struct error *err)
{
	const struct device_ops *ops = queue->device->ops;
	struct shm_handle name = {.pid = -1};
	struct shm_allreduce *shm = NULL;
	struct error why = {0};
	int32_t arrived = 0;
	int rc;

	if (comm->size == 1 || (ops->queue_native && ops->queue_native(queue)))
		return 0;
	if (!comm->rank)
		arrived = !shm_allreduce_create(0, comm->size, size_bytes,
						(uint64_t)clock_now_ms() ^ (uint64_t)getpid() << 40,
						&shm, &name, &why);
	rc = comm->ops->broadcast(comm, queue, &name, sizeof name, 0, err);
	if (!rc)
		rc = comm->ops->finish(comm, queue, err);
	if (!rc && comm->rank)
		arrived = name.pid >= 0 && !shm_allreduce_attach(comm->rank, comm->size, size_bytes,
								 &name, &shm, &why);
	if (!rc)
		rc = comm->ops->all_reduce(comm, queue, &arrived, 1, ELEMENT_I32, COMM_MIN, err);
	if (!rc)
		rc = comm->ops->finish(comm, queue, err);
	if (rc || !arrived) {
		shm_allreduce_free(shm);
		return rc;
	}
	shm_allreduce_seal(shm);
	*out = shm;
	*buffer = shm_allreduce_buffer(shm);
	return 0;
}

void shm_allreduce_seal(struct shm_allreduce *shm)
{
	if (shm->fd >= 0)
		close(shm->fd);
	shm->fd = -1;
}

void shm_allreduce_free(struct shm_allreduce *shm)
{
	if (!shm)
		return;
	shm_allreduce_seal(shm);
	if (shm->header)
		munmap(shm->header, shm->total_bytes);
	free(shm->sums);
	free(shm);
}

void *shm_allreduce_buffer(const struct shm_allreduce *shm)
{
	return part(shm, shm->rank);
}

bool shm_allreduce_contains(const struct shm_allreduce *shm, const void *data, size_t count)
{
	uintptr_t begin = (uintptr_t)part(shm, shm->rank), at = (uintptr_t)data;

	return at >= begin && at - begin <= shm->part_bytes &&
	       count <= (shm->part_bytes - (at - begin)) / sizeof(float);
}

int shm_allreduce_start(struct shm_allreduce *shm, float *data, size_t count, struct error *err)
{
	if (!count)
		return 0;
	if (!array_reserve(&shm->sums, shm->sum_count, &shm->sum_capacity, sizeof *shm->sums))
		return error_memory(err, "the sums in progress");
	shm->sums[shm->sum_count++] = (struct sum){.offset = (size_t)(data - part(shm, shm->rank)),
						   .count = count,
						   .first = shm->begun};
	shm->begun += (count + CHUNK - 1) / CHUNK;
	/* Release: a rank that sees this count also sees the numbers to add. */
	atomic_store_explicit(&shm->header->begun[shm->rank].chunks, shm->begun,
			      memory_order_release);
	return 0;
}

/* Two ranks are the usual case on one node without a GPU. */
static void add_two(float *restrict a, float *restrict b, size_t count)
{
	for (size_t i = 0; i < count; i++)
		a[i] = b[i] = a[i] + b[i];
}

static void add_parts(const struct shm_allreduce *shm, size_t offset, size_t count)
{
	float sum[BLOCK];

	if (shm->ranks == 2) {
		add_two(part(shm, 0) + offset, part(shm, 1) + offset, count);
		return;
	}
	for (size_t done = 0; done < count; done += BLOCK) {
		size_t n = count - done < BLOCK ? count - done : BLOCK;

		memcpy(sum, part(shm, 0) + offset + done, n * sizeof *sum);
		for (int r = 1; r < shm->ranks; r++) {
			const float *from = part(shm, r) + offset + done;

			for (size_t i = 0; i < n; i++)
				sum[i] += from[i];
		}
		for (int r = 0; r < shm->ranks; r++)
			memcpy(part(shm, r) + offset + done, sum, n * sizeof *sum);
	}
}

bool shm_allreduce_progress(struct shm_allreduce *shm)
{
	struct header *header = shm->header;
	uint64_t limit = shm->begun;
	uint64_t chunk = atomic_load_explicit(&header->next.chunks, memory_order_relaxed);
	size_t i = 0;

	if (chunk >= limit)
		return false;
	for (int r = 0; r < shm->ranks; r++) {
		uint64_t begun =
			atomic_load_explicit(&header->begun[r].chunks, memory_order_acquire);

		limit = begun < limit ? begun : limit;
	}
	do {
		if (chunk >= limit)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&header->next.chunks, &chunk, chunk + 1,
							memory_order_relaxed,
							memory_order_relaxed));
	while (i + 1 < shm->sum_count && shm->sums[i + 1].first <= chunk)
		i++;

	const struct sum *sum = &shm->sums[i];
	size_t done = (size_t)(chunk - sum->first) * CHUNK;
	size_t left = sum->count - done;

	add_parts(shm, sum->offset + done, left < CHUNK ? left : CHUNK);
	atomic_fetch_add_explicit(&header->done.chunks, 1, memory_order_release);
	return true;
}

bool shm_allreduce_done(struct shm_allreduce *shm)
{
	if (atomic_load_explicit(&shm->header->done.chunks, memory_order_acquire) != shm->begun)
		return false;
	shm->sum_count = 0;
	return true;
}

bool shm_allreduce_has_arrived(const struct shm_allreduce *shm, int rank)
{
	return atomic_load_explicit(&shm->header->begun[rank].chunks, memory_order_acquire) >=
	       shm->begun;
}
