/* SPDX-License-Identifier: BSD-3-Clause */
/* Claims of agents on one node: they last as long as the processes that hold them, and no GPU is
 * granted twice. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "process/claims.h"
#include "process/tmpdir.h"

#define AGENTS 6
#define GPUS 2
#define TURNS 30

static char parent[64], dir[200]; /* dir: of this process's agent */

static int setup(void **state)
{
	struct error err;
	int lock_fd;

	(void)state;
	strcpy(parent, "/tmp/claims-XXXXXX");
	return !mkdtemp(parent) || tmpdir_create(parent, dir, sizeof dir, &lock_fd, &err);
}

static int teardown(void **state)
{
	(void)state;
	tmpdir_remove(dir);
	return rmdir(parent); /* the lock and the others' directories are gone */
}

static json_t *claim(const char *scope, const char *run, const char *gpu)
{
	return json_pack("{s:s, s:s, s:s, s:[s]}", "scope", scope, "run", run, "by", "process 1",
			 "uses", gpu);
}

static int take(const char *of, const char *gpu, bool share, size_t *others)
{
	json_t *own = claim("slurm 1", "own", gpu), *list = NULL;
	struct error err = {0};
	int rc = claims_take(of, own, NULL, share, &list, &err);

	if (rc < 0)
		print_message("%s\n", err.text);
	if (others)
		*others = json_array_size(list);
	json_decref(list);
	json_decref(own);
	return rc;
}

static size_t count(const char *scope, const char *outer)
{
	json_t *list = claims_read(dir, scope, outer);
	size_t size = json_array_size(list);

	json_decref(list);
	return size;
}

/* A process with an agent's directory and a claim on GPU a. */
static pid_t start(char *path, size_t size)
{
	int ends[2];
	pid_t pid;
	ssize_t n;

	assert_int_equal(pipe(ends), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct error err;
		int lock_fd;

		if (tmpdir_create(parent, path, size, &lock_fd, &err) ||
		    take(path, "a", false, NULL) || write(ends[1], path, strlen(path)) < 0)
			_exit(1);
		for (;;)
			pause();
	}
	n = read(ends[0], path, size - 1);
	assert_true(n > 0);
	path[n] = '\0';
	close(ends[0]);
	close(ends[1]);
	return pid;
}

static void test_life(void **state)
{
	char other[200];
	pid_t pid = start(other, sizeof other);
	size_t others = 0;

	(void)state;
	assert_int_equal(count("slurm 1", NULL), 1);
	assert_int_equal(count("slurm 2", NULL), 0);
	assert_int_equal(count("slurm 1", "x,own"), 0);
	assert_int_equal(count("slurm 1", "x,owner,ow"), 1);
	assert_int_equal(take(dir, "a", false, &others), 1);
	assert_int_equal(others, 1);
	assert_int_equal(take(dir, "b", false, &others), 0);
	assert_int_equal(others, 1);
	assert_int_equal(take(dir, "a", true, NULL), 0);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(count("slurm 1", NULL), 0); /* its file is still there */
	tmpdir_remove(other);
}

/* What other users or accidents may leave there counts for nothing, and is no error. */
static void test_damaged(void **state)
{
	static const char *const texts[] = {
		"",
		"{",
		"[]",
		"{\"scope\": 7}",
		"{\"uses\": [\"a\"]}",
		"{\"scope\": \"slurm 1\", \"uses\": {\"a\": 1}, \"since\": []}"};
	char other[200], file[300];
	pid_t pid = start(other, sizeof other);

	(void)state;
	snprintf(file, sizeof file, "%s/claim", other);
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		FILE *stream = fopen(file, "w");

		assert_non_null(stream);
		fputs(texts[i], stream);
		fclose(stream);
		assert_int_equal(take(dir, "a", false, NULL), 0);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	tmpdir_remove(other);
}

static json_t *waiting(const char *run, int since)
{
	return json_pack("{s:s, s:s, s:i}", "scope", "slurm 1", "run", run, "since", since);
}

