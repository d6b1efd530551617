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

#define CHUNK 16384 /* floats: long beside the taking of a chunk, short beside a step */
#define BLOCK 1024  /* floats that stay in the nearest cache while ranks are added */
#define LINE 64	    /* bytes of a cache line: what one rank writes alone has its own */

struct line {
	alignas(LINE) _Atomic uint64_t chunks;
};

/* Chunks are numbered through all sums. next: the first that nobody has taken. done: how many are.
 * begun[rank]: how many that rank has handed out. No chunk is taken before all ranks have begun it,
 * so that done equals a rank's own count only when all of these are done. */
struct header {
	uint64_t nonce;
	struct line next, done, begun[];
};

struct sum {
	size_t offset, count; /* floats of a part */
	uint64_t first;	      /* its first chunk */
};

struct window {
	struct header *header;
	int rank, ranks, fd;
	size_t part_bytes, total_bytes, header_bytes;
	size_t sum_count, sum_room;
	struct sum *sums; /* begun since all was done */
	uint64_t begun;
};

static float *part(const struct window *window, int rank)
{
	return (float *)((char *)window->header + window->header_bytes +
			 (size_t)rank * window->part_bytes);
}

static int window_plan(int rank, int ranks, size_t size_bytes, struct window **out,
		       struct error *err)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct window *window = calloc(1, sizeof *window);

	if (!window)
		return error_memory(err, "the window");
	*window = (struct window){.rank = rank, .ranks = ranks, .fd = -1};
	window->header_bytes =
		(sizeof *window->header + (size_t)ranks * sizeof(struct line) + page - 1) / page *
		page;
	if (size_bytes > SIZE_MAX / 2 / (size_t)ranks - page) {
		free(window);
		return error_memory(err, "the window");
	}
	window->part_bytes = (size_bytes + page - 1) / page * page;
	window->total_bytes = window->header_bytes + (size_t)ranks * window->part_bytes;
	*out = window;
	return 0;
}

static int map(struct window *window, int fd, struct error *err)
{
	void *memory = mmap(NULL, window->total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		return error_set(err, ERR_UNAVAILABLE, "mmap of %zu bytes: %s", window->total_bytes,
				 strerror(errno));
	/* Fewer page faults and TLB misses where the system allows it; else nothing. */
	madvise(memory, window->total_bytes, MADV_HUGEPAGE);
	window->header = memory;
	return 0;
}

/* A limit of file sizes (ulimit -f) counts for memory too, and ends the process. */
static bool may_grow(size_t bytes)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
	       bytes <= limit.rlim_cur;
}

int window_make(int rank, int ranks, size_t size_bytes, uint64_t nonce, struct window **out,
		struct window_name *name, struct error *err)
{
	struct window *window = NULL;
	int rc = window_plan(rank, ranks, size_bytes, &window, err);

	if (rc)
		return rc;
	if (may_grow(window->total_bytes))
		window->fd = memfd_create("berth-gradients", MFD_CLOEXEC);
	else
		errno = EFBIG;
	if (window->fd < 0 || ftruncate(window->fd, (off_t)window->total_bytes))
		rc = error_set(err, ERR_UNAVAILABLE, "shared memory of %zu bytes: %s",
			       window->total_bytes, strerror(errno));
	else
		rc = map(window, window->fd, err);
	if (rc) {
		window_free(window);
		return rc;
	}
	window->header->nonce = nonce;
	*name = (struct window_name){.pid = getpid(), .fd = window->fd, .nonce = nonce};
	*out = window;
	return 0;
}

int window_map(int rank, int ranks, size_t size_bytes, const struct window_name *name,
	       struct window **out, struct error *err)
{
	struct window *window = NULL;
	char path[64];
	struct stat found;
	int rc = window_plan(rank, ranks, size_bytes, &window, err);

