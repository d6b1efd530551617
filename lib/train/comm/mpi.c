/* SPDX-License-Identifier: BSD-3-Clause */
/* Collectives over MPI on host memory: module comm-mpi.so. All calls are non-blocking; finish waits
 * for them with a deadline. No other file calls MPI. */
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "train/comm/comm.h"
#include "train/comm/shm_allreduce.h"

#define TAG_PRESENT 7	/* the message "I am waiting, too"; a rank that sends none is missing */
#define GRACE_MS 2000	/* how long these messages may take after the deadline */
#define CHUNK (1 << 30) /* bytes per call: MPI counts are int */
/* Elements of one all-reduce. Open MPI's non-blocking ones allocate a second buffer of that size.
 * At tens of MB it gets fresh pages each time, which costs as much as the sum. */
#define REDUCE_CHUNK (1 << 18)
/* Open MPI's choice of algorithm; 0: automatic. In place, and between few ranks, automatic sends
 * whole buffers back and forth. A ring sends each element once, which pays above some length. */
#define ALGORITHM "coll_libnbc_iallreduce_algorithm"
#define ALGORITHM_RING 1
#define RING_ELEMENTS (1 << 14)

struct mpi {
	struct comm comm;
	MPI_Comm world;
	int timeout_ms;
	bool failed, one_node;
	bool tools;		     /* MPI_T is initialised */
	MPI_T_cvar_handle algorithm; /* NULL: not Open MPI's, or the user has chosen */
	size_t request_count, request_capacity;
	MPI_Request *requests;
	struct shm_allreduce *shm; /* all ranks are on one node and share memory; else NULL */
	atomic_bool aborted;
	char why[256];
};

extern __attribute__((visibility("default"))) const struct comm_ops comm_mpi;

static int mpi_error(int code, const char *what, struct error *err)
{
	char text[MPI_MAX_ERROR_STRING] = "unknown error";
	int size;

	MPI_Error_string(code, text, &size);
	return error_set(err, ERR_NETWORK, "%s: MPI error: %s", what, text);
}

static int check_world(const struct comm_request *request, struct error *err)
{
	int rank, size;

	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size == request->size && rank == request->rank)
		return 0;
	if (size == 1)
		return error_set(
			err, ERR_DATA,
			"this is rank %d of WORLD_SIZE %d, but MPI reports a single rank: "
			"its launcher (torchrun?) starts no MPI programs. Use --comm gloo, "
			"berth train -n %d with the same options, or mpirun -n %d berth exec "
			"-- berth-train",
			request->rank, request->size, request->size, request->size);
	return error_set(err, ERR_DATA,
			 "RANK and WORLD_SIZE mean rank %d of %d, but MPI reports rank %d of %d: "
			 "one of the two is left over from another program. Unset RANK and "
			 "WORLD_SIZE, or use berth run",
			 request->rank, request->size, rank, size);
}

static void find_algorithm(struct mpi *mpi)
{
	int provided, index, count, value = -1;

	mpi->algorithm = MPI_T_CVAR_HANDLE_NULL;
	mpi->tools = MPI_T_init_thread(MPI_THREAD_FUNNELED, &provided) == MPI_SUCCESS;
	if (!mpi->tools || MPI_T_cvar_get_index(ALGORITHM, &index) != MPI_SUCCESS ||
	    MPI_T_cvar_handle_alloc(index, NULL, &mpi->algorithm, &count) != MPI_SUCCESS)
		return;
	if (count != 1 || MPI_T_cvar_read(mpi->algorithm, &value) != MPI_SUCCESS || value != 0)
		MPI_T_cvar_handle_free(&mpi->algorithm);
}

static void choose_algorithm(const struct mpi *mpi, int value)
{
	/* If it is read-only, Open MPI's own choice stays. */
	if (mpi->algorithm != MPI_T_CVAR_HANDLE_NULL)
		MPI_T_cvar_write(mpi->algorithm, &value);
}

/* Are all ranks on one node? */
static bool is_single_node(const struct mpi *mpi)
{
	MPI_Comm node;
	int size = 0;

	if (MPI_Comm_split_type(mpi->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) !=
	    MPI_SUCCESS)
		return false;
	MPI_Comm_size(node, &size);
	MPI_Comm_free(&node);
	return size == mpi->comm.size;
}

