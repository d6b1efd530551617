/* SPDX-License-Identifier: BSD-3-Clause */
/* Directories of agents: those of processes that have ended are removed, others stay. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "process/tmpdir.h"

#define PROBERS 4
#define PROBES 4000

/* A process that creates a directory in parent, and waits. Return its PID once it has one. */
static pid_t start(const char *parent, char *path, size_t size)
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
		    write(ends[1], path, strlen(path)) < 0)
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

static void end(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void make(const char *parent, const char *name, const char *file, char *path, size_t size)
{
	char inside[400];
	int fd;

	snprintf(path, size, "%s/%s", parent, name);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(inside, sizeof inside, "%s/%s", path, file);
	fd = open(inside, O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
}

static void test_stale(void **state)
{
	char parent[] = "/tmp/tmpdir-XXXXXX", ended[200], alive[200], strange[200], remote[200],
	     own[200];
	struct error err;
	pid_t dead, living;
	int lock_fd;

	assert_non_null(mkdtemp(parent));
	dead = start(parent, ended, sizeof ended);
	living = start(parent, alive, sizeof alive);
	make(parent, "berth-other1", "file", strange, sizeof strange);
	make(parent, "berth-other2", "lock-another-machine", remote, sizeof remote);
	assert_int_equal(access(ended, F_OK), 0); /* it was alive when the second one started */
	end(dead);
	assert_int_equal(access(ended, F_OK), 0);
	assert_int_equal(tmpdir_create(parent, own, sizeof own, &lock_fd, &err), 0);
	assert_int_equal(access(ended, F_OK), -1);
	assert_int_equal(access(alive, F_OK), 0);
	assert_int_equal(access(strange, F_OK), 0);
	assert_int_equal(access(remote, F_OK), 0);
	assert_int_equal(access(own, F_OK), 0);
	end(living);
	tmpdir_remove(alive);
	tmpdir_remove(strange);
	tmpdir_remove(remote);
	tmpdir_remove(own);
	assert_int_equal(rmdir(parent), 0);
}

/* Processes that ask at the same time whether a directory is locked do not take each other for its
 * owner. Each counts how often it does, and returns that as its exit code. */
static void test_concurrent_probes(void **state)
{
	char parent[] = "/tmp/tmpdir-XXXXXX", path[200];
	pid_t pids[PROBERS], owner;

	(void)state;
	assert_non_null(mkdtemp(parent));
	owner = start(parent, path, sizeof path);
	for (int held = 1; held >= 0; held--) {
		for (int i = 0; i < PROBERS; i++) {
			int wrong = 0;

			pids[i] = fork();
			assert_true(pids[i] >= 0);
			if (pids[i])
				continue;
			for (int probe = 0; probe < PROBES; probe++)
				wrong += tmpdir_is_live(path) != held;
			_exit(wrong > 255 ? 255 : wrong);
		}
		for (int i = 0; i < PROBERS; i++) {
			int status = -1;

			assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
			if (status)
				fail_msg("held %d: process %d got %d wrong answers of %d", held, i,
					 WEXITSTATUS(status), PROBES);
		}
		if (held)
			end(owner);
	}
	tmpdir_remove(path);
	assert_int_equal(rmdir(parent), 0);
}

static bool read_only;

char *__real_mkdtemp(char *path);
char *__wrap_mkdtemp(char *path);

char *__wrap_mkdtemp(char *path)
{
	if (!read_only)
		return __real_mkdtemp(path);
	errno = EROFS;
	return NULL;
}

/* The message names each directory that was tried once. */
static void test_read_only(void **state)
{
	static const struct {
		const char *parent, *tried;
	} rows[] = {
		{NULL, "in /tmp: Read-only file system; set TMPDIR"},
		{"/tmp", "in /tmp: Read-only file system; set TMPDIR"},
		{"relative", "in /tmp: Read-only file system; set TMPDIR"},
		{"/a/path/that/is/longer/than/the/sixty/characters/which/berth/accepts",
		 "in /tmp: Read-only file system; set TMPDIR to a writable directory whose path "
		 "has "
		 "at most 60 characters"},
		{"/scratch", "in /scratch or /tmp: Read-only file system; set TMPDIR"},
	};

	(void)state;
	read_only = true;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct error err = {0};
		char path[200];
		int lock_fd;

		assert_int_equal(tmpdir_create(rows[i].parent, path, sizeof path, &lock_fd, &err),
				 -ERR_OUTPUT);
		if (!strstr(err.text, rows[i].tried))
			fail_msg("row %zu: %s", i, err.text);
	}
	read_only = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_stale),
					   cmocka_unit_test(test_concurrent_probes),
					   cmocka_unit_test(test_read_only)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
