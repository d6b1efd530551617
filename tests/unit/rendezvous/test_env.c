/* SPDX-License-Identifier: BSD-3-Clause */
/* Places from the environment, and the exchange between processes that have only environment
 * variables. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "rendezvous/ranks.h"
#include "rendezvous/store.h"
#include "../../support/child.h"
#include "../../support/wait.h"

/* For what must happen. */
#define LIMIT_MS wait_ms(30000)

/* Make an environment from "A=1 B=2". */
static struct env *env_of(const char *text)
{
	struct env *env = env_new();
	char *copy = strdup(text), *rest = copy, *word;

	while ((word = strsep(&rest, " "))) {
		char *equals = strchr(word, '=');

		if (!equals)
			continue;
		*equals = 0;
		assert_int_equal(env_set(env, word, equals + 1, ENV_FROM_USER, NULL, NULL), 0);
	}
	free(copy);
	return env;
}

#define TWO "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 "
#define HEX64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const struct {
	const char *env;
	struct ranks_place place;
	const char *wrong; /* what the error must name; NULL: none */
} rows[] = {
	{"", {.size = 1, .local_size = 1, .address = "127.0.0.1"}},
	{"RANK=0 WORLD_SIZE=1", {.size = 1, .local_size = 1, .address = "127.0.0.1"}},
	{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 "
	 "MASTER_PORT=29500",
	 {.rank = 3,
	  .size = 4,
	  .local_rank = 1,
	  .local_size = 2,
	  .node_rank = 1,
	  .address = "10.0.0.1",
	  .port = 29500}},
	{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 GROUP_RANK=1 MASTER_ADDR=fd00::1",
	 {.rank = 3, .size = 4, .local_rank = 1, .node_rank = 1, .address = "fd00::1"}},
	{"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 NODE_RANK=7 GROUP_RANK=0 "
	 "TORCHELASTIC_USE_AGENT_STORE=True",
	 {.rank = 1, .size = 2, .local_rank = 1}},
	{"RANK=1", .wrong = "WORLD_SIZE"},
	{"WORLD_SIZE=2", .wrong = "RANK is not"},
	{"RANK=2 WORLD_SIZE=2 LOCAL_RANK=0", .wrong = "RANK is 2 but WORLD_SIZE is 2"},
	{"RANK=1 WORLD_SIZE=2", .wrong = "LOCAL_RANK is not set"},
	{"RANK=1 WORLD_SIZE=4 LOCAL_RANK=2", .wrong = "LOCAL_RANK is 2 but RANK is 1"},
	{"RANK=3 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", .wrong = "LOCAL_WORLD_SIZE is 2"},
	{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=3", .wrong = "LOCAL_WORLD_SIZE is 3"},
	{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 NODE_RANK=0 GROUP_RANK=1", .wrong = "GROUP_RANK is 1"},
	{"RANK=-1 WORLD_SIZE=2 LOCAL_RANK=0", .wrong = "RANK"},
	{"RANK=0x1 WORLD_SIZE=2 LOCAL_RANK=0", .wrong = "RANK"},
	{"RANK=0 WORLD_SIZE=99999999999 LOCAL_RANK=0", .wrong = "WORLD_SIZE"},
	{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_PORT=70000", .wrong = "MASTER_PORT"},
	{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_PORT=", .wrong = "MASTER_PORT"},
	{TWO "BERTH_STORE_SECRET=" HEX64, {.size = 2}},
	{TWO "BERTH_STORE_SECRET=", .wrong = "BERTH_STORE_SECRET"},
	{TWO "BERTH_STORE_SECRET=secret", .wrong = "64 hexadecimal digits"},
	{TWO "BERTH_STORE_SECRET=0" HEX64, .wrong = "BERTH_STORE_SECRET"},
	{TWO "BERTH_STORE_SECRET=00" HEX64, .wrong = "BERTH_STORE_SECRET"},
	{TWO "BERTH_STORE_SECRET=" HEX64 "g", .wrong = "BERTH_STORE_SECRET"},
	{"RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR="
	 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
	 .wrong = "MASTER_ADDR"},
};

static void test_place(void **state)
{
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct env *env = env_of(rows[i].env);
		struct ranks *ranks = NULL;
		struct error err = {0};
		int rc = ranks_join(env, 1000, &ranks, &err);

		env_free(env);
		if (rows[i].wrong) {
			assert_int_equal(rc, -ERR_DATA);
			assert_null(ranks);
			if (!strstr(err.text, rows[i].wrong))
				fail_msg("'%s': %s", rows[i].env, err.text);
			continue;
		}
		if (rc)
			fail_msg("'%s': %s", rows[i].env, err.text);
		const struct ranks_place *place = ranks_place(ranks), *want = &rows[i].place;

		assert_int_equal(place->rank, want->rank);
		assert_int_equal(place->size, want->size);
		assert_int_equal(place->local_rank, want->local_rank);
		assert_int_equal(place->local_size, want->local_size);
		assert_int_equal(place->node_rank, want->node_rank);
		assert_int_equal(place->port, want->port);
		assert_string_equal(place->address, want->address);
		ranks_leave(ranks);
	}
}

static void test_alone(void **state)
{
	struct env *env = env_of("");
	struct ranks *ranks = NULL;
	struct error err = {0};
	void *data;
	size_t size;

	assert_int_equal(ranks_join(env, 1000, &ranks, &err), 0);
	env_free(env);
	assert_int_equal(ranks_barrier(ranks, 10, &err), 0);
	assert_int_equal(ranks_put(ranks, "a", "one", 3, &err), 0);
	assert_int_equal(ranks_put(ranks, "a", "two", 3, &err), 0);
	assert_int_equal(ranks_get(ranks, 0, "a", 10, &data, &size, &err), 0);
	assert_int_equal(size, 3);
	assert_memory_equal(data, "two", 3);
	free(data);
	assert_int_equal(ranks_get(ranks, 0, "b", 10, &data, &size, &err), -ERR_NETWORK);
	assert_int_equal(ranks_get(ranks, 1, "a", 10, &data, &size, &err), -ERR_DATA);
	assert_int_equal(ranks_get(ranks, RANKS_ANY, "a", 10, &data, &size, &err), -ERR_DATA);
	assert_int_equal(ranks_get_any(ranks, "a", 10, &data, &size, &err), 0);
	assert_memory_equal(data, "two", 3);
	free(data);
	assert_int_equal(ranks_get_any(ranks, "b", 10, &data, &size, &err), -ERR_NETWORK);
	assert_int_equal(ranks_put(ranks, "", "x", 1, &err), -ERR_DATA);
	ranks_leave(ranks);
	ranks_leave(NULL);
}

/* ---- the exchange ---- */

static int free_port(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;

	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
	close(fd);
	return ntohs(address.sin_port);
}

static struct ranks *join_rank(int rank, int size, int port, const char *more)
{
	char text[256];
	struct ranks *ranks = NULL;
	struct error err = {0};

	snprintf(text, sizeof text,
		 "RANK=%d WORLD_SIZE=%d LOCAL_RANK=%d LOCAL_WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 "
		 "MASTER_PORT=%d %s",
		 rank, size, rank, size, port, more);
	struct env *env = env_of(text);

	if (ranks_join(env, LIMIT_MS, &ranks, &err))
		fprintf(stderr, "%s\n", err.text);
	env_free(env);
	return ranks;
}

static void fork_ranks(int size, int port, int (*run)(int rank, int size, int port), int *codes)
{
	pid_t pids[8];

	for (int rank = 0; rank < size; rank++) {
		pids[rank] = fork();
		if (pids[rank] == 0) {
			alarm((unsigned)LIMIT_MS / 1000 * 4);
			_exit(run(rank, size, port));
		}
	}
	for (int rank = 0; rank < size; rank++) {
		int status = 0;

		assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
		codes[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	}
}

static void expect_all(const int *codes, int size)
{
	for (int rank = 0; rank < size; rank++)
		if (codes[rank])
			fail_msg("rank %d: code %d", rank, codes[rank]);
}

static int run_exchange(int rank, int size, int port)
{
	struct ranks *ranks = join_rank(rank, size, port, "");
	struct error err = {0};
	size_t big = 3 << 20;
	char *value = malloc(big);

	if (!ranks || !value)
		return FAILED_HERE(10);
	for (int round = 0; round < 3; round++) {
		memset(value, 'a' + rank + round, big);
		/* rank 0 comes last, so the others have to wait for it */
		if (rank == 0)
			usleep(100000);
		if (ranks_put(ranks, "value", value, big, &err))
			return FAILED_HERE(11);
		if (ranks_barrier(ranks, LIMIT_MS, &err))
			return FAILED_HERE(12);
		for (int peer = 0; peer < size; peer++) {
			char *data;
			size_t got;

			if (ranks_get(ranks, peer, "value", LIMIT_MS, (void **)&data, &got, &err))
				return FAILED_HERE(13);
			if (got != big || data[0] != 'a' + peer + round ||
			    data[big - 1] != 'a' + peer + round)
				return FAILED_HERE(14);
			free(data);
		}
		if (ranks_barrier(ranks, LIMIT_MS, &err))
			return FAILED_HERE(15);
	}
	/* A get waits for a value that is put later. An empty value is a value. */
	if (rank == 1)
		usleep(200000);
	if (rank == 1 && ranks_put(ranks, "late", NULL, 0, &err))
		return FAILED_HERE(16);
	void *data;
	size_t got;

	if (ranks_get(ranks, 1, "late", LIMIT_MS, &data, &got, &err) || got)
		return FAILED_HERE(17);
	free(data);
	free(value);
	if (ranks_barrier(ranks, LIMIT_MS, &err)) /* rank 0 leaves last */
		return FAILED_HERE(18);
	ranks_leave(ranks);
	return 0;
}

static void test_exchange(void **state)
{
	int codes[8];

	for (int size = 2; size <= 5; size += 3) {
		fork_ranks(size, free_port(), run_exchange, codes);
		expect_all(codes, size);
	}
}

/* Put a value and return the peer's; -1: an error. */
static int swap(struct ranks *ranks, int peer, const char *kind, int turn, bool value)
{
	char key[16], byte = value, *data;
	struct error err = {0};
	size_t size;

	snprintf(key, sizeof key, "%s-%d", kind, turn);
	if (ranks_put(ranks, key, &byte, 1, &err) ||
	    ranks_get(ranks, peer, key, LIMIT_MS, (void **)&data, &size, &err))
		return -1;
	byte = *data;
	free(data);
	return byte;
}

/* The barrier of ranks 0 and 2 names 1 and 3. If one of the two is scheduled too late to enter in
 * time, the other names it as well, and both try again. */
static bool see_missing(struct ranks *ranks, int peer)
{
	struct error err = {0};
	int seen, others = 0;

	for (int turn = 0; turn < 20 && others >= 0; turn++) {
		if (swap(ranks, peer, "turn", turn, true) < 0 ||
		    ranks_barrier(ranks, 500, &err) != -ERR_NETWORK)
			return false;
		seen = strstr(err.text, "waiting for ranks 1,3") != NULL;
		others = swap(ranks, peer, "seen", turn, seen);
		if (seen && others > 0)
			return true;
	}
	fprintf(stderr, "%s\n", err.text);
	return false;
}

/* Ranks 1 and 3 do not enter the barrier; then rank 1 ends without a goodbye. */
static int run_missing(int rank, int size, int port)
{
	struct ranks *ranks = join_rank(rank, size, port, "");
	struct error err = {0};
	void *data;
	size_t got;

	if (!ranks || ranks_barrier(ranks, LIMIT_MS, &err))
		return FAILED_HERE(10);
	if (rank == 1 || rank == 3) {
		if (ranks_get(ranks, 0, "leave", 3 * LIMIT_MS, &data, &got, &err))
			return FAILED_HERE(15);
		free(data);
		usleep(300000); /* the others usually wait by then */
		if (rank == 3)
			ranks_leave(ranks);
		return 0;
	}
	if (ranks_get(ranks, 3, "x", 200, &data, &got, &err) != -ERR_NETWORK ||
	    !strstr(err.text, "rank 3 has not put 'x'"))
		return FAILED_HERE(11);
	if (!see_missing(ranks, 2 - rank))
		return FAILED_HERE(12);
	if (rank == 0 && ranks_put(ranks, "leave", NULL, 0, &err))
		return FAILED_HERE(16);
	if (ranks_get(ranks, 1, "x", LIMIT_MS, &data, &got, &err) != -ERR_NETWORK ||
	    !strstr(err.text, "rank 1 has left"))
		return FAILED_HERE(13);
	if (ranks_barrier(ranks, LIMIT_MS, &err) != -ERR_NETWORK || !strstr(err.text, "has left"))
		return FAILED_HERE(14);
	/* Rank 0 keeps the values: it leaves last. */
	if (rank == 2 && ranks_put(ranks, "end", NULL, 0, &err))
		return FAILED_HERE(17);
	if (rank == 0 && ranks_get(ranks, 2, "end", LIMIT_MS, &data, &got, &err))
		return FAILED_HERE(18);
	ranks_leave(ranks);
	return 0;
}

static void test_missing(void **state)
{
	int codes[8];

	fork_ranks(4, free_port(), run_missing, codes);
	expect_all(codes, 4);
}

/* A get from any rank: no value yet; the first value put; and no one left to ask. */
static int run_any(int rank, int size, int port)
{
	struct ranks *ranks = join_rank(rank, size, port, "");
	struct error err = {0};
	void *data;
	size_t got;

	if (!ranks || ranks_barrier(ranks, LIMIT_MS, &err))
		return FAILED_HERE(
			10); /* all are connected, which the time limit of a get would include */
	if (ranks_get_any(ranks, "end", 50, &data, &got, &err) != -ERR_NETWORK ||
	    !strstr(err.text, "no rank has put 'end' within 50 ms"))
		return FAILED_HERE(11);
	if (ranks_barrier(ranks, LIMIT_MS, &err))
		return FAILED_HERE(18);
	if (rank == 2 && ranks_put(ranks, "end", "first", 5, &err))
		return FAILED_HERE(12);
	if (ranks_barrier(ranks, LIMIT_MS, &err))
		return FAILED_HERE(13);
	if (rank == 1 && ranks_put(ranks, "end", "second", 6, &err))
		return FAILED_HERE(14);
	if (ranks_barrier(ranks, LIMIT_MS, &err))
		return FAILED_HERE(15);
	if (ranks_get_any(ranks, "end", LIMIT_MS, &data, &got, &err) || got != 5 ||
	    memcmp(data, "first", 5))
		return FAILED_HERE(16);
	free(data);
	if (ranks_barrier(ranks, LIMIT_MS, &err))
		return FAILED_HERE(17);
	/* Rank 0 keeps the values and ends without a goodbye once the others have passed the
	 * barrier. It may end before it answers their put. */
	if (rank == 0) {
		for (int peer = 1; peer < size; peer++)
			if (ranks_get(ranks, peer, "passed", LIMIT_MS, &data, &got, &err))
				return FAILED_HERE(22);
		usleep(300000); /* the others usually wait by then */
		return 0;
	}
	(void)ranks_put(ranks, "passed", NULL, 0, &err);
	for (int turn = 0; turn < LIMIT_MS / 100; turn++) {
		int rc = ranks_get_any(ranks, "other", 100, &data, &got, &err);

		if (rc == -ERR_UNAVAILABLE) {
			ranks_leave(ranks);
			return err.code == ERR_UNAVAILABLE ? 0 : FAILED_HERE(19);
		}
		if (rc != -ERR_NETWORK)
			return FAILED_HERE(20);
	}
	return FAILED_HERE(21);
}

static void test_any(void **state)
{
	int codes[8];

	fork_ranks(3, free_port(), run_any, codes);
	expect_all(codes, 3);
}

static void test_no_rank_0(void **state)
{
	struct ranks *ranks = join_rank(1, 2, free_port(), "");
	struct error err = {0};

	assert_non_null(ranks);
	assert_int_equal(ranks_barrier(ranks, 300, &err), -ERR_NETWORK);
	assert_non_null(strstr(err.text, "cannot reach rank 0"));
	ranks_leave(ranks);
}

static void test_no_address(void **state)
{
	struct env *env = env_of("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1");
	struct ranks *ranks = NULL;
	struct error err = {0};

	assert_int_equal(ranks_join(env, 100, &ranks, &err), 0);
	assert_int_equal(ranks_barrier(ranks, 100, &err), -ERR_DATA);
	assert_non_null(strstr(err.text, "MASTER_PORT is not set"));
	ranks_leave(ranks);
	env_free(env);
}

/* torchrun itself listens on MASTER_PORT: the ranks meet at the next port. */
static void test_torchrun(void **state)
{
	int port = free_port();
	struct error err = {0};
	int fd = store_listen("127.0.0.1", port, &err);
	struct ranks *first = join_rank(0, 2, port, "TORCHELASTIC_USE_AGENT_STORE=True");
	struct ranks *second = join_rank(1, 2, port, "TORCHELASTIC_USE_AGENT_STORE=True");
	size_t size = 0;
	void *data = NULL;

	assert_true(fd >= 0);
	assert_int_equal(ranks_put(first, "key", "value", 5, &err), 0);
	assert_int_equal(ranks_get(second, 0, "key", 20000, &data, &size, &err), 0);
	assert_int_equal(size, 5);
	free(data);
	ranks_leave(second);
	ranks_leave(first);
	close(fd);
}

static void test_port_taken(void **state)
{
	int port = free_port();
	struct error err = {0};
	int fd = store_listen("127.0.0.1", port, &err);
	struct ranks *ranks = join_rank(0, 2, port, ""), *other;

	assert_true(fd >= 0);
	assert_int_equal(ranks_barrier(ranks, 100, &err), -ERR_NETWORK);
	assert_non_null(strstr(err.text, "uses the port"));
	ranks_leave(ranks);
	/* A program that accepts connections but does not speak our protocol. */
	other = join_rank(1, 2, port, "");
	assert_int_equal(ranks_barrier(other, 300, &err), -ERR_NETWORK);
	assert_non_null(strstr(err.text, "did not answer within"));
	ranks_leave(other);
	close(fd);
}

static int plain_connect(int port)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)port),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct timeval limit = {.tv_sec = 10};

	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	return fd;
}

/* Garbage, silence, a peer of another job, a wrong size, a duplicate rank: none disturbs the
 * ranks. */
static void test_strangers(void **state)
{
	int port = free_port(), own, silent[8], rubbish;
	struct store_server *server;
	struct store_client client, twice;
	struct store_job job = {.label = "job/0"}, other = {.label = "other/0"}, another = job;
	struct error err = {0};
	char byte;

	assert_int_equal(store_job_set_secret(&job, HEX64, &err), 0);
	assert_int_equal(store_job_set_secret(&other, HEX64, &err), 0);
	assert_int_equal(store_job_set_secret(&another, NULL, &err), 0);
	assert_int_equal(store_serve("127.0.0.1", port, 2, &job, &server, &own, &err), 0);
	for (int i = 0; i < 8; i++)
		silent[i] = plain_connect(port);
	rubbish = plain_connect(port);
	assert_true(send(rubbish, "GET / HTTP/1.1\r\n\r\nand more", 26, MSG_NOSIGNAL) > 0);
	assert_int_equal(recv(rubbish, &byte, 1, 0), 0); /* closed at once */
	close(rubbish);

	/* A header that announces too many bytes, then a message that only ranks may send. */
	struct frame frames[] = {{.kind = STORE_HELLO, .size = STORE_PROOF_BYTES + 1},
				 {.kind = STORE_BARRIER}};

	for (int i = 0; i < 2; i++) {
		int earlier = plain_connect(port);
		struct channel channel = {.fd = plain_connect(port)};

		assert_int_equal(
			channel_send(&channel, &frames[i], "34 bytes, of which it reads none"), 0);
		assert_int_equal(channel_wait(&channel, LIMIT_MS), 1);
		assert_true(recv(channel.fd, &byte, 1, 0) <= 0);
		/* At once: after 5 s the earlier connection would be closed, too. */
		assert_true(recv(earlier, &byte, 1, MSG_DONTWAIT) < 0);
		close(earlier);
		channel_close(&channel);
	}
	assert_int_equal(store_connect("127.0.0.1", port, 1, 2, &other, LIMIT_MS, &client, &err),
			 -ERR_DATA);
	assert_non_null(strstr(err.text, "another job"));
	assert_int_equal(store_connect("127.0.0.1", port, 1, 3, &job, LIMIT_MS, &client, &err),
			 -ERR_DATA);
	assert_non_null(strstr(err.text, "WORLD_SIZE"));
	/* The label without the secret. */
	assert_int_equal(store_connect("127.0.0.1", port, 1, 2, &another, LIMIT_MS, &client, &err),
			 -ERR_DATA);
	assert_non_null(strstr(err.text, "does not know this job's secret"));
	assert_int_equal(store_connect("127.0.0.1", port, 1, 2, &job, LIMIT_MS, &client, &err), 0);
	assert_int_equal(store_connect("127.0.0.1", port, 1, 2, &job, LIMIT_MS, &twice, &err),
			 -ERR_DATA);
	assert_non_null(strstr(err.text, "RANK 1"));

	struct store_client zero = {.channel.fd = own, .rank = 0, .size = 2};
	void *data;
	size_t size;

	assert_int_equal(store_put(&zero, "k", "v", 1, LIMIT_MS, &err), 0);
	assert_int_equal(store_get(&client, 0, "k", LIMIT_MS, &data, &size, &err), 0);
	free(data);
	store_close(&client);
	store_close(&zero);
	store_stop(server, 2000);
	for (int i = 0; i < 8; i++)
		close(silent[i]);
}

#ifdef __SANITIZE_THREAD__
#define RESIDENT_FACTOR 16 /* of the memory that is accessed, TSan keeps shadows */
#else
#define RESIDENT_FACTOR 4
#endif

/* The most memory that this process has ever used. */
static size_t peak(void)
{
	size_t kib = 0;
	char line[256];
	FILE *file = fopen("/proc/self/status", "re");

	assert_non_null(file);
	while (!kib && fgets(line, sizeof line, file))
		if (sscanf(line, "VmHWM: %zu", &kib) != 1)
			kib = 0;
	fclose(file);
	assert_true(kib > 0);
	return kib << 10;
}

/* Twice as many silent connections as are kept do not shut a rank out: the oldest go. A rank that
 * asks for values and reads no answer is disconnected before they use much memory. */
static void test_floods(void **state)
{
	int port = free_port(), own, silent[2 * STORE_UNIDENTIFIED_MAX];
	struct store_server *server;
	struct store_client client;
	struct store_job job = {.label = "job/0"};
	struct error err = {0};
	size_t value_size = 4 << 20, before;
	char *value = calloc(1, value_size), byte;

	assert_int_equal(store_job_set_secret(&job, NULL, &err), 0);
	assert_int_equal(store_serve("127.0.0.1", port, 2, &job, &server, &own, &err), 0);
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
		silent[i] = plain_connect(port);
	if (store_connect("127.0.0.1", port, 1, 2, &job, LIMIT_MS, &client, &err))
		fail_msg("%s", err.text);
	assert_int_equal(recv(silent[0], &byte, 1, 0), 0); /* the oldest was dropped */
	assert_int_equal(store_put(&client, "k", value, value_size, LIMIT_MS, &err), 0);
	before = peak();

	for (size_t i = 0; i < 400 && client.channel.fd >= 0; i++)
		if (channel_send(&client.channel,
				 &(struct frame){.kind = STORE_GET, .number = 1, .size = 2}, "k"))
			break;
	struct store_client zero = {.channel.fd = own, .rank = 0, .size = 2};
	void *data;
	size_t size;

	/* Unbounded, it would have 1.6 GB of answers, and the rank would stay. */
	assert_int_equal(store_get(&zero, 1, "never", LIMIT_MS, &data, &size, &err), -ERR_NETWORK);
	assert_non_null(strstr(err.text, "rank 1 has left"));
	assert_true(peak() < before + RESIDENT_FACTOR * STORE_UNANSWERED_MAX);
	channel_close(&client.channel);
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++)
		close(silent[i]);
	channel_close(&zero.channel);
	store_stop(server, 0);
	free(value);
}

