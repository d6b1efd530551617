/* SPDX-License-Identifier: BSD-3-Clause */
/* The embedded PMIx server with real clients: this program starts itself as the ranks. */
#include <dlfcn.h>
#include <pmix.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "node.h"
#include "../../support/child.h"
#include "../../support/wait.h"

/* For what must happen. */
#define LIMIT_MS wait_ms(30000)

static const struct ranks_server_ops *server_ops;
static const struct ranks_client_ops *client_ops;
static const char *program;

/* ---- the ranks; each returns its exit code, a different one for each thing that is wrong ---- */

static int number(const pmix_proc_t *proc, const char *key)
{
	pmix_value_t *value = NULL;
	pmix_status_t status = PMIx_Get(proc, key, NULL, 0, &value);
	int result = -1;

	if (status == PMIX_SUCCESS)
		PMIX_VALUE_GET_NUMBER(status, value, result, int);
	if (value)
		PMIX_VALUE_RELEASE(value);
	return status == PMIX_SUCCESS ? result : -1;
}

/* Values that every PMIx program reads, then data from all ranks, collected or fetched. */
static int rank_modex(bool collect)
{
	pmix_proc_t self, job;
	pmix_info_t info;

	if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS)
		return FAILED_HERE(10);
	PMIX_LOAD_PROCID(&job, self.nspace, PMIX_RANK_WILDCARD);
	int size = number(&job, PMIX_JOB_SIZE), local_size = number(&job, PMIX_LOCAL_SIZE);

	if (size < 1 || local_size < 1 || number(&job, PMIX_UNIV_SIZE) != size)
		return FAILED_HERE(11);
	if (number(&self, PMIX_LOCAL_RANK) != (int)self.rank % local_size ||
	    number(&self, PMIX_APPNUM) != 0 ||
	    number(&self, PMIX_NODEID) != (int)self.rank / local_size ||
	    number(&job, PMIX_NUM_NODES) != size / local_size)
		return FAILED_HERE(12);
	int mine = 1000 + (int)self.rank;
	pmix_value_t value = {.type = PMIX_INT, .data.integer = mine};

	if (PMIx_Put(PMIX_GLOBAL, "card", &value) != PMIX_SUCCESS || PMIx_Commit() != PMIX_SUCCESS)
		return FAILED_HERE(13);
	PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
	if (PMIx_Fence(NULL, 0, &info, 1) != PMIX_SUCCESS)
		return FAILED_HERE(14);
	for (int rank = 0; rank < size; rank++) {
		pmix_proc_t peer = self;

		peer.rank = (pmix_rank_t)rank;
		if (number(&peer, "card") != 1000 + rank)
			return FAILED_HERE(15);
	}
	if (PMIx_Fence(NULL, 0, NULL, 0) != PMIX_SUCCESS)
		return FAILED_HERE(16);
	return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : FAILED_HERE(17);
}

/* Node names come back unchanged, and peers and locality are known. */
static int rank_names(void)
{
	pmix_proc_t self, *procs = NULL;
	pmix_value_t *value = NULL;
	char *nodes = NULL;
	size_t count = 0;

	if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS)
		return FAILED_HERE(10);
	if (PMIx_Resolve_nodes(self.nspace, &nodes) != PMIX_SUCCESS)
		return FAILED_HERE(11);
	if (strcmp(nodes, "x1000c0s0b0n0,gpu-7-ib")) {
		fprintf(stderr, "nodes: %s\n", nodes);
		return FAILED_HERE(12);
	}
	if (PMIx_Resolve_peers("gpu-7-ib", self.nspace, &procs, &count) != PMIX_SUCCESS ||
	    count != 2 || procs[0].rank != 2 || procs[1].rank != 3)
		return FAILED_HERE(13);
	if (PMIx_Get(&self, PMIX_HOSTNAME, NULL, 0, &value) != PMIX_SUCCESS ||
	    strcmp(value->data.string, self.rank < 2 ? "x1000c0s0b0n0" : "gpu-7-ib"))
		return FAILED_HERE(14);
	PMIX_VALUE_RELEASE(value);
	pmix_proc_t job = self;

	job.rank = PMIX_RANK_WILDCARD;
	if (PMIx_Get(&job, PMIX_LOCAL_PEERS, NULL, 0, &value) != PMIX_SUCCESS ||
	    strcmp(value->data.string, self.rank < 2 ? "0,1" : "2,3"))
		return FAILED_HERE(15);
	PMIX_VALUE_RELEASE(value);
	if (PMIx_Get(&self, PMIX_LOCALITY_STRING, NULL, 0, &value) != PMIX_SUCCESS)
		return FAILED_HERE(16);
	PMIX_VALUE_RELEASE(value);
	return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : FAILED_HERE(17);
}