/* A run has a place where it was started, and a claim on each node. */
static void test_queue(void **state)
{
	static const struct {
		const char *run;
		int since;
	} runs[] = {{"b", 5}, {"a", 5}, {"c", 9}, {"a", 5}, {"d", 2}};
	struct error err = {0};
	json_t *list = json_array(), *own, *others;
	const char *of;
	char other[200];
	int lock_fd;

	(void)state;
	for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
		json_t *claim = waiting(runs[i].run, runs[i].since);

		json_object_set_new(claim, "dir", json_string(runs[i].run));
		json_array_append_new(list, claim);
	}
	json_array_append_new(list, claim("slurm 1", "e", "gpu")); /* does not wait */
	own = waiting("b", 5);
	assert_int_equal(claims_before(list, own, 0, NULL), 2);
	assert_int_equal(claims_before(list, own, 1, &of), 2);
	assert_string_equal(of, "a");
	assert_int_equal(claims_before(list, own, 2, &of), 2);
	assert_string_equal(of, "d");
	assert_int_equal(claims_before(list, own, 3, &of), 2);
	assert_null(of);
	json_decref(list);

	/* Places and claims are apart; a place ends with its directory. */
	assert_int_equal(tmpdir_create(parent, other, sizeof other, &lock_fd, &err), 0);
	list = waiting("a", 4);
	assert_int_equal(claims_queue(other, list, &others, &err), 0);
	assert_int_equal(json_array_size(others), 0);
	json_decref(others);
	json_decref(list);
	assert_int_equal(count("slurm 1", NULL), 0);
	assert_int_equal(claims_queue(dir, own, &others, &err), 0);
	assert_int_equal(claims_before(others, own, 1, &of), 1);
	assert_string_equal(of, other);
	json_decref(others);
	assert_true(tmpdir_is_live(other));
	assert_int_equal(close(lock_fd), 0);
	assert_false(tmpdir_is_live(other));
	assert_int_equal(claims_queue(dir, own, &others, &err), 0);
	assert_int_equal(claims_before(others, own, 1, &of), 0);
	json_decref(others);
	tmpdir_remove(other);
	assert_false(tmpdir_is_live(other));
	assert_int_equal(claims_queue(other, own, &others, &err), -ERR_OUTPUT);

	/* A claim of a run that waits stays without uses, and one without both goes. */
	assert_int_equal(claims_take(dir, own, NULL, false, &others, &err), 0);
	json_decref(others);
	assert_int_equal(json_object_del(own, "since"), 0);
	assert_int_equal(claims_take(dir, own, NULL, false, &others, &err), 0);
	json_decref(others);
	json_decref(own);
}

/* Something else with the lock's name, and a lock that another process keeps. */
static void test_lock(void **state)
{
	char path[200];
	int fd;

	(void)state;
	snprintf(path, sizeof path, "%s/berth-claims-%ld", parent, (long)geteuid());
	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(take(dir, "a", false, NULL), -ERR_OUTPUT);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(symlink("/tmp/nowhere", path), 0);
	assert_int_equal(take(dir, "a", false, NULL), -ERR_OUTPUT);
	assert_int_equal(unlink(path), 0);
	fd = open(path, O_CREAT | O_RDWR, 0600);
	assert_true(fd >= 0);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(take(dir, "a", false, NULL), -ERR_OUTPUT);
	assert_int_equal(unlink(path), 0); /* the holder does so when it is done */
	assert_int_equal(take(dir, "a", false, NULL), 0);
	close(fd);
}

/* Use GPUs in turn; a file per GPU that only its user may have shows a second user. Return the exit
 * code: how often the GPU was somebody's already. */
static int use_gpus(int seed)
{
	struct error err;
	char own[200], file[300];
	int lock_fd, clashes = 0;

	if (tmpdir_create(parent, own, sizeof own, &lock_fd, &err))
		return 100;
	for (int turn = 0; turn < TURNS;) {
		char gpu[2] = {(char)('a' + (turn + seed) % GPUS), 0};
		json_t *none = json_object(), *others = NULL;
		int rc = take(own, gpu, false, NULL);

		if (rc < 0)
			return 101;
		if (!rc) {
			snprintf(file, sizeof file, "%s/gpu-%s", parent, gpu);
			int fd = open(file, O_CREAT | O_EXCL | O_WRONLY, 0600);

			clashes += fd < 0;
			if (fd >= 0) {
				usleep(500);
				close(fd);
				unlink(file);
			}
			turn++;
		}
		if (claims_take(own, none, NULL, false, &others, &err))
			return 102;
		json_decref(none);
		json_decref(others);
	}
	tmpdir_remove(own);
	return clashes;
}

static void test_race(void **state)
{
	pid_t pids[AGENTS];

	(void)state;
	for (int i = 0; i < AGENTS; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (!pids[i]) {
			(void)!freopen("/dev/null", "w", stdout);
			_exit(use_gpus(i));
		}
	}
	for (int i = 0; i < AGENTS; i++) {
		int status = -1;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_life, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
		cmocka_unit_test_setup_teardown(test_queue, setup, teardown),
		cmocka_unit_test_setup_teardown(test_lock, setup, teardown),
		cmocka_unit_test_setup_teardown(test_race, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