static int mpi_open(const struct comm_request *request, struct comm **out, struct error *err)
{
	struct mpi *mpi = calloc(1, sizeof *mpi);
	int initialised = 0, provided;

	if (!mpi)
		return error_memory(err, "the communicator");
	MPI_Initialized(&initialised);
	if (!initialised) {
		int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);

		if (rc != MPI_SUCCESS) {
			free(mpi);
			return mpi_error(rc, "MPI_Init", err);
		}
	}

	int rc = check_world(request, err);

	if (rc) {
		free(mpi);
		/* A singleton can return at once; with several ranks, leaving MPI would wait for
		 * the others. */
		return rc;
	}
	MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world);
	MPI_Comm_set_errhandler(mpi->world, MPI_ERRORS_RETURN);
	mpi->comm = (struct comm){.ops = &comm_mpi, .rank = request->rank, .size = request->size};
	mpi->timeout_ms = request->timeout_ms;
	find_algorithm(mpi);
	mpi->one_node = is_single_node(mpi);
	*out = &mpi->comm;
	return 0;
}

static int failed_before(struct error *err)
{
	return error_set(err, ERR_NETWORK, "communication between ranks has already failed");
}

/* Make room for one more request; fails after an error. */
static MPI_Request *request_next(struct mpi *mpi, struct error *err)
{
	if (mpi->failed) {
		failed_before(err);
		return NULL;
	}
	if (!array_reserve(&mpi->requests, mpi->request_count, &mpi->request_capacity,
			   sizeof *mpi->requests)) {
		error_memory(err, "MPI requests");
		return NULL;
	}
	return &mpi->requests[mpi->request_count];
}

/* Check rc, which the call that began requests[count] returned. */
static int check_started(struct mpi *mpi, int rc, const char *what, struct error *err)
{
	if (rc != MPI_SUCCESS) {
		mpi->failed = true;
		return mpi_error(rc, what, err);
	}
	mpi->request_count++;
	return 0;
}

static int mpi_all_reduce(struct comm *comm, struct device_queue *queue, void *data, size_t count,
			  enum element_type type, enum comm_reduce reduce, struct error *err)
{
	static const MPI_Op ops[] = {
		[COMM_SUM] = MPI_SUM, [COMM_MIN] = MPI_MIN, [COMM_MAX] = MPI_MAX};
	MPI_Datatype types[] = {[ELEMENT_F32] = MPI_FLOAT,
				[ELEMENT_I32] = MPI_INT32_T,
				[ELEMENT_I64] = MPI_INT64_T,
				[ELEMENT_F64] = MPI_DOUBLE};
	struct mpi *mpi = (struct mpi *)comm;

	if (mpi->shm && type == ELEMENT_F32 && reduce == COMM_SUM &&
	    shm_allreduce_contains(mpi->shm, data, count))
		return mpi->failed ? failed_before(err)
				   : shm_allreduce_start(mpi->shm, data, count, err);
	for (size_t done = 0; done < count;) {
		size_t n = count - done < REDUCE_CHUNK ? count - done : REDUCE_CHUNK;
		MPI_Request *request = request_next(mpi, err);

		if (!request)
			return -ERR_NETWORK;

		if (n >= RING_ELEMENTS)
			choose_algorithm(mpi, ALGORITHM_RING);

		int rc = MPI_Iallreduce(MPI_IN_PLACE, (char *)data + done * element_size(type),
					(int)n, types[type], ops[reduce], mpi->world, request);

		if (n >= RING_ELEMENTS)
			choose_algorithm(mpi, 0);
		rc = check_started(mpi, rc, "all-reduce", err);
		if (rc)
			return rc;
		done += n;
	}
	return 0;
}

