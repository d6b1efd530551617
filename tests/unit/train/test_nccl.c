/* SPDX-License-Identifier: BSD-3-Clause */
/* comm-nccl.so as installed, between processes, on a stand-in for libnccl (stand-in/) and the fake
 * CUDA runtime (tests/support/fake-cuda): its results when all goes well, and its messages when
 * something fails. tests/gpu tests the real NCCL. */
#include "comm_job.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/env.h"
#include "pretend_gpu.h"
#include "train/comm/meeting.h"

/* ---- all goes well ---- */

static void test_well(void **state)
{
	int status[RANKS];

	job(rank_well, 3, NULL, false, LONG_MS, status);
	job_all_well(3, status);
	assert_string_equal(said[0].host_id, "");
}

/* Slow work on one of the two streams: only the events can keep the order. */
static void slowly(void *context)
{
	float *value = context;

	nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
	*value += 1;
}

static void ordered(struct rank *rank)
{
	float *value;

	WANT(!rank_open(rank));
	WANT(!rank->device->ops->memory_new(rank->device, 4, (void **)&value, &rank->err));
	*value = (float)rank->rank;
	for (int64_t step = 1; step <= 3; step++) {
		WANT(!rank->comm->ops->begin_step(rank->comm, rank->queue, step, &rank->err));
		cudaLaunchHostFunc(pretend_gpu_stream(rank->queue), slowly, value);
		WANT(!rank->comm->ops->all_reduce(rank->comm, rank->queue, value, 1, ELEMENT_F32,
						  COMM_SUM, &rank->err));
		WANT(!rank->comm->ops->finish(rank->comm, rank->queue, &rank->err));
		cudaLaunchHostFunc(pretend_gpu_stream(rank->queue), slowly, value);
	}
	WANT(!cudaStreamSynchronize(pretend_gpu_stream(rank->queue)));
	/* (0 + 1) + (1 + 1) = 3; 3 + 1; (4 + 1) 2 = 10; 11; 12 2 = 24; 25 */
	WANT(*value == 25);
	rank->device->ops->memory_free(rank->device, value);
	rank_close(rank);
}

static void test_ordered(void **state)
{
	int status[RANKS];

	job(ordered, 2, "slow=1:1", false, LONG_MS, status);
	job_all_well(2, status);
}

/* Steps of two buckets that are captured once and replayed; the result of each is checked. */
static void replay(struct rank *rank)
{
	cudaGraph_t graph;
	cudaGraphExec_t exec;
	double busy, exposed;
	float *memory;

	WANT(!rank_open(rank));
	WANT(!rank->device->ops->memory_new(rank->device, 2 * sizeof *memory, (void **)&memory,
					    &rank->err));
	cudaStream_t stream = pretend_gpu_stream(rank->queue);

	cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
	for (int bucket = 0; bucket < 2; bucket++)
		WANT(!rank->comm->ops->all_reduce(rank->comm, rank->queue, memory + bucket, 1,
						  ELEMENT_F32, COMM_SUM, &rank->err));
	WANT(!rank->comm->ops->finish(rank->comm, rank->queue, &rank->err));
	WANT(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
	WANT(cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority) ==
	     cudaSuccess);
	cudaGraphDestroy(graph);
	/* More steps than the ring of numbers holds. */
	for (int64_t step = 1; step <= 600; step++) {
		float begin[2] = {(float)step, (float)(2 * step)}, end[2];
		int rc = rank->comm->ops->begin_step(rank->comm, rank->queue, step, &rank->err);

		if (rc)
			return;
		rank->device->ops->copy_in(rank->queue, memory, begin, sizeof begin, NULL);
		cudaGraphLaunch(exec, stream);
		if (rank->comm->ops->finish(rank->comm, rank->queue, &rank->err))
			return;
		rank->device->ops->copy_out(rank->queue, end, memory, sizeof end, NULL);
		if (rank->comm->ops->progress(rank->comm, &rank->err))
			return;
		WANT(end[0] == begin[0] * (float)rank->size &&
		     end[1] == begin[1] * (float)rank->size);
	}
	WANT(rank->comm->ops->overlap(rank->comm, &busy, &exposed));
	WANT(busy > 0 && exposed >= 0 && exposed <= busy);
	rank->comm->ops->barrier(rank->comm, rank->queue, &rank->err);
	/* Destroy it before the communicator, which waits for it. */
	cudaGraphExecDestroy(exec);
	rank_close(rank);
}

