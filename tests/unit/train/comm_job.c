/* SPDX-License-Identifier: BSD-3-Clause */
#include "comm_job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "base/env.h"
#include "train/comm/meeting.h"

struct said *said;
const char *job_comm;
struct device *(*job_device)(void);

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void lost(void *context, const char *why)
{
	struct said *own = context;

	snprintf(own->text, sizeof own->text, "lost: %s", why);
	_exit(76);
}

int rank_open(struct rank *rank)
{
	struct env *env = env_capture();
	struct comm_request request = {
		.rank = rank->rank,
		.size = rank->size,
		.local_rank = rank->rank,
		.timeout_ms = rank->timeout_ms,
		.env = env,
		.lost = lost,
		.context = &said[rank->rank],
	};

	rank->device = job_device();
	if (!env || !rank->device ||
	    rank->device->ops->queue_new(rank->device, &rank->queue, &rank->err))
		_exit(98);
	request.queue = rank->queue;

	struct comm_choice choice;
	struct meeting_facts facts = {0};
	const struct meeting_rules rules = {.allow_shared_gpu = rank->allow_shared};
	int rc = ranks_join_store(env, &rank->ranks, &rank->err);

	if (!rc)
		rc = comm_choose(job_comm, &request, env_get(env, "BERTH_MODULE_PATH"), &choice,
				 &rank->err);
	if (!rc)
		meeting_describe(&choice, &request, &rules, &facts);
	if (!rc)
		rc = meeting_hold(rank->ranks, &facts, &rules, rank->timeout_ms, &rank->meeting,
				  &rank->err);
	request.ranks = rank->ranks;
	request.meeting = rank->meeting;
	if (!rc)
		rc = choice.ops->open(&request, &rank->comm, &rank->err);
	if (rc) { /* waits until the others have heard of it, if this rank is 0 */
		ranks_leave(rank->ranks);
		free(rank->meeting);
	}
	env_free(env);
	return rc;
}

void rank_close(struct rank *rank)
{
	if (rank->comm->ops->close(rank->comm)) {
		ranks_leave(rank->ranks);
		free(rank->meeting);
	}
	rank->device->ops->queue_free(rank->queue);
	rank->device->ops->close(rank->device);
}

static int free_port(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&at, size) &&
		    !getsockname(fd, (struct sockaddr *)&at, &size));
	close(fd);
	return ntohs(at.sin_port);
}

static void set_number(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof text, "%d", value);
	setenv(name, text, 1);
}

static void rank_run(rank_role role, int number, int size, int port, const char *fault, int gpu,
		     int timeout_ms)
{
	struct rank rank = {.rank = number, .size = size, .timeout_ms = timeout_ms};
	double begin = now_s();

	alarm(100);
	set_number("RANK", number);
	set_number("WORLD_SIZE", size);
	set_number("LOCAL_RANK", number);
	set_number("MASTER_PORT", port);
	setenv("MASTER_ADDR", "127.0.0.1", 1);
	set_number("FAKE_CUDA_GPU", gpu);
	if (fault)
		setenv("STAND_IN_NCCL", fault, 1);
	role(&rank);
	snprintf(said[number].text, sizeof said[number].text, "%s", rank.err.text);
	said[number].code = rank.err.code;
	said[number].seconds = now_s() - begin;
	_exit(0);
}

void job(rank_role role, int size, const char *fault, bool one_gpu, int timeout_ms, int *status)
{
	pid_t pids[RANKS];
	int port = free_port();

	memset(said, 0, RANKS * sizeof *said);
	for (int rank = 0; rank < size; rank++) {
		pids[rank] = fork();
		assert_true(pids[rank] >= 0);
		if (!pids[rank])
			rank_run(role, rank, size, port, fault, one_gpu ? 7 : rank, timeout_ms);
	}
	for (int rank = 0; rank < size; rank++) {
		int state;

		assert_int_equal(waitpid(pids[rank], &state, 0), pids[rank]);
		status[rank] = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
	}
}

void job_has(int rank, const char *text)
{
	if (!strstr(said[rank].text, text))
		fail_msg("rank %d reports \"%s\", expected \"%s\" in it", rank, said[rank].text,
			 text);
}

void job_all_well(int size, const int *status)
{
	for (int rank = 0; rank < size; rank++) {
		assert_string_equal(said[rank].text, "");
		assert_int_equal(status[rank], 0);
	}
}

