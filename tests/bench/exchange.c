/* SPDX-License-Identifier: BSD-3-Clause */
/* Benchmark of the exchange of many agents on this machine. Each has one rank, which puts 1 KiB and
 * enters a fence; afterwards each rank has the data of all.
 *     BERTH_MODULE_PATH=BUILD/lib/modules bench-exchange [AGENTS...]     (4 8 16 32 64)
 * The agents are the real ones, as processes connected by TCP on loopback. The messages that they
 * and the controller send are counted where they are sent (the linker puts __wrap_connection_send
 * there). The time runs from the entry of the last rank to the exit of the last one. It is the
 * median of JOBS: a server keeps what was put, so each job exchanges once. All share this machine's
 * cores. A second column has the same fence without data.
 *
 * A rank that leaves early waits in one more fence before it reads. Otherwise its n reads take the
 * cores that the exchange of the last ranks needs; they were four fifths of the measured time. The
 * n^2 reads have a column of their own.
 *
 * Exits with code 1 if the messages grow by more than n log n from the first size to the last.
 * BENCH_EXCHANGE_FANOUT=2 makes the tree deeper. The last messages of an agent that moves below
 * another then arrive after those that it sends from there, as happens on busy machines and
 * occasionally on any. */
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pmix.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "agent/agent.h"
#include "roles/jobs.h"
#include "overlay/connection.h"
#include "overlay/messages.h"
#include "overlay/wire.h"
#include "base/number.h"
#include "launch/launcher.h"

#define JOBS 15 /* with the default sizes; with given sizes, as in the tests, */
#define JOBS_NAMED 3
#define AGENTS_MAX 256
#define BYTES 1024
#define SHARED "BENCH_EXCHANGE"
#define FANOUT "BENCH_EXCHANGE_FANOUT"

enum fence { WARM, EMPTY, FULL, WAIT, FENCES };

/* Shared by controller, agents and ranks. */
struct shared {
	atomic_ulong messages, bytes;
	double in[FENCES][AGENTS_MAX], out[FENCES][AGENTS_MAX], read[AGENTS_MAX]; /* ms */
};
static struct shared *shared;

static double now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void map_shared(int fd)
{
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0 && shared != MAP_FAILED)
		return;
	perror("bench-exchange: shared memory");
	exit(74);
}

int __real_connection_send(struct connection *connection, const struct wire_message *message,
			   struct error *err);
int __wrap_connection_send(struct connection *connection, const struct wire_message *message,
			   struct error *err);