static void test_replay(void **state)
{
	int status[RANKS];

	job(replay, 2, NULL, false, LONG_MS, status);
	job_all_well(2, status);
}

/* Each bucket's mark is correct in a replayed graph: collective 7 is the second of step 4. */
static void test_replay_hangs(void **state)
{
	int status[RANKS];

	job(replay, 2, "hang=1:7", false, SHORT_MS, status);
	for (int rank = 0; rank < 2; rank++) {
		job_has(rank, "waited 3 s at step 4, bucket 1");
		job_has(rank, "a GPU has stalled");
		assert_int_equal(said[rank].code, ERR_NETWORK);
	}
}

/* A collective after a replayed step is not one of its buckets: it is watched and named separately.
 */
static void test_barrier_hangs(void **state)
{
	int status[RANKS];

	job(replay, 2, "hang=1:1200", false, SHORT_MS, status);
	for (int rank = 0; rank < 2; rank++) {
		job_has(rank, "waited 3 s at collective 1 (after step 600)");
		assert_int_equal(said[rank].code, ERR_NETWORK);
		/* The graph delays the end of the communicator, and no rank waits for that. */
		assert_int_equal(status[rank], 0);
	}
}

/* ---- something does not ---- */

static void open_alone(struct rank *rank)
{
	if (!rank_open(rank))
		rank_close(rank);
}

static void test_begin_hangs(void **state)
{
	int status[RANKS];

	job(open_alone, 2, "init-hang", false, SHORT_MS, status);
	for (int rank = 0; rank < 2; rank++) {
		job_has(rank, "did not complete within 3 s, although all 2 ranks entered it");
		assert_int_equal(said[rank].code, ERR_NETWORK);
		assert_true(said[rank].seconds < 3 * (3 + 2 + 5));
	}
}

static void open_or_stay_away(struct rank *rank)
{
	if (rank->rank != 2)
		open_alone(rank);
}

static void test_who_did_not_come(void **state)
{
	int status[RANKS];

	job(open_or_stay_away, 3, NULL, false, SHORT_MS, status);
	job_has(0, "rank 2");
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(said[rank].code, ERR_NETWORK);
}

/* Rank 1 sends its GPU and then never enters NCCL. */
static void open_or_stop_before(struct rank *rank)
{
	struct meeting_facts facts = {
		.host = "elsewhere", .comm = "nccl", .library = "NCCL 2.28", .gpu = "GPU-x"};
	struct env *env = env_capture();
	struct meeting *meeting;
	struct ranks *ranks;

	if (rank->rank != 1) {
		open_alone(rank);
		return;
	}
	WANT(!ranks_join_store(env, &ranks, &rank->err));
	rank->device = job_device();
	snprintf(facts.device, sizeof facts.device, "%s", rank->device->ops->name);
	WANT(!meeting_hold(ranks, &facts, &(struct meeting_rules){0}, LONG_MS, &meeting,
			   &rank->err));
	sleep(SHORT_MS / 1000 + 3);
	free(meeting);
	ranks_leave(ranks);
}

static void test_who_did_not_enter(void **state)
{
	int status[RANKS];

	job(open_or_stop_before, 2, "version=22809", false, SHORT_MS, status);
	job_has(0, "missing ranks: 1 on elsewhere.");
}

static void test_one_gpu(void **state)
{
	int status[RANKS];

	job(open_alone, 2, NULL, true, LONG_MS, status);
	for (int rank = 0; rank < 2; rank++) {
		job_has(rank, "rank 0  ");
		job_has(rank, "rank 1  ");
		job_has(rank, "GPU-07");
		job_has(rank, "--allow-shared-gpu");
		assert_int_equal(said[rank].code, ERR_UNAVAILABLE);
	}
}

static void well_shared(struct rank *rank)
{
	rank->allow_shared = true;
	rank_well(rank);
}

static void test_one_gpu_allowed(void **state)
{
	int status[RANKS];

	job(well_shared, 2, NULL, true, LONG_MS, status);
	job_all_well(2, status);
	assert_string_equal(said[0].host_id, "berth-rank-0");
	assert_string_equal(said[1].host_id, "berth-rank-1");
}