static void reduce_one(struct rank *rank, enum element_type type, enum comm_reduce reduce,
		       double expected)
{
	enum { COUNT = 100000 }; /* more than the stand-in handles at once */
	size_t width = element_size(type);
	char *host = malloc(COUNT * width);
	void *memory;

	WANT(host &&
	     !rank->device->ops->memory_new(rank->device, COUNT * width, &memory, &rank->err));
	for (int i = 0; i < COUNT; i++) {
		double value = rank->rank + 1 + i % 7;

		if (type == ELEMENT_F32)
			((float *)(void *)host)[i] = (float)value;
		else if (type == ELEMENT_F64)
			((double *)(void *)host)[i] = value;
		else if (type == ELEMENT_I32)
			((int32_t *)(void *)host)[i] = (int32_t)value;
		else
			((int64_t *)(void *)host)[i] = (int64_t)value;
	}
	rank->device->ops->copy_in(rank->queue, memory, host, COUNT * width, &rank->err);
	WANT(!rank->comm->ops->all_reduce(rank->comm, rank->queue, memory, COUNT, type, reduce,
					  &rank->err));
	WANT(!rank->comm->ops->finish(rank->comm, rank->queue, &rank->err));
	memset(host, 0, COUNT * width);
	rank->device->ops->copy_out(rank->queue, host, memory, COUNT * width, &rank->err);
	for (int i = 0; i < COUNT; i++) {
		double want = reduce == COMM_SUM ? expected + i % 7 * rank->size : expected + i % 7;
		double got = type == ELEMENT_F32   ? (double)((float *)(void *)host)[i]
			     : type == ELEMENT_F64 ? ((double *)(void *)host)[i]
			     : type == ELEMENT_I32 ? ((int32_t *)(void *)host)[i]
						   : (double)((int64_t *)(void *)host)[i];

		WANT(got == want);
	}
	rank->device->ops->memory_free(rank->device, memory);
	free(host);
}

void rank_well(struct rank *rank)
{
	double values[2] = {rank->rank, -rank->rank}, gathered[RANKS];
	unsigned char *all, shared[5] = {0};
	int sum = rank->size * (rank->size + 1) / 2;

	WANT(!rank_open(rank));
	for (enum element_type type = ELEMENT_F32; type <= ELEMENT_F64; type++) {
		reduce_one(rank, type, COMM_SUM, sum);
		reduce_one(rank, type, COMM_MIN, 1);
		reduce_one(rank, type, COMM_MAX, rank->size);
	}
	WANT(!comm_reduce_on_host(rank->comm, rank->queue, values, 2, COMM_MAX, &rank->err));
	WANT(values[0] == rank->size - 1 && values[1] == 0);
	if (rank->rank == 1)
		memcpy(shared, "hello", 5);
	WANT(!comm_broadcast_on_host(rank->comm, rank->queue, shared, 5, 1, &rank->err));
	WANT(!memcmp(shared, "hello", 5));
	WANT(!rank->device->ops->memory_new(rank->device, (size_t)rank->size * 8, (void **)&all,
					    &rank->err));
	values[0] = rank->rank * 2.5;
	WANT(!rank->comm->ops->all_gather(rank->comm, rank->queue, values, all, sizeof *values,
					  &rank->err));
	WANT(!rank->comm->ops->finish(rank->comm, rank->queue, &rank->err));
	WANT(!rank->device->ops->copy_out(rank->queue, gathered, all, (size_t)rank->size * 8,
					  &rank->err));
	for (int r = 0; r < rank->size; r++)
		WANT(gathered[r] == r * 2.5);
	rank->device->ops->memory_free(rank->device, all);
	WANT(!rank->comm->ops->barrier(rank->comm, rank->queue, &rank->err));
	snprintf(said[rank->rank].host_id, sizeof said->host_id, "%s",
		 getenv("NCCL_HOSTID") ? getenv("NCCL_HOSTID") : "");
	rank_close(rank);
}

int job_main(const struct CMUnitTest *tests, size_t count)
{
	said = mmap(NULL, RANKS * sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		    -1, 0);
	return said == MAP_FAILED ? 1 : _cmocka_run_group_tests(job_comm, tests, count, NULL, NULL);
}