	if (rc)
		return rc;
	snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)name->pid,
		 (long long)name->fd);

	/* Not blocking: in another PID namespace the path may be anything, a pipe too. */
	int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0 || fstat(fd, &found))
		rc = error_set(err, ERR_UNAVAILABLE, "%s: %s", path, strerror(errno));
	else if (!S_ISREG(found.st_mode) || found.st_size != (off_t)window->total_bytes)
		rc = error_set(err, ERR_UNAVAILABLE, "%s is not the memory that was shared", path);
	else
		rc = map(window, fd, err);
	if (fd >= 0)
		close(fd);
	if (!rc && window->header->nonce != name->nonce)
		rc = error_set(err, ERR_UNAVAILABLE, "%s is another job's memory", path);
	if (rc)
		window_free(window);
	else
		*out = window;
	return rc;
}

void window_seal(struct window *window)
{
	if (window->fd >= 0)
		close(window->fd);
	window->fd = -1;
}

void window_free(struct window *window)
{
	if (!window)
		return;
	window_seal(window);
	if (window->header)
		munmap(window->header, window->total_bytes);
	free(window->sums);
	free(window);
}

void *window_memory(const struct window *window)
{
	return part(window, window->rank);
}

bool window_holds(const struct window *window, const void *data, size_t count)
{
	uintptr_t begin = (uintptr_t)part(window, window->rank), at = (uintptr_t)data;

	return at >= begin && at - begin <= window->part_bytes &&
	       count <= (window->part_bytes - (at - begin)) / sizeof(float);
}

int window_begin(struct window *window, float *data, size_t count, struct error *err)
{
	if (!count)
		return 0;
	if (window->sum_count == window->sum_room) {
		size_t room = window->sum_room ? window->sum_room * 2 : 16;
		struct sum *grown = realloc(window->sums, room * sizeof *grown);

		if (!grown)
			return error_memory(err, "the sums under way");
		window->sums = grown;
		window->sum_room = room;
	}
	window->sums[window->sum_count++] =
		(struct sum){.offset = (size_t)(data - part(window, window->rank)),
			     .count = count,
			     .first = window->begun};
	window->begun += (count + CHUNK - 1) / CHUNK;
	/* Release: who sees it sees the numbers to be added. */
	atomic_store_explicit(&window->header->begun[window->rank].chunks, window->begun,
			      memory_order_release);
	return 0;
}

/* Two ranks are the usual case of one node without a GPU. */
static void add_two(float *restrict a, float *restrict b, size_t count)
{
	for (size_t i = 0; i < count; i++)
		a[i] = b[i] = a[i] + b[i];
}

static void add(const struct window *window, size_t offset, size_t count)
{
	float sum[BLOCK];

	if (window->ranks == 2) {
		add_two(part(window, 0) + offset, part(window, 1) + offset, count);
		return;
	}
	for (size_t done = 0; done < count; done += BLOCK) {
		size_t n = count - done < BLOCK ? count - done : BLOCK;

		memcpy(sum, part(window, 0) + offset + done, n * sizeof *sum);
		for (int r = 1; r < window->ranks; r++) {
			const float *from = part(window, r) + offset + done;

			for (size_t i = 0; i < n; i++)
				sum[i] += from[i];
		}
		for (int r = 0; r < window->ranks; r++)
			memcpy(part(window, r) + offset + done, sum, n * sizeof *sum);
	}
}

bool window_work(struct window *window)
{
	struct header *header = window->header;
	uint64_t limit = window->begun;
	uint64_t chunk = atomic_load_explicit(&header->next.chunks, memory_order_relaxed);
	size_t i = 0;

	if (chunk >= limit)
		return false;
	for (int r = 0; r < window->ranks; r++) {
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
	while (i + 1 < window->sum_count && window->sums[i + 1].first <= chunk)
		i++;

	const struct sum *sum = &window->sums[i];
	size_t done = (size_t)(chunk - sum->first) * CHUNK;
	size_t left = sum->count - done;

	add(window, sum->offset + done, left < CHUNK ? left : CHUNK);
	atomic_fetch_add_explicit(&header->done.chunks, 1, memory_order_release);
	return true;
}

bool window_done(struct window *window)
{
	if (atomic_load_explicit(&window->header->done.chunks, memory_order_acquire) !=
	    window->begun)
		return false;
	window->sum_count = 0;
	return true;
}

bool window_here(const struct window *window, int rank)
{
	return atomic_load_explicit(&window->header->begun[rank].chunks, memory_order_acquire) >=
	       window->begun;
}