static int rank_abort(void)
{
	pmix_proc_t self;

	if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS)
		return FAILED_HERE(10);
	if (self.rank == 1)
		PMIx_Abort(7, "out of sheep", NULL, 0);
	PMIx_Fence(NULL, 0, NULL, 0);
	return 0;
}

/* Rank 1 never enters the fence. */
static int rank_stuck(void)
{
	pmix_proc_t self;

	if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS)
		return FAILED_HERE(10);
	if (self.rank == 1)
		pause();
	return PMIx_Fence(NULL, 0, NULL, 0) == PMIX_SUCCESS ? 11 : 12;
}

static int rank_publish(void)
{
	pmix_proc_t self;
	pmix_pdata_t found;
	pmix_info_t info;

	if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS)
		return FAILED_HERE(10);
	PMIX_PDATA_CONSTRUCT(&found);
	PMIX_LOAD_KEY(found.key, "harbour");
	PMIX_INFO_LOAD(&info, "harbour", "open", PMIX_STRING);
	if (PMIx_Publish(&info, 1) != PMIX_ERR_NOT_SUPPORTED)
		return FAILED_HERE(11);
	if (PMIx_Lookup(&found, 1, NULL, 0) != PMIX_ERR_NOT_SUPPORTED)
		return FAILED_HERE(12);
	return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : FAILED_HERE(13);
}

static int rank_spawn(void)
{
	pmix_proc_t self;
	pmix_app_t app;
	char name[PMIX_MAX_NSLEN + 1];
	char command[] = "/bin/true";

	if (PMIx_Init(&self, NULL, 0) != PMIX_SUCCESS)
		return FAILED_HERE(10);
	PMIX_APP_CONSTRUCT(&app);
	app.cmd = command;
	app.maxprocs = 1;
	if (PMIx_Spawn(NULL, 0, &app, 1, name) != PMIX_ERR_NOT_SUPPORTED)
		return FAILED_HERE(11);
	return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : FAILED_HERE(12);
}

/* The same through berth's client: place, barrier, put and get in both directions. */
static int rank_client(void)
{
	struct env *env = env_capture();
	struct ranks_place place;
	struct error err = {0};
	void *state, *data;
	size_t size;
	char text[64];

	if (client_ops->join(env, LIMIT_MS, &state, &place, &err))
		goto failed;
	env_free(env);
	env = NULL;
	snprintf(text, sizeof text, "rank %d of %d", place.rank, place.size);
	/* A second key, after the first has been read. */
	for (int round = 0; round < 2; round++) {
		const char *key = round ? "second" : "first";

		if (client_ops->put(state, key, text, strlen(text) + 1, &err))
			goto failed;
		for (int rank = 0; rank < place.size; rank++) {
			char expected[64];

			if (client_ops->get(state, rank, key, LIMIT_MS, &data, &size, &err))
				goto failed;
			snprintf(expected, sizeof expected, "rank %d of %d", rank, place.size);
			if (size != strlen(expected) + 1 || strcmp(data, expected))
				return FAILED_HERE(21);
			free(data);
		}
		if (client_ops->barrier(state, LIMIT_MS, &err))
			goto failed;
	}
	client_ops->leave(state);
	return 0;
failed:
	env_free(env);
	fprintf(stderr, "%s\n", err.text);
	return FAILED_HERE(20);
}