/* What a rank that has proved itself may not send: the server disconnects it. */
static void test_bad_requests(void **state)
{
	static const struct {
		struct frame frame;
		const char *data, *reason;
	} bad[] = {
		{{.kind = STORE_PUT}, NULL, "a put without a key"},
		{{.kind = STORE_PUT, .size = 1}, "", "an empty key"},
		{{.kind = STORE_PUT, .size = 3}, "key", "a key without a NUL"},
		{{.kind = STORE_GET, .number = 2, .size = 2}, "k", "no such rank"},
		{{.kind = STORE_GET, .number = -2, .size = 2}, "k", "rank -2"},
		{{.kind = STORE_GET, .number = 1, .size = 4}, "k\0v", "a get with a value"},
		{{.kind = STORE_BYE + 1}, NULL, "an unknown kind"},
		{{.kind = STORE_WELCOME}, NULL, "an answer"},
	};
	struct store_job job = {.label = "job/0"};
	struct error err = {0};
	char byte, long_key[STORE_KEY_MAX + 2];

	memset(long_key, 'k', sizeof long_key);
	long_key[STORE_KEY_MAX + 1] = 0;
	assert_int_equal(store_job_set_secret(&job, NULL, &err), 0);
	for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
		bool last = i == sizeof bad / sizeof *bad;
		struct frame frame =
			last ? (struct frame){.kind = STORE_GET, .size = sizeof long_key}
			     : bad[i].frame;
		struct store_server *server;
		struct store_client client;
		int port = free_port(), own;

		assert_int_equal(store_serve("127.0.0.1", port, 2, &job, &server, &own, &err), 0);
		assert_int_equal(
			store_connect("127.0.0.1", port, 1, 2, &job, LIMIT_MS, &client, &err), 0);
		assert_int_equal(
			channel_send(&client.channel, &frame, last ? long_key : bad[i].data), 0);
		assert_int_equal(channel_wait(&client.channel, LIMIT_MS), 1);
		if (recv(client.channel.fd, &byte, 1, MSG_DONTWAIT) > 0)
			fail_msg("answered: %s", last ? "a long key" : bad[i].reason);
		channel_close(&client.channel);
		close(own);
		store_stop(server, 0);
	}
}

