/* SPDX-License-Identifier: BSD-3-Clause */
/* A libnccl.so.2 for processes of one machine, over shared memory; collectives are host functions
 * on their stream. It behaves like NCCL 2.28's non-blocking communicators (group.cc and init.cc): a
 * call is in progress at first, another thread puts the work on the stream (also on a captured
 * one), and a call made meanwhile is refused. finalize and abort wait until no graph contains a
 * collective. If one rank replays a captured collective and another one does not, or one of another
 * capture, it ends the process: with NVLS, NCCL would wait there for ever.
 *
 * STAND_IN_NCCL, a comma-separated list, chooses the failures:
 *   version=N       what ncclGetVersion returns
 *   init-hang       no communicator ever completes its initialization
 *   hang=R:K        rank R's collective number K (from 0) never completes
 *   error=R:K       rank R's communicator reports an error from its collective K on
 *   slow=R:K        that collective takes 300 ms longer */
#include <errno.h>
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PART ((size_t)1 << 18) /* bytes per rank at once */
#define RANKS_MAX 16

struct shared {
	atomic_int joined, arrived, generation;
	int captures[RANKS_MAX]; /* of the collective that now runs; see struct job */
	_Alignas(16) unsigned char parts[RANKS_MAX][PART];
};

struct ncclComm {
	struct shared *shared;
	char name[64];
	int rank, size;
	pthread_t thread;
	atomic_int state; /* ncclResult_t */
	atomic_bool aborted;
	atomic_int holders; /* the user, and collectives in progress */
	atomic_int next;
	atomic_bool captured;
	int captures;  /* how many captured collectives there are */
	bool threaded; /* the thread of a call is not joined yet */
};

int fake_graphs(void); /* tests/support/fake-cuda */

enum kind { REDUCE, BROADCAST, GATHER };

struct job {
	struct ncclComm *comm;
	enum kind kind;
	const void *from;
	void *to;
	size_t count;
	ncclDataType_t type;
	ncclRedOp_t op;
	int root;
	int capture; /* the number of this captured collective, from 1; 0: it was not captured */
	cudaStream_t stream;
};