#define NAMED_MORE 75
/* PMIx 5.0.0 to 5.0.3 delay further gets after one that waits for its answer. */
#define DELAYS (PMIX_NUMERIC_VERSION >= 0x00050000 && PMIX_NUMERIC_VERSION < 0x00050004)

/* Rank 2 does not enter the second barrier: the others name it. They also name those that are
 * scheduled too late to enter in time. */
static int rank_late(void)
{
	struct env *env = env_capture();
	struct ranks_place place;
	struct error err = {0};
	void *state, *data;
	size_t size;

	if (client_ops->join(env, LIMIT_MS, &state, &place, &err) ||
	    client_ops->barrier(state, LIMIT_MS, &err) ||
	    client_ops->put(state, "card", "x", 1, &err))
		return FAILED_HERE(20);
	env_free(env);
	/* A value that an earlier get has cached must not make the rank look late. */
	for (int rank = 0; rank < place.size; rank++) {
		if (client_ops->get(state, rank, "card", LIMIT_MS, &data, &size, &err))
			return FAILED_HERE(25);
		free(data);
	}
	for (int i = 0; i < 3; i++)
		if (client_ops->barrier(state, LIMIT_MS, &err))
			return FAILED_HERE(26);
	/* Rank 2 stays until the others have named it. */
	for (int rank = 0; place.rank == 2 && rank < place.size; rank++) {
		if (rank == 2)
			continue;
		if (client_ops->get(state, rank, "seen", LIMIT_MS, &data, &size, &err))
			return FAILED_HERE(27);
		free(data);
	}
	if (place.rank == 2) {
		client_ops->leave(state);
		return 0;
	}
	if (client_ops->get(state, 2, "never", 300, &data, &size, &err) != -ERR_NETWORK)
		return FAILED_HERE(21);
	if (!strstr(err.text, "rank 2") || !strstr(err.text, "'never'"))
		return FAILED_HERE(22);
	/* The others enter the barrier at about the same time. */
	if (client_ops->put(state, "near", "x", 1, &err))
		return FAILED_HERE(28);
	for (int rank = 0; rank < place.size; rank++) {
		if (rank == 2)
			continue;
		if (client_ops->get(state, rank, "near", LIMIT_MS, &data, &size, &err))
			return FAILED_HERE(29);
		free(data);
	}
	if (client_ops->barrier(state, 500, &err) != -ERR_NETWORK)
		return FAILED_HERE(23);
	const char *named = strstr(err.text, "waiting for rank");

	if (client_ops->put(state, "seen", "x", 1, &(struct error){0}))
		return FAILED_HERE(30);
	if (DELAYS && named && strchr(named, '2'))
		named = "waiting for rank 2";
	if (!named || strncmp(named, "waiting for rank 2", 18)) {
		fprintf(stderr, "%s\n", err.text);
		return named ? NAMED_MORE : 24;
	}
	client_ops->leave(state);
	return 0;
}

static const struct {
	const char *mode;
	int (*main)(void);
} modes[] = {
	{"names", rank_names},	   {"abort", rank_abort},   {"stuck", rank_stuck},
	{"spawn", rank_spawn},	   {"client", rank_client}, {"late", rank_late},
	{"publish", rank_publish},
};

static int rank_main(const char *mode)
{
	if (!strncmp(mode, "modex-", 6))
		return rank_modex(!strcmp(mode, "modex-collect"));
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
		if (!strcmp(mode, modes[i].mode))
			return modes[i].main();
	return 99;
}

/* ---- the tests ---- */

static const char *const one_name[] = {"test-node"};
static const char *const two_names[] = {"x1000c0s0b0n0", "gpu-7-ib"};