static void test_too_old(void **state)
{
	int status[RANKS];

	job(open_alone, 1, "version=21212", false, LONG_MS, status);
	job_has(0, "libnccl.so.2 is NCCL 2.12.12, but berth requires 2.18.1 or newer");
	assert_int_equal(said[0].code, ERR_UNAVAILABLE);
}

/* Three buckets per step, of which rank 1 does not join one: it is busy with something else. */
static void steps(struct rank *rank)
{
	float *memory;

	WANT(!rank_open(rank));
	WANT(!rank->device->ops->memory_new(rank->device, 12, (void **)&memory, &rank->err));
	for (int64_t step = 1; step <= 4; step++) {
		if (rank->comm->ops->begin_step(rank->comm, rank->queue, step, &rank->err))
			return;
		for (int bucket = 0; bucket < 3; bucket++) {
			if (rank->rank == 1 && step == 3 && bucket == 2)
				sleep(SHORT_MS / 1000 + 4);
			if (rank->comm->ops->all_reduce(rank->comm, rank->queue, memory + bucket, 1,
							ELEMENT_F32, COMM_SUM, &rank->err)) {
				/* As the trainer does after any error. */
				rank->comm->ops->abort(rank->comm, rank->err.text);
				return;
			}
		}
		if (rank->comm->ops->finish(rank->comm, rank->queue, &rank->err))
			return;
		cudaStreamSynchronize(pretend_gpu_stream(rank->queue));
	}
}

/* A rank that closes as the trainer does: its published values stay available for a while. */
static void steps_closed(struct rank *rank)
{
	steps(rank);
	rank_close(rank);
}

static void test_late(void **state)
{
	int status[RANKS];

	job(steps_closed, 2, NULL, false, SHORT_MS, status);
	job_has(0, "waited 3 s at step 3, bucket 2 for rank 1 on ");
	job_has(0, "not in a collective; last at step 3, bucket 2");
	/* Its own deadline starts when it reaches that bucket. */
	job_has(1, "another rank failed: rank 0 on ");
	job_has(1, "waited 3 s at step 3, bucket 2 for rank 1");
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(said[rank].code, ERR_NETWORK);
}

/* Long before the deadline: the other ranks learn of it. */
static void test_broken(void **state)
{
	int status[RANKS];

	/* Rank 1's fifth collective is step 2's bucket 1. */
	job(steps_closed, 3, "error=1:4,hang=1:5", false, LONG_MS, status);
	for (int rank = 0; rank < 3; rank++) {
		job_has(rank, rank == 1 ? "rank 1 on " : "another rank failed: rank 1 on ");
		job_has(rank, "remote process exited");
		job_has(rank, "step 2, bucket");
		assert_int_equal(said[rank].code, ERR_NETWORK);
		assert_true(said[rank].seconds < LONG_MS / 2000.0);
	}
}

/* Rank 2 hangs outside of any collective when rank 1 fails, long before the deadline. */
static void gives_up(struct rank *rank)
{
	WANT(!rank_open(rank));
	WANT(!rank->comm->ops->barrier(rank->comm, rank->queue, &rank->err));
	if (rank->rank == 1)
		rank->comm->ops->abort(rank->comm, "the data is damaged");
	if (rank->rank == 2)
		for (;;)
			pause();
	rank->comm->ops->barrier(rank->comm, rank->queue, &rank->err);
	rank_close(rank);
}

static void test_gives_up(void **state)
{
	int status[RANKS];

	job(gives_up, 3, NULL, false, LONG_MS, status);
	job_has(1, "the data is damaged");
	for (int rank = 0; rank < 3; rank += 2) {
		job_has(rank, "another rank failed: rank 1 on ");
		job_has(rank, "the data is damaged");
	}
	assert_int_equal(status[2], 76);
	assert_true(said[0].seconds < LONG_MS / 2000.0);
}

/* Rank 0, which keeps the published values, ends without a message. */
static void rank_0_ends(struct rank *rank)
{
	WANT(!rank_open(rank));
	WANT(!rank->comm->ops->barrier(rank->comm, rank->queue, &rank->err));
	if (rank->rank == 0)
		sleep(3); /* they have queried it by then */
	else
		rank->comm->ops->barrier(rank->comm, rank->queue, &rank->err);
}

