/* SPDX-License-Identifier: BSD-3-Clause */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

static char dir[64], path[128], target[128];

static int make_dir(void **state)
{
	strcpy(dir, "/tmp/berth-test-file-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof path, "%s/path", dir);
	snprintf(target, sizeof target, "%s/target", dir);
	return 0;
}

static int remove_dir(void **state)
{
	unlink(path);
	unlink(target);
	return rmdir(dir); /* fails if a temporary file was left */
}

static void expect(const char *file, const char *expected)
{
	struct error err = {0};
	char *text;
	size_t size;

	if (file_read(file, 1000, &text, &size, &err))
		fail_msg("%s", err.text);
	assert_string_equal(text, expected);
	free(text);
}

static void write_it(const char *text)
{
	struct error err = {0};

	if (file_write_atomic(path, text, strlen(text), 0640, &err))
		fail_msg("%s", err.text);
}

static void test_replace(void **state)
{
	struct stat status;

	write_it("first and longer");
	expect(path, "first and longer");
	write_it("second");
	expect(path, "second");
	assert_int_equal(stat(path, &status), 0);
	assert_int_equal(status.st_mode & 0777, 0640);
}

static void test_link_stays(void **state)
{
	struct stat status;

	assert_int_equal(symlink(target, path), 0);
	write_it("through a dangling link: it is replaced");
	assert_int_equal(lstat(path, &status), 0);
	assert_true(S_ISREG(status.st_mode));
	assert_int_equal(rename(path, target), 0);
	assert_int_equal(symlink("target", path), 0);
	write_it("new");
	assert_int_equal(lstat(path, &status), 0);
	assert_true(S_ISLNK(status.st_mode));
	expect(target, "new");
}

/* A FIFO represents everything that must not be replaced: a failing test must not remove
 * /dev/null. */
static void test_special_stays(void **state)
{
	struct stat status;
	char text[16] = "";

	assert_int_equal(mkfifo(path, 0600), 0);

	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);

	assert_true(fd >= 0);
	write_it("piped");
	assert_int_equal(read(fd, text, sizeof text - 1), 5);
	assert_string_equal(text, "piped");
	close(fd);
	assert_int_equal(lstat(path, &status), 0);
	assert_true(S_ISFIFO(status.st_mode));
}

static void test_cannot(void **state)
{
	static const struct {
		const char *path;
		int code;
		const char *reason;
	} rows[] = {
		{"/no/such/dir/file", ERR_OUTPUT, "the directory is missing"},
		{"/dev/null/file", ERR_OUTPUT, "below a file"},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct error err = {0};

		if (file_write_atomic(rows[i].path, "x", 1, 0600, &err) != -rows[i].code)
			fail_msg("%s: %d %s", rows[i].reason, err.code, err.text);
	}

	struct error err = {0};

	assert_int_equal(mkdir(path, 0700), 0);
	assert_int_equal(file_write_atomic(path, "x", 1, 0600, &err), -ERR_OUTPUT);
	assert_int_equal(rmdir(path), 0);
}

/* Absolute and relative links, "..", repeated slashes, and directories that are missing; a link to
 * itself leads nowhere. */
static void test_make_dirs(void **state)
{
	char deep[200];
	struct error err = {0};
	struct stat status;

	assert_int_equal(mkdir(target, 0700), 0);
	assert_int_equal(symlink(target, path), 0);
	snprintf(deep, sizeof deep, "%s//../path/a/../a//b/", path);
	assert_int_equal(file_make_dirs(deep, &err), 0);
	assert_int_equal(file_make_dirs(deep, &err), 0);
	snprintf(deep, sizeof deep, "%s/a/b", target);
	assert_int_equal(stat(deep, &status), 0);
	assert_true(S_ISDIR(status.st_mode));
	assert_int_equal(rmdir(deep), 0);
	*strrchr(deep, '/') = '\0';
	assert_int_equal(rmdir(deep), 0);
	assert_int_equal(rmdir(target), 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("path", path), 0);
	assert_int_equal(file_check_path(path, &err), 0);
	assert_int_equal(file_open_append(path, &err), -1);
	assert_int_equal(file_make_dirs(path, &err), -ERR_OUTPUT);
}

/* In a child: close_range fails as before Linux 5.9 if old is set. Returns 0 if just the right ones
 * are closed. */
static int close_in_child(bool old)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		if (old && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
			    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)))
			_exit(2);
		for (int fd = 100; fd < 105; fd++)
			dup2(STDERR_FILENO, fd);
		file_close_range(101, 103);
		file_close_range(104, 103);
		for (int fd = 100; fd < 105; fd++)
			if ((fcntl(fd, F_GETFD) < 0) != (fd > 100 && fd < 104))
				_exit(1);
		file_close_range(101, INT_MAX);
		_exit(fcntl(100, F_GETFD) < 0 || fcntl(104, F_GETFD) >= 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void test_close_range(void **state)
{
	assert_int_equal(close_in_child(false), 0);
	assert_int_equal(close_in_child(true), 0);
}

static void test_signal_name(void **state)
{
	for (int i = 0; i < 80; i++)
		if (!sigabbrev_np(i))
			assert_null(error_signal_name(i));
		else
			assert_string_equal(error_signal_name(i), sigabbrev_np(i));
	assert_null(error_signal_name(-1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_replace, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_link_stays, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_special_stays, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_cannot, make_dir, remove_dir),
		cmocka_unit_test_setup_teardown(test_make_dirs, make_dir, remove_dir),
		cmocka_unit_test(test_close_range),
		cmocka_unit_test(test_signal_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
