/* SPDX-License-Identifier: BSD-3-Clause */
/* Slurm's task lists, the launcher, and the port that ranks derive without communication. The
 * launchers' variables are tested from outside (tests/cli/exec.bats). */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/exec_address.h"
#include "exec/exec_place.h"
#include "../../support/child.h"

static void test_tasks(void **state)
{
	static const struct {
		const char *text;
		int node, tasks; /* tasks -1: must fail */
		const char *reason;
	} rows[] = {
		{"4", 0, 4, "one node"},
		{"2(x3),1", 0, 2, "first of a run"},
		{"2(x3),1", 2, 2, "last of a run"},
		{"2(x3),1", 3, 1, "after a run"},
		{"2(x3),1", 4, -1, "no such node"},
		{"0,5", 1, 5, "a node without tasks before"},
		{"", 0, -1, "empty"},
		{"x", 0, -1, "no number"},
		{"2(x", 0, -1, "cut"},
		{"2(x0)", 0, -1, "no times"},
		{"2(x3", 0, -1, "no closing bracket"},
		{"2 ,1", 1, -1, "a space"},
		{"-2", 0, -1, "a sign"},
		{"99999999999999999999", 0, -1, "more than anything"},
		{"1(x99999999999999999999)", 0, -1, "more nodes than anything"},
	};

	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		int tasks = 12345;
		struct error err = {0};
		int rc = exec_place_tasks(rows[i].text, rows[i].node, &tasks, &err);

		if (rows[i].tasks < 0 ? rc != -ERR_DATA || tasks != 12345
				      : rc || tasks != rows[i].tasks)
			fail_msg("%s ('%s' node %d): %d, %d", rows[i].reason, rows[i].text,
				 rows[i].node, rc, tasks);
	}
}

static void test_port(void **state)
{
	struct exec_place place = {.job = "123.0"}, other = {.job = "124.0"}, none = {0};

	assert_int_equal(exec_place_port(&place, 1), exec_place_port(&place, 2));
	assert_int_not_equal(exec_place_port(&place, 1), exec_place_port(&other, 1));
	assert_int_not_equal(exec_place_port(&none, 1), exec_place_port(&none, 2));
	for (long salt = 0; salt < 1000; salt++)
		assert_in_range(exec_place_port(&none, salt), 10000, 29999);
}

/* A port with a listener at any address is in use; once closed, it is free. */
static void test_try(void **state)
{
	static const uint32_t addresses[] = {INADDR_ANY, INADDR_LOOPBACK};

	for (size_t i = 0; i < 2; i++) {
		struct sockaddr_in at = {.sin_family = AF_INET,
					 .sin_addr.s_addr = htonl(addresses[i])};
		socklen_t size = sizeof at;
		struct error err = {0};
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
		assert_int_equal(listen(fd, 1), 0);
		assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
		assert_int_equal(exec_address_try(ntohs(at.sin_port), &err), -ERR_UNAVAILABLE);
		assert_non_null(strstr(err.text, "in use"));
		close(fd);
		assert_int_equal(exec_address_try(ntohs(at.sin_port), &err), 0);
	}
}

/* Shells that inherited the launcher's variable are not launchers. */
static void test_launcher(void **state)
{
	struct exec_place place = {.detected_by = "BERTH_TEST_MARK"};
	int out[2];
	pid_t me = getpid(), seen[2] = {0}, child;

	assert_int_equal(pipe(out), 0);
	child = fork();
	if (!child) {
		char self[32];

		/* As a launcher's rank is: sh, started with the mark, starts a shell, and so on. */
		snprintf(self, sizeof self, "%d", out[1]);
		setenv("BERTH_TEST_MARK", "1", 1);
		execl("/proc/self/exe", "rank", self, "2", NULL);
		_exit(FAILED_HERE(1));
	}
	close(out[1]);
	for (int i = 0; i < 2; i++)
		assert_int_equal(read(out[0], &seen[i], sizeof seen[i]), sizeof seen[i]);
	waitpid(child, NULL, 0);
	close(out[0]);
	assert_int_equal(seen[0], me);
	assert_int_equal(seen[1], me);
	place.detected_by = "BERTH_TEST_NOBODY_HAS_THIS";
	/* PID 1, the parent in a container, is no launcher. */
	assert_int_equal(exec_place_launcher_pid(&place), getppid() == 1 ? 0 : getppid());
}

/* In the place of a rank: depth shells deep, what exec_place_launcher_pid says at each. */
static int be_rank(int fd, int depth)
{
	struct exec_place place = {.detected_by = "BERTH_TEST_MARK"};
	pid_t launcher = exec_place_launcher_pid(&place), child;

	if (write(fd, &launcher, sizeof launcher) != sizeof launcher)
		return 1;
	if (depth < 2)
		return 0;
	child = fork();
	if (!child) {
		char self[32];

		snprintf(self, sizeof self, "%d", fd);
		execl("/proc/self/exe", "rank", self, "1", NULL);
		_exit(FAILED_HERE(1));
	}
	waitpid(child, NULL, 0);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_tasks),
		cmocka_unit_test(test_port),
		cmocka_unit_test(test_try),
		cmocka_unit_test(test_launcher),
	};

	if (argc == 3)
		return be_rank(atoi(argv[1]), atoi(argv[2]));

	return cmocka_run_group_tests(tests, NULL, NULL);
}