static int mpi_broadcast(struct comm *comm, struct device_queue *queue, void *data,
			 size_t size_bytes, int root, struct error *err)
{
	struct mpi *mpi = (struct mpi *)comm;

	for (size_t done = 0; done < size_bytes;) {
		size_t n = size_bytes - done < CHUNK ? size_bytes - done : CHUNK;
		MPI_Request *request = request_next(mpi, err);

		if (!request)
			return -ERR_NETWORK;

		int rc = check_started(mpi,
				       MPI_Ibcast((char *)data + done, (int)n, MPI_BYTE, root,
						  mpi->world, request),
				       "broadcast", err);

		if (rc)
			return rc;
		done += n;
	}
	return 0;
}

static int mpi_all_gather(struct comm *comm, struct device_queue *queue, const void *from, void *to,
			  size_t size_bytes, struct error *err)
{
	struct mpi *mpi = (struct mpi *)comm;
	MPI_Request *request = request_next(mpi, err);

	if (!request)
		return -ERR_NETWORK;
	if (size_bytes > CHUNK)
		return error_set(err, ERR_INTERNAL,
				 "an all-gather of %zu bytes per rank exceeds the limit",
				 size_bytes);
	return check_started(mpi,
			     MPI_Iallgather(from, (int)size_bytes, MPI_BYTE, to, (int)size_bytes,
					    MPI_BYTE, mpi->world, request),
			     "all-gather", err);
}

/* After the deadline: every rank that waits in MPI notifies all others; a rank that sends nothing
 * is missing. With the shm all-reduce, shared memory shows who is missing. */
static void find_absent_by_message(struct mpi *mpi, bool *seen)
{
	int present = 0;
	int64_t end = clock_now_ms() + GRACE_MS;

	for (int r = 0; r < mpi->comm.size; r++) {
		MPI_Request request;

		if (r != mpi->comm.rank && MPI_Isend(&present, 0, MPI_INT, r, TAG_PRESENT,
						     mpi->world, &request) == MPI_SUCCESS)
			MPI_Request_free(&request);
	}
	while (clock_now_ms() < end) {
		MPI_Status status;
		int arrived = 0;

		if (MPI_Iprobe(MPI_ANY_SOURCE, TAG_PRESENT, mpi->world, &arrived, &status) !=
		    MPI_SUCCESS)
			break;
		if (!arrived) {
			nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
			continue;
		}
		MPI_Recv(&present, 0, MPI_INT, status.MPI_SOURCE, TAG_PRESENT, mpi->world,
			 MPI_STATUS_IGNORE);
		seen[status.MPI_SOURCE] = true;
	}
}

/* If all ranks have begun, one of them stopped within a chunk: only the messages show which. */
static void find_absent_in_shm(struct mpi *mpi, bool *seen)
{
	bool all = true;

	if (!mpi->shm || shm_allreduce_done(mpi->shm))
		return;
	for (int r = 0; r < mpi->comm.size; r++)
		all = all && shm_allreduce_has_arrived(mpi->shm, r);
	for (int r = 0; !all && r < mpi->comm.size; r++)
		seen[r] = shm_allreduce_has_arrived(mpi->shm, r);
}

static void list_missing(struct mpi *mpi, char *text, size_t size)
{
	int count = 0;
	bool *seen = calloc((size_t)mpi->comm.size, sizeof *seen);

	text[0] = 0;
	if (!seen)
		return;
	seen[mpi->comm.rank] = true;
	find_absent_by_message(mpi, seen);
	find_absent_in_shm(mpi, seen);
	for (int r = 0; r < mpi->comm.size; r++)
		if (!seen[r] && ++count <= 16)
			text_append(text, size, "%s%d", count > 1 ? "," : "", r);
	if (count > 16)
		text_append(text, size, " and %d more", count - 16);
	free(seen);
}

static int deadline_error(struct mpi *mpi, struct error *err)
{
	char missing[128];

	list_missing(mpi, missing, sizeof missing);
	return error_set(err, ERR_NETWORK,
			 "rank %d waited %d s in a collective; missing ranks: %s. Look for earlier "
			 "errors in their output, or raise --comm-timeout",
			 mpi->comm.rank, mpi->timeout_ms / 1000,
			 missing[0] ? missing
				    : "none (all ranks are waiting, in different collectives)");
}