/* ---- a name with two addresses ---- */

#define TWO_NAME "two.test"
#define HOLE "127.0.0.2"

static bool hole_first;

int __real_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
		       struct addrinfo **out);
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
		       struct addrinfo **out);

int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
		       struct addrinfo **out)
{
	if (!name || strcmp(name, TWO_NAME))
		return __real_getaddrinfo(name, service, hints, out);
	return __real_getaddrinfo(hole_first ? HOLE : "127.0.0.1", service, hints, out) ||
	       __real_getaddrinfo(hole_first ? "127.0.0.1" : HOLE, service, hints,
				  &(*out)->ai_next);
}

/* Connect to the hole; return whether anything has answered within 300 ms. */
static bool answers(const struct sockaddr_in *address, int *fd)
{
	*fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	return !connect(*fd, (const struct sockaddr *)address, sizeof *address) ||
	       poll(&(struct pollfd){.fd = *fd, .events = POLLOUT}, 1, 300) > 0;
}

/* Of rank 0's two addresses one drops all packets, as one behind a firewall does: the kernel drops
 * those to a socket whose queue is full. The other address is found in time, whichever comes first,
 * and although rank 0 listens only 300 ms later. */
static void test_hole(void **state)
{
	struct store_job job = {.label = "job/0"};
	struct error err = {0};

	(void)state;
	assert_int_equal(store_job_set_secret(&job, NULL, &err), 0);
	for (int turn = 0; turn < 2; turn++) {
		int port = free_port(), own, fill[16], filled = 0, code;
		int hole = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		struct sockaddr_in address = {.sin_family = AF_INET,
					      .sin_port = htons((uint16_t)port)};
		struct store_server *server;
		pid_t pid;

		hole_first = !turn;
		assert_int_equal(inet_pton(AF_INET, HOLE, &address.sin_addr), 1);
		assert_int_equal(bind(hole, (struct sockaddr *)&address, sizeof address), 0);
		assert_int_equal(listen(hole, 0), 0);
		while (answers(&address, &fill[filled++]))
			assert_true(filled < 16);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			struct store_client client;

			if (store_connect(TWO_NAME, port, 1, 2, &job, LIMIT_MS / 2, &client, &err))
				_exit(FAILED_HERE(10));
			store_close(&client);
			_exit(0);
		}
		usleep(300000);
		assert_int_equal(store_serve("127.0.0.1", port, 2, &job, &server, &own, &err), 0);
		assert_int_equal(waitpid(pid, &code, 0), pid);
		if (code)
			fail_msg("the hole is address %d: status %d", turn, code);
		close(own);
		store_stop(server, 0);
		while (filled)
			close(fill[--filled]);
		close(hole);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_place),	   cmocka_unit_test(test_alone),
		cmocka_unit_test(test_exchange),   cmocka_unit_test(test_missing),
		cmocka_unit_test(test_any),	   cmocka_unit_test(test_no_rank_0),
		cmocka_unit_test(test_no_address), cmocka_unit_test(test_torchrun),
		cmocka_unit_test(test_port_taken), cmocka_unit_test(test_strangers),
		cmocka_unit_test(test_floods),	   cmocka_unit_test(test_bad_requests),
		cmocka_unit_test(test_hole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