int __wrap_connection_send(struct connection *connection, const struct wire_message *message,
			   struct error *err)
{
	if (message->type == MESSAGE_GATHER || message->type == MESSAGE_GATHERED ||
	    message->type == MESSAGE_FETCH || message->type == MESSAGE_FETCHED) {
		atomic_fetch_add(&shared->messages, 1);
		atomic_fetch_add(&shared->bytes, wire_plain_size(message));
	}
	/* The kernel keeps it for 200 ms, even if the link is closed, because this copy is open. */
	if (message->type == MESSAGE_MOVED && getenv(FANOUT)) {
		int on = 1;

		setsockopt(connection->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
		fcntl(connection->fd, F_DUPFD_CLOEXEC, 0);
	}
	return __real_connection_send(connection, message, err);
}

/* ---- a rank ---- */

static void fill(unsigned char *data, unsigned rank)
{
	for (size_t i = 0; i < BYTES; i++)
		data[i] = (unsigned char)(rank * 31 + i);
}

/* Are rank's values on this node, so that no other node must be queried? */
static bool is_here(const pmix_proc_t *self, unsigned rank)
{
	unsigned char expected[BYTES];
	pmix_value_t *value = NULL;
	pmix_proc_t other;
	pmix_info_t here;
	bool right;

	PMIX_LOAD_PROCID(&other, self->nspace, rank);
	PMIX_INFO_LOAD(&here, PMIX_IMMEDIATE, NULL, PMIX_BOOL);
	fill(expected, rank);
	if (PMIx_Get(&other, "bench", &here, 1, &value) != PMIX_SUCCESS)
		return false;
	right = value->type == PMIX_BYTE_OBJECT && value->data.bo.size == BYTES &&
		!memcmp(value->data.bo.bytes, expected, BYTES);
	PMIX_VALUE_RELEASE(value);
	return right;
}

static int be_rank(void)
{
	const char *size = getenv("WORLD_SIZE");
	unsigned world = size ? (unsigned)atoi(size) : 0;
	unsigned char data[BYTES];
	pmix_value_t value = {.type = PMIX_BYTE_OBJECT, .data.bo = {(char *)data, BYTES}};
	pmix_proc_t self, job;
	pmix_info_t collect;

	if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS || !world)
		return 1;
	PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, NULL, PMIX_BOOL);
	fill(data, self.rank);
	for (enum fence fence = WARM; fence < FENCES; fence++) {
		if (fence == FULL && (PMIx_Put(PMIX_GLOBAL, "bench", &value) != PMIX_SUCCESS ||
				      PMIx_Commit() != PMIX_SUCCESS))
			return 2;
		shared->in[fence][self.rank] = now_ms();
		if (PMIx_Fence(&job, 1, &collect, fence == FULL) != PMIX_SUCCESS)
			return 3;
		shared->out[fence][self.rank] = now_ms();
	}
	for (unsigned rank = 0; rank < world; rank++)
		if (rank != self.rank && !is_here(&self, rank)) {
			fprintf(stderr, "rank %u lacks the value of rank %u\n", self.rank, rank);
			return 4;
		}
	shared->read[self.rank] = now_ms();
	return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 6;
}

/* ---- an agent ---- */

static int be_agent(void)
{
	struct agent_params params = {0};
	struct error err = {0};
	struct env *env = env_capture();
	int rc = env ? agent_params_read(env, &params, &err) : error_memory(&err, "an agent");

	if (!rc)
		rc = agent_run(&params, &err);
	if (rc)
		fprintf(stderr, "bench-exchange: agent: %s\n", err.text);
	env_free(env);
	return -rc;
}

/* ---- the controller ---- */

static void on_output(void *context, int rank, bool is_err, const char *text, size_t size,
		      bool newline)
{
	(void)context, (void)is_err, (void)newline;
	fprintf(stderr, "rank %d: %.*s\n", rank, (int)size, text);
}

static void on_note(void *context, enum log_level level, const char *text)
{
	(void)context;
	if (level == LOG_ERROR)
		fprintf(stderr, "bench-exchange: %s\n", text);
}