/* done: nothing is in progress any more. */
static int test_all(struct mpi *mpi, bool *done, struct error *err)
{
	int all = 1;
	int rc = mpi->request_count ? MPI_Testall((int)mpi->request_count, mpi->requests, &all,
						  MPI_STATUSES_IGNORE)
				    : MPI_SUCCESS;

	if (rc != MPI_SUCCESS) {
		mpi->failed = true;
		return mpi_error(rc, "waiting for a collective", err);
	}
	*done = all && (!mpi->shm || shm_allreduce_done(mpi->shm));
	return 0;
}

static int mpi_finish(struct comm *comm, struct device_queue *queue, struct error *err)
{
	struct mpi *mpi = (struct mpi *)comm;
	int64_t end = 0;

	for (unsigned turn = 0;; turn++) {
		bool done = false;

		while (mpi->shm && shm_allreduce_progress(mpi->shm))
			;

		int rc = test_all(mpi, &done, err);

		if (rc)
			return rc;
		if (done)
			break;
		if (atomic_load(&mpi->aborted)) {
			mpi->failed = true;
			return error_set(err, ERR_NETWORK,
					 "communication between ranks was aborted: %s", mpi->why);
		}
		if (turn % 64 != 63)
			continue;
		/* The rank that this one waits for may need this core. */
		sched_yield();
		if (!end) {
			end = clock_now_ms() + mpi->timeout_ms;
		} else if (clock_now_ms() > end) {
			mpi->failed = true;
			return deadline_error(mpi, err);
		}
	}
	mpi->request_count = 0;
	return 0;
}

static int mpi_memory(struct comm *comm, struct device_queue *queue, size_t size_bytes, void **out,
		      struct error *err)
{
	struct mpi *mpi = (struct mpi *)comm;

	*out = NULL;
	return mpi->one_node && !mpi->shm
		       ? shm_allreduce_open(comm, queue, size_bytes, &mpi->shm, out, err)
		       : 0;
}

static int mpi_barrier(struct comm *comm, struct device_queue *queue, struct error *err)
{
	struct mpi *mpi = (struct mpi *)comm;
	MPI_Request *request = request_next(mpi, err);
	int rc = request ? check_started(mpi, MPI_Ibarrier(mpi->world, request), "barrier", err)
			 : -ERR_NETWORK;

	return rc ? rc : mpi_finish(comm, queue, err);
}

static int mpi_progress(struct comm *comm, struct error *err)
{
	struct mpi *mpi = (struct mpi *)comm;
	int done;

	if (mpi->request_count && MPI_Testall((int)mpi->request_count, mpi->requests, &done,
					      MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
		mpi->failed = true;
		return error_set(err, ERR_NETWORK, "a collective failed while in progress");
	}
	return 0;
}

static void mpi_abort(struct comm *comm, const char *why)
{
	struct mpi *mpi = (struct mpi *)comm;

	snprintf(mpi->why, sizeof mpi->why, "%s", why);
	atomic_store(&mpi->aborted, true);
}

static bool mpi_close(struct comm *comm)
{
	struct mpi *mpi = (struct mpi *)comm;
	int finalised = 0;

	if (!mpi)
		return true;
	MPI_Finalized(&finalised);
	/* After a failure MPI_Finalize may wait for ranks that never come. The launcher sees this
	 * rank end and ends the others. */
	if (!finalised && !mpi->failed && !atomic_load(&mpi->aborted)) {
		if (mpi->algorithm != MPI_T_CVAR_HANDLE_NULL)
			MPI_T_cvar_handle_free(&mpi->algorithm);
		if (mpi->tools)
			MPI_T_finalize();
		MPI_Comm_free(&mpi->world);
		MPI_Finalize();
	}
	shm_allreduce_free(mpi->shm);
	free(mpi->requests);
	free(mpi);
	return true;
}

const struct comm_ops comm_mpi = {
	.name = "mpi",
	.open = mpi_open,
	.all_reduce = mpi_all_reduce,
	.broadcast = mpi_broadcast,
	.all_gather = mpi_all_gather,
	.barrier = mpi_barrier,
	.memory = mpi_memory,
	.progress = mpi_progress,
	.finish = mpi_finish,
	.abort = mpi_abort,
	.close = mpi_close,
};