static void backoff(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static const char *fault(const char *name)
{
	const char *all = getenv("STAND_IN_NCCL"), *at = all ? strstr(all, name) : NULL;

	return at ? at + strlen(name) : NULL;
}

static bool fault_is(const char *name, const struct ncclComm *comm, int number)
{
	const char *at = fault(name);
	int rank, which;

	return at && sscanf(at, "=%d:%d", &rank, &which) == 2 && rank == comm->rank &&
	       which == number;
}

static void drop(struct ncclComm *comm)
{
	if (atomic_fetch_sub(&comm->holders, 1) != 1)
		return;
	if (comm->shared)
		munmap(comm->shared, sizeof *comm->shared);
	free(comm);
}

/* ---- beginning ---- */

ncclResult_t ncclGetVersion(int *version)
{
	const char *at = fault("version");

	*version = at ? atoi(at + 1) : NCCL_VERSION_CODE;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	return result == ncclRemoteError ? "remote process exited or there was a network error"
					 : "an error of the stand-in";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	return "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	memset(id, 0, sizeof *id);
	snprintf(id->internal, sizeof id->internal, "/berth-stand-in-%d-%ld", (int)getpid(),
		 now.tv_nsec);
	return ncclSuccess;
}

static void *begin(void *context)
{
	struct ncclComm *comm = context;
	int fd = shm_open(comm->name, O_RDWR | O_CREAT, 0600);

	if (fd < 0 || ftruncate(fd, sizeof *comm->shared)) {
		atomic_store(&comm->state, ncclSystemError);
		return NULL;
	}
	comm->shared = mmap(NULL, sizeof *comm->shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	atomic_fetch_add(&comm->shared->joined, 1);
	while (atomic_load(&comm->shared->joined) < comm->size || fault("init-hang")) {
		if (atomic_load(&comm->aborted))
			break;
		backoff();
	}
	shm_unlink(comm->name); /* every rank has it, or no rank needs it */
	if (!atomic_load(&comm->aborted))
		atomic_store(&comm->state, ncclSuccess);
	return NULL;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank,
				    ncclConfig_t *config)
{
	struct ncclComm *comm = calloc(1, sizeof *comm);

	if (!comm || size > RANKS_MAX || config->blocking != 0)
		return ncclInvalidArgument;
	comm->rank = rank;
	comm->size = size;
	memcpy(comm->name, id.internal, sizeof comm->name);
	atomic_store(&comm->holders, 1);
	atomic_store(&comm->state, ncclInProgress);
	*out = comm;
	comm->threaded = !pthread_create(&comm->thread, NULL, begin, comm);
	return comm->threaded ? ncclInProgress : ncclSystemError;
}

static void join(struct ncclComm *comm)
{
	if (comm->threaded)
		pthread_join(comm->thread, NULL);
	comm->threaded = false;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
	*out = (ncclResult_t)atomic_load(&comm->state);
	if (*out == ncclSuccess)
		join(comm);
	return ncclSuccess;
}

/* A call that another thread continues. */
static ncclResult_t go_on(struct ncclComm *comm, void *(*run)(void *), void *context)
{
	if (atomic_load(&comm->state) == ncclInProgress) {
		fprintf(stderr, "stand-in NCCL: a call before the one before it was done\n");
		return ncclInvalidArgument;
	}
	join(comm);
	if (atomic_load(&comm->state) == ncclSuccess)
		atomic_store(&comm->state, ncclInProgress);
	comm->threaded = !pthread_create(&comm->thread, NULL, run, context);
	return comm->threaded ? ncclInProgress : ncclSystemError;
}

/* An error of the communicator stays. */
static void gone_on(struct ncclComm *comm, ncclResult_t result)
{
	int expected = ncclInProgress;

	atomic_compare_exchange_strong(&comm->state, &expected, result);
}

static void no_graphs(struct ncclComm *comm)
{
	while (atomic_load(&comm->captured) && fake_graphs())
		backoff();
}

static void *finalize(void *context)
{
	struct ncclComm *comm = context;

	no_graphs(comm);
	gone_on(comm, ncclSuccess);
	return NULL;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	return go_on(comm, finalize, comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	join(comm);
	no_graphs(comm);
	drop(comm);
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	atomic_store(&comm->aborted, true);
	return ncclCommDestroy(comm);
}

/* ---- collectives ---- */

/* false: aborted. */
static bool barrier(struct ncclComm *comm)
{
	struct shared *shared = comm->shared;
	int generation = atomic_load(&shared->generation);

	if (atomic_fetch_add(&shared->arrived, 1) + 1 == comm->size) {
		atomic_store(&shared->arrived, 0);
		atomic_fetch_add(&shared->generation, 1);
		return true;
	}
	while (atomic_load(&shared->generation) == generation) {
		if (atomic_load(&comm->aborted))
			return false;
		backoff();
	}
	return true;
}

#define FOLD(TYPE)                                                                                 \
	do {                                                                                       \
		TYPE *to = out;                                                                    \
		for (size_t i = 0; i < n; i++) {                                                   \
			TYPE all = ((const TYPE *)(void *)shared->parts[0])[i];                    \
			for (int r = 1; r < size; r++) {                                           \
				TYPE one = ((const TYPE *)(void *)shared->parts[r])[i];            \
				all = op == ncclSum   ? all + one                                  \
				      : op == ncclMax ? (one > all ? one : all)                    \
						      : (one < all ? one : all);                   \
			}                                                                          \
			to[i] = all;                                                               \
		}                                                                                  \
	} while (0)

static void fold(struct shared *shared, int size, ncclDataType_t type, ncclRedOp_t op, void *out,
		 size_t n)
{
	switch (type) {
	case ncclInt32:
		FOLD(int32_t);
		break;
	case ncclInt64:
		FOLD(int64_t);
		break;
	case ncclFloat64:
		FOLD(double);
		break;
	default:
		FOLD(float);
		break;
	}
}

static size_t width(ncclDataType_t type)
{
	return type == ncclUint8 ? 1 : type == ncclInt64 || type == ncclFloat64 ? 8 : 4;
}

static void check_captures(const struct ncclComm *comm)
{
	const int *captures = comm->shared->captures;

	for (int r = 0; r < comm->size; r++) {
		if (captures[r] == captures[0])
			continue;
		fprintf(stderr,
			"stand-in NCCL: rank 0 runs captured collective %d, rank %d runs %d (0: "
			"not "
			"captured)\n",
			captures[0], r, captures[r]);
		abort();
	}
}

static bool part(const struct job *job, size_t from, size_t n)
{
	struct ncclComm *comm = job->comm;
	size_t w = width(job->type);
	unsigned char *to = job->to;

	memcpy(comm->shared->parts[comm->rank], (const char *)job->from + from * w, n * w);
	comm->shared->captures[comm->rank] = job->capture;
	if (!barrier(comm))
		return false;
	check_captures(comm);
	if (job->kind == REDUCE)
		fold(comm->shared, comm->size, job->type, job->op, to + from * w, n);
	else if (job->kind == BROADCAST)
		memcpy(to + from * w, comm->shared->parts[job->root], n * w);
	else
		for (int r = 0; r < comm->size; r++)
			memcpy(to + ((size_t)r * job->count + from) * w, comm->shared->parts[r],
			       n * w);
	return barrier(comm);
}

static void run(void *context)
{
	struct job *job = context;
	struct ncclComm *comm = job->comm;
	int number = atomic_fetch_add(&comm->next, 1);
	size_t most = PART / width(job->type);
	bool ok = true;

	if (fault_is("slow", comm, number))
		nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
	if (fault_is("error", comm, number))
		atomic_store(&comm->state, ncclRemoteError);
	while (fault_is("hang", comm, number) && !atomic_load(&comm->aborted))
		backoff();
	for (size_t from = 0; ok && from < job->count; from += most)
		ok = !atomic_load(&comm->aborted) &&
		     part(job, from, job->count - from < most ? job->count - from : most);
}

static void *launch(void *context)
{
	struct job *job = context;

	backoff();
	gone_on(job->comm, cudaLaunchHostFunc(job->stream, run, job) == cudaSuccess
				   ? ncclSuccess
				   : ncclUnhandledCudaError);
	return NULL;
}

/* Keep the memory of a job that a graph contains: it will run again. */
static ncclResult_t begin_job(struct job job, cudaStream_t stream)
{
	enum cudaStreamCaptureStatus status;
	struct job *kept = malloc(sizeof *kept);

	if (!kept || cudaStreamIsCapturing(stream, &status) != cudaSuccess)
		return ncclSystemError;
	if (status == cudaStreamCaptureStatusActive) {
		atomic_store(&job.comm->captured, true);
		job.capture = ++job.comm->captures;
	}
	job.stream = stream;
	*kept = job;
	/* Neither it nor its communicator is ever freed: a test's process is short-lived. */
	atomic_fetch_add(&job.comm->holders, 1);
	return go_on(job.comm, launch, kept);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type,
			   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	return begin_job((struct job){.comm = comm,
				      .kind = REDUCE,
				      .from = from,
				      .to = to,
				      .count = count,
				      .type = type,
				      .op = op},
			 stream);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root,
			   ncclComm_t comm, cudaStream_t stream)
{
	return begin_job((struct job){.comm = comm,
				      .kind = BROADCAST,
				      .from = from,
				      .to = to,
				      .count = count,
				      .type = type,
				      .root = root},
			 stream);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	return begin_job((struct job){.comm = comm,
				      .kind = GATHER,
				      .from = from,
				      .to = to,
				      .count = count,
				      .type = type},
			 stream);
}