static int run_job(const struct env *env, const char *self, size_t agents, struct error *err)
{
	const char *const argv[] = {self, "rank", NULL};
	struct alloc_request local = {.node_rank = -1};
	struct alloc here = {0}, simulated = {0};
	struct job_sink sink = {.output = on_output, .note = on_note, .drained_fd = -1};
	struct job_result result = {0};
	int rc = alloc_read(env, &local, &here, err);

	if (!rc)
		rc = launcher_simulate_nodes(&here, agents, &simulated, err);
	struct launch_options launch = {
		.alloc = &simulated,
		.launcher = &launcher_loopback,
		.env = env,
		.berth_path = self,
		.fan_out = getenv(FANOUT) ? atoi(getenv(FANOUT)) : 0,
		.node_timeout_ms = 60000,
		.start_timeout_ms = 120000,
	};
	struct job_request request = {
		.launch = &launch,
		.argv = argv,
		.plan = {.ranks_per_node = 1},
		.pmix = JOB_PMIX_ON,
		.any_master_addr = true, /* loopback: nothing to discover */
	};
	const struct jobs_entry entry = {.request = &request, .sink = &sink};

	if (!rc)
		rc = jobs_run(&(struct jobs_request){.entries = &entry, .count = 1}, &result, err);
	if (!rc && result.code)
		rc = error_set(err, ERR_NETWORK, "%s", result.cause.text ? result.cause.text : "?");
	job_result_free(&result);
	alloc_free(&here);
	alloc_free(&simulated);
	return rc;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double largest(const double *values, size_t count)
{
	double most = values[0];

	for (size_t i = 1; i < count; i++)
		most = values[i] > most ? values[i] : most;
	return most;
}

struct seen {
	double ms, messages;
};

static double took(enum fence fence, size_t agents)
{
	return largest(shared->out[fence], agents) - largest(shared->in[fence], agents);
}

static int measure(const struct env *env, const char *self, size_t agents, int jobs,
		   struct seen *out, struct error *err)
{
	double full[JOBS], empty[JOBS], reads[JOBS], kib = 0;
	int rc = 0;

	for (int job = 0; !rc && job < jobs; job++) {
		memset(shared, 0, sizeof *shared);
		rc = run_job(env, self, agents, err);
		full[job] = took(FULL, agents);
		empty[job] = took(EMPTY, agents);
		reads[job] = largest(shared->read, agents) - largest(shared->out[WAIT], agents);
		out->messages = (double)shared->messages / FENCES;
		kib = (double)shared->bytes / 1024;
	}
	if (rc)
		return rc;
	qsort(full, (size_t)jobs, sizeof *full, compare);
	qsort(empty, (size_t)jobs, sizeof *empty, compare);
	qsort(reads, (size_t)jobs, sizeof *reads, compare);
	out->ms = full[jobs / 2];
	printf("%6zu %11.2f %7.1f %7.1f %11.2f %9.2f %9.1f %7.2f %8.0f\n", agents, out->ms, full[0],
	       full[jobs - 1], empty[jobs / 2], reads[jobs / 2], out->messages,
	       out->messages / (double)agents, kib);
	fflush(stdout);
	return 0;
}

static int compare_sizes(const struct env *env, const char *self, int count,
			 const char *const *words, struct error *err)
{
	static const char *const usual[] = {"4", "8", "16", "32", "64"};
	struct seen first = {0}, last = {0};
	int from = 0, to = 0, rc = 0, jobs = count ? JOBS_NAMED : JOBS;

	if (!count) {
		words = usual;
		count = sizeof usual / sizeof *usual;
	}
	printf("        1 KiB, ms                   no data, ms  reads, ms messages\n"
	       "agents      median fastest slowest      median    median   a fence  a node KiB "
	       "sent\n");
	for (int i = 0; !rc && i < count; i++) {
		rc = number_int("AGENTS", words[i], 2, AGENTS_MAX, &to, err);
		if (!rc)
			rc = measure(env, self, (size_t)to, jobs, &last, err);
		if (i == 0) {
			from = to;
			first = last;
		}
	}
	if (rc || from == to)
		return rc;
	double allowed = to * log2(to) / (from * log2(from));

	printf("from %d to %d agents: time %.1f times, messages %.1f times; n log n: %.1f times\n",
	       from, to, last.ms / first.ms, last.messages / first.messages, allowed);
	return last.messages / first.messages > allowed ? -1 : 0;
}

int main(int argc, char **argv)
{
	const char *at = getenv(SHARED);
	char self[4096] = "", path[64];
	struct error err = {0};
	struct env *env;
	int fd, rc;

	if (at && argc == 2 && (!strcmp(argv[1], "agent") || !strcmp(argv[1], "rank"))) {
		map_shared(open(at, O_RDWR | O_CLOEXEC));
		return strcmp(argv[1], "agent") ? be_rank() : be_agent();
	}
	fd = memfd_create("bench-exchange", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, sizeof *shared) ||
	    readlink("/proc/self/exe", self, sizeof self - 1) < 0) {
		perror("bench-exchange");
		return 74;
	}
	map_shared(fd);
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)getpid(), fd);
	setenv(SHARED, path, 1);
	env = env_capture();
	rc = env ? compare_sizes(env, self, argc - 1, (const char *const *)argv + 1, &err)
		 : error_memory(&err, "it");
	if (rc && err.code)
		fprintf(stderr, "bench-exchange: %s\n", err.text);
	env_free(env);
	return -rc;
}
