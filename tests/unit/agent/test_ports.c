/* SPDX-License-Identifier: BSD-3-Clause */
/* Blocks of ports: two jobs on one node never hold the same one. */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/ports.h"

#define ALL ((1 << AGENT_PORTS_BLOCKS) - 1)

static int listen_at(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (!bind(fd, (struct sockaddr *)&address, sizeof address) && !listen(fd, 1))
		return fd;
	close(fd);
	return -1;
}

static void test_blocks_lie_below_the_ephemeral_ports(void **state)
{
	for (int count = 1; count <= LAUNCH_PORTS_MAX; count++)
		for (int seed = 0; seed <= AGENT_PORTS_SEED_MAX; seed += 251)
			for (int block = 0; block < AGENT_PORTS_BLOCKS; block++) {
				int first = agent_ports_first(count, seed, block);

				assert_in_range(first, 20000, 32767 - count);
				assert_int_equal(
					agent_ports_first(count, agent_ports_seed(count, first), 0),
					first);
				for (int other = 0; other < block; other++)
					assert_int_not_equal(first,
							     agent_ports_first(count, seed, other));
			}
}

static void test_a_taken_port_excludes_its_block_only(void **state)
{
	struct agent_ports one = {0}, two = {0};
	int seed = (int)(getpid() % AGENT_PORTS_SEED_MAX);
	int taken = listen_at(agent_ports_first(3, seed, 2) + 1);

	assert_true(taken >= 0);
	int first = agent_ports_bind(&one, 3, seed);

	assert_int_equal(first & 1 << 2, 0);
	/* Another job with the same seed gets nothing that this one holds, and all once it lets go.
	 */
	assert_int_equal(agent_ports_bind(&two, 3, seed) & first, 0);
	agent_ports_keep(&two, 0, false);
	agent_ports_keep(&one, 5, true);
	assert_int_equal(agent_ports_bind(&two, 3, seed), first & ~(1 << 5));
	agent_ports_keep(&two, 0, false);
	/* A program that sets SO_REUSEADDR can listen on what is held. */
	close(taken);
	taken = listen_at(agent_ports_first(3, seed, 5));
	assert_true(taken >= 0);
	close(taken);
	agent_ports_keep(&one, 0, false);
	assert_int_equal(agent_ports_bind(&one, 0, seed), ALL);
}

static void test_few_open_files_leave_room_for_others(void **state)
{
	struct agent_ports ports = {0};
	struct rlimit before, few;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	few = (struct rlimit){256, before.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	/* Half of 256: two blocks. */
	assert_int_equal(agent_ports_bind(&ports, 64, (int)(getpid() % 100)) & ~3, 0);
	agent_ports_keep(&ports, 0, false);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_blocks_lie_below_the_ephemeral_ports),
		cmocka_unit_test(test_a_taken_port_excludes_its_block_only),
		cmocka_unit_test(test_few_open_files_leave_room_for_others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