static struct node one_node(const char *mode, int ranks)
{
	return (struct node){.program = program,
			     .mode = mode,
			     .node_count = 1,
			     .ranks_a_node = ranks,
			     .names = one_name,
			     .peer = -1,
			     .kill_rank = -1};
}

static void assert_all_well(const struct node *node)
{
	for (int i = 0; i < node->ranks_a_node; i++) {
		if (node->status[i])
			fail_msg("%s: local rank %d: status %#x, exit code %d", node->mode, i,
				 node->status[i], WEXITSTATUS(node->status[i]));
	}
	assert_true(node->dir_clean);
}

static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGSYS};

/* PMIx's library starts once per process, so each agent is a child process of its own; node is
 * in shared memory. */
static pid_t node_fork(struct node *node)
{
	pid_t pid = fork();

	if (pid == 0) {
		struct error err = {0};
		int rc = 0;

		/* cmocka's handlers would jump out of whichever thread crashed. */
		for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
			signal(crashes[i], SIG_DFL);
		for (int i = 0; i <= node->again && !rc; i++)
			rc = node_run(server_ops, node, &err);
		if (rc)
			fprintf(stderr, "%s\n", err.text);
		_exit(rc ? 1 : 0);
	}
	return pid;
}

static struct node *nodes_map(void)
{
	return mmap(NULL, 2 * sizeof(struct node), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void run_one(struct node *node)
{
	struct node *shared = nodes_map();
	int status;

	*shared = *node;
	pid_t pid = node_fork(shared);

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	*node = *shared;
	munmap(shared, 2 * sizeof *shared);
}

static void run_two(const char *mode, struct node *first)
{
	struct node *shared = nodes_map();
	int peers[2], status[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, peers), 0);
	shared[0] = one_node(mode, 2);
	shared[0].node_count = 2;
	shared[0].names = two_names;
	shared[1] = shared[0];
	shared[1].node_index = 1;
	for (int i = 0; i < 2; i++)
		shared[i].peer = peers[i];
	pid_t pids[2] = {node_fork(&shared[0]), node_fork(&shared[1])};

	close(peers[0]);
	close(peers[1]);
	for (int i = 0; i < 2; i++)
		assert_int_equal(waitpid(pids[i], &status[i], 0), pids[i]);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(status[i], 0);
		assert_all_well(&shared[i]);
	}
	*first = shared[0];
	munmap(shared, 2 * sizeof *shared);
}

static void test_modex(void **state)
{
	static const int sizes[] = {1, 2, 5};

	for (size_t i = 0; i < 3; i++) {
		struct node node = one_node("modex-collect", sizes[i]);

		run_one(&node);
		assert_all_well(&node);
		assert_int_equal(node.gathers, 0);
		node = one_node("modex-direct", sizes[i]);
		run_one(&node);
		assert_all_well(&node);
	}
}

static void test_two_nodes(void **state)
{
	struct node node;

	run_two("modex-collect", &node);
	assert_true(node.gathers >= 2);
	assert_int_equal(node.fetches, 0);
	run_two("modex-direct", &node);
	assert_true(node.fetches > 0);
	run_two("names", &node);
	run_two("client", &node);
}

static void test_abort(void **state)
{
	struct node node = one_node("abort", 3);

	node.process = RANKS_MODULE_FOLDER; /* the ranks vanish at the same time (see
					       pmix/server_process.h); the agent removes what a
					       crashed server leaves */
	run_one(&node);
	assert_int_equal(node.aborts, 1);
	assert_int_equal(node.abort_rank, 1);
	assert_int_equal(node.abort_status, 7);
	assert_string_equal(node.abort_text, "out of sheep");
}

static void test_killed_in_fence(void **state)
{
	struct node node = one_node("stuck", 3);

	node.process = RANKS_MODULE_FOLDER;
	node.kill_rank = 0;
	node.kill_ms = 500;
	node.end_on_failure = true;
	run_one(&node);
	for (int i = 0; i < 3; i++)
		assert_true(node.status[i] != 0 && node.status[i] != -1);
	assert_true(WIFSIGNALED(node.status[0]));
}