static void test_rank_0_ends(void **state)
{
	int status[RANKS];

	job(rank_0_ends, 3, NULL, false, LONG_MS, status);
	for (int rank = 1; rank < 3; rank++) {
		job_has(rank, " but rank 0 on ");
		job_has(rank, " has ended");
		assert_int_equal(said[rank].code, ERR_NETWORK);
		assert_true(said[rank].seconds < LONG_MS / 2000.0);
	}
}

static void *abort_soon(void *context)
{
	struct rank *rank = context;

	nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
	rank->comm->ops->abort(rank->comm, "the test requested it");
	return NULL;
}

static void aborted(struct rank *rank)
{
	pthread_t thread;

	WANT(!rank_open(rank));
	/* Rank 1 never enters the barrier. */
	if (rank->rank == 1) {
		sleep(2);
		return;
	}
	WANT(!pthread_create(&thread, NULL, abort_soon, rank));
	WANT(rank->comm->ops->barrier(rank->comm, rank->queue, &rank->err));
	pthread_join(thread, NULL);
	struct error again;

	WANT(rank->comm->ops->barrier(rank->comm, rank->queue, &again));
	WANT(!strcmp(again.text, rank->err.text));
	rank_close(rank);
}

static void test_abort(void **state)
{
	int status[RANKS];

	job(aborted, 2, NULL, false, LONG_MS, status);
	assert_int_equal(status[0], 0);
	job_has(0, "the test requested it");
	assert_true(said[0].seconds < 3 * 10);
}

/* The trainer's thread waits for something that an abort does not end. */
static void stuck(struct rank *rank)
{
	float *memory;

	WANT(!rank_open(rank));
	WANT(!rank->device->ops->memory_new(rank->device, 4, (void **)&memory, &rank->err));
	WANT(!rank->comm->ops->begin_step(rank->comm, rank->queue, 1, &rank->err));
	WANT(!rank->comm->ops->all_reduce(rank->comm, rank->queue, memory, 1, ELEMENT_F32, COMM_SUM,
					  &rank->err));
	for (;;)
		pause();
}

static void test_lost(void **state)
{
	int status[RANKS];

	job(stuck, 2, "hang=0:0", false, SHORT_MS, status);
	for (int rank = 0; rank < 2; rank++) {
		assert_int_equal(status[rank], 76);
		job_has(rank, "lost: rank");
		job_has(rank, "step 1, bucket 0");
	}
}

/* Without a GPU nothing is loaded. */
static void test_no_gpu(void **state)
{
	struct comm_request request = {.size = 2, .timeout_ms = SHORT_MS};
	struct error err = {0};
	struct comm_choice choice;

	assert_int_equal(comm_choose("nccl", &request, NULL, &choice, &err), -ERR_USAGE);
	assert_non_null(strstr(err.text, "--comm nccl requires GPUs"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest quick[] = {
		cmocka_unit_test(test_well),
		cmocka_unit_test(test_ordered),
		cmocka_unit_test(test_replay),
		cmocka_unit_test(test_one_gpu),
		cmocka_unit_test(test_one_gpu_allowed),
		cmocka_unit_test(test_too_old),
		cmocka_unit_test(test_abort),
		cmocka_unit_test(test_no_gpu),
	};
	/* Tests that wait for deadlines to expire. */
	const struct CMUnitTest deadlines[] = {
		cmocka_unit_test(test_replay_hangs),
		cmocka_unit_test(test_barrier_hangs),
		cmocka_unit_test(test_begin_hangs),
		cmocka_unit_test(test_who_did_not_come),
		cmocka_unit_test(test_who_did_not_enter),
		cmocka_unit_test(test_late),
		cmocka_unit_test(test_broken),
		cmocka_unit_test(test_gives_up),
		cmocka_unit_test(test_rank_0_ends),
		cmocka_unit_test(test_lost),
	};

	job_comm = "nccl";
	job_device = pretend_gpu_open;
	return argc > 1 && !strcmp(argv[1], "deadlines")
		       ? job_main(deadlines, sizeof deadlines / sizeof *deadlines)
		       : job_main(quick, sizeof quick / sizeof *quick);
}
