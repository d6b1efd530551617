/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks' standard input from the controller: more than a pipe holds, a rank that reads late,
 * one that does not read, one that has closed its end. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/stdin.h"

#define MUCH (3u << 20)

static unsigned char byte_at(size_t i)
{
	return (unsigned char)(i * 2654435761u >> 13);
}

static struct loop *loop;
static struct agent_stdin *inputs;

static void begin(size_t ranks)
{
	struct error err = {0};

	signal(SIGPIPE, SIG_IGN); /* as agent_run has it */
	assert_int_equal(loop_new(&loop, &err), 0);
	assert_int_equal(agent_stdin_new(loop, NULL, AGENT_JOB_STDIN_ALL, ranks, &inputs, &err), 0);
}

static void end(void)
{
	agent_stdin_free(inputs);
	loop_free(loop);
}

static void on_nothing(struct loop_timer *timer)
{
	(void)timer;
}

/* One round of the loop, which does not wait. */
static void run_ready(void)
{
	struct loop_timer now = {.due = on_nothing};

	loop_timer_after(loop, &now, 0);
	assert_int_equal(loop_once(loop, NULL), 0);
	loop_timer_stop(&now);
}

/* Bytes from..to of the stream. */
static void take(size_t from, size_t to)
{
	unsigned char *data = malloc(to - from + 1);

	assert_non_null(data);
	for (size_t i = from; i < to; i++)
		data[i - from] = byte_at(i);
	agent_stdin_receive(inputs, data, to - from);
	free(data);
}

/* What the rank reads; its own end is ours to keep when the agent's copy goes. */
static int rank_end(size_t rank)
{
	int fd = dup(agent_stdin_rank_fd(inputs, rank));

	assert_true(fd >= 0);
	return fd;
}

static size_t read_some(int fd, size_t at, size_t size)
{
	unsigned char block[4096];
	ssize_t n = read(fd, block, size < sizeof block ? size : sizeof block);

	assert_true(n > 0);
	for (ssize_t i = 0; i < n; i++)
		if (block[i] != byte_at(at + (size_t)i))
			fail_msg("byte %zu is wrong", at + (size_t)i);
	return (size_t)n;
}

static void test_more_than_a_pipe_holds(void **state)
{
	int fd;
	size_t at = 0;

	begin(1);
	fd = rank_end(0);
	agent_stdin_close_rank_ends(inputs);
	/* All data is accepted at once, in two pieces, and arrives as the rank reads. */
	take(0, MUCH / 2);
	take(MUCH / 2, MUCH);
	while (at < MUCH) {
		at += read_some(fd, at, MUCH - at);
		run_ready();
	}
	assert_int_equal(at, MUCH);
	take(MUCH, MUCH + 10);
	assert_int_equal(read_some(fd, MUCH, 100), 10);
	/* Data that is still queued comes before the end. */
	take(0, MUCH);
	take(MUCH, MUCH);
	for (at = 0; at < MUCH;) {
		at += read_some(fd, at, MUCH - at);
		run_ready();
	}
	assert_int_equal(read(fd, &(char){0}, 1), 0);
	close(fd);
	end();
}

static void test_a_rank_that_does_not_read_delays_no_other(void **state)
{
	int late, prompt;
	size_t at = 0;

	begin(2);
	late = rank_end(0);
	prompt = rank_end(1);
	agent_stdin_close_rank_ends(inputs);
	take(0, MUCH);
	while (at < MUCH) {
		at += read_some(prompt, at, MUCH - at);
		run_ready();
	}
	close(late);
	close(prompt);
	end();
}

static void test_a_closed_end(void **state)
{
	char byte;
	int fd;

	begin(2);
	fd = rank_end(1);
	agent_stdin_close_rank_ends(inputs); /* this closes rank 0's end */
	take(0, 100);
	run_ready();
	take(100, 200);
	assert_int_equal(read_some(fd, 0, 200), 200);
	/* Once closed here, the rank sees the end of file. */
	end();
	assert_int_equal(read(fd, &byte, 1), 0);
	close(fd);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_more_than_a_pipe_holds),
		cmocka_unit_test(test_a_rank_that_does_not_read_delays_no_other),
		cmocka_unit_test(test_a_closed_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