static void test_publish_refused(void **state)
{
	struct node node = one_node("publish", 1);

	run_one(&node);
	assert_all_well(&node);
}

static void test_spawn_refused(void **state)
{
	struct node node = one_node("spawn", 1);

	run_one(&node);
	assert_all_well(&node);
}

static void test_client(void **state)
{
	struct node node = one_node("client", 3);

	run_one(&node);
	assert_all_well(&node);
	for (int turn = 0, more = 1; more && turn < 5; turn++) {
		node = one_node("late", 4);
		run_one(&node);
		more = 0;
		for (int i = 0; i < 4; i++)
			more |= WIFEXITED(node.status[i]) &&
				WEXITSTATUS(node.status[i]) == NAMED_MORE;
	}
	assert_all_well(&node);
}

static void test_again(void **state)
{
	struct node node = one_node("modex-collect", 2);

	node.again = 2;
	run_one(&node);
	assert_all_well(&node);
}

/* Prepared early, as the agent does; then a start for another node, which PMIx cannot serve. */
static void test_prepare(void **state)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		char dir[] = "/tmp/berth-test-XXXXXX", shared[64];
		struct node node = one_node("modex-collect", 2);
		struct error err = {0};

		if (!mkdtemp(dir) || server_ops->prepare(dir, one_name[0], 0, &err))
			_exit(FAILED_HERE(1));
		int rc = node_run(server_ops, &node, &err);

		snprintf(shared, sizeof shared, "%s/hwloc.sm", dir);
		unlink(shared);
		rmdir(dir);
		if (rc || node.status[0] || node.status[1])
			_exit(FAILED_HERE(2));
		node.names = two_names;
		rc = node_run(server_ops, &node, &err);
		_exit(rc == -ERR_INTERNAL && strstr(err.text, "x1000c0s0b0n0") ? 0 : 3);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_bad_job(void **state)
{
	static const int first[] = {0, 2}, wrong[] = {0, 3}, count[] = {2, 2};
	struct ranks_host host = {0};
	struct ranks_server *server = NULL;
	struct {
		struct ranks_job job;
		const char *text;
	} rows[] = {
		{{"j", 5, 0, 2, two_names, first, count, NULL, "/tmp"},
		 "nodes have 4 ranks in total"},
		{{"j", 4, 2, 2, two_names, first, count, NULL, "/tmp"}, "node 2 of 2"},
		{{"j", 4, 0, 2, two_names, wrong, count, NULL, "/tmp"}, "starts at rank 3"},
		{{"", 4, 0, 2, two_names, first, count, NULL, "/tmp"}, "name has 0 bytes"},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct error err = {0};

		assert_true(server_ops->start(&rows[i].job, &host, &server, &err) < 0);
		assert_null(server);
		if (!strstr(err.text, rows[i].text))
			fail_msg("row %zu: %s", i, err.text);
	}
	(*server_ops->stop)(NULL); /* cmocka 2 has a macro stop() */
}

int main(int argc, char **argv)
{
	void *module = dlopen(RANKS_MODULE, RTLD_NOW | RTLD_LOCAL);

	program = argv[0];
	if (module) {
		server_ops = dlsym(module, "ranks_server_pmix");
		client_ops = dlsym(module, "ranks_client_pmix");
	}
	if (!server_ops || !client_ops) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	if (argc == 2)
		return rank_main(argv[1]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad_job),		cmocka_unit_test(test_again),
		cmocka_unit_test(test_prepare),		cmocka_unit_test(test_modex),
		cmocka_unit_test(test_two_nodes),	cmocka_unit_test(test_abort),
		cmocka_unit_test(test_killed_in_fence), cmocka_unit_test(test_publish_refused),
		cmocka_unit_test(test_spawn_refused),	cmocka_unit_test(test_client),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
