/* SPDX-License-Identifier: BSD-3-Clause */
/* Timers of the event loop, on a clock that the test sets: order, moves, stops, and a process that
 * was suspended. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/loop.h"

static int64_t clock_ms, late_ms;
static int asked_ms; /* the last timeout of epoll_wait */
static struct loop_source *readable;

int64_t __wrap_clock_now_ms(void);
int64_t __wrap_clock_now_ms(void)
{
	return clock_ms;
}

/* It sleeps for as long as it may, and then late_ms more, unless a descriptor is readable. */
int __wrap_epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int count, int timeout_ms)
{
	(void)fd, (void)count;
	asked_ms = timeout_ms;
	if (readable) {
		*events = (struct epoll_event){.events = EPOLLIN, .data.ptr = readable};
		return 1;
	}
	clock_ms += (timeout_ms > 0 ? timeout_ms : 0) + late_ms;
	late_ms = 0;
	return 0;
}

static struct loop *loop;
static char calls[64];

struct named {
	struct loop_timer timer;
	char name;
	void (*then)(void);
};

static void on_due(struct loop_timer *timer)
{
	struct named *named = LOOP_OWNER(timer, struct named, timer);

	snprintf(calls + strlen(calls), sizeof calls - strlen(calls), "%c", named->name);
	assert_int_equal(timer->due_ms, 0);
	if (named->then)
		named->then();
}

static struct named a, b, c;

static int begin(void **state)
{
	(void)state;
	clock_ms = 1000;
	calls[0] = '\0';
	a = (struct named){{on_due}, 'a'};
	b = (struct named){{on_due}, 'b'};
	c = (struct named){{on_due}, 'c'};
	return loop_new(&loop, NULL);
}

static int end(void **state)
{
	(void)state;
	loop_free(loop);
	return 0;
}

static void expect(int timeout_ms, const char *called)
{
	calls[0] = '\0';
	assert_int_equal(loop_once(loop, NULL), 0);
	assert_int_equal(asked_ms, timeout_ms);
	assert_string_equal(calls, called);
}

static void test_order(void **state)
{
	(void)state;
	loop_timer_after(loop, &b.timer, 20);
	loop_timer_after(loop, &a.timer, 10);
	loop_timer_after(loop, &c.timer, 20);
	expect(10, "a");
	expect(10, "bc");
	expect(-1, "");
}

static void test_move_and_stop(void **state)
{
	(void)state;
	loop_timer_after(loop, &a.timer, 10);
	loop_timer_after(loop, &b.timer, 20);
	loop_timer_after(loop, &c.timer, 30);
	loop_timer_after(loop, &a.timer, 25);
	loop_timer_stop(&b.timer);
	loop_timer_stop(&b.timer);
	expect(25, "a");
	loop_timer_set(loop, &c.timer, 0); /* long past */
	expect(0, "c");
	loop_timer_set(loop, &a.timer, INT64_MAX / 2);
	expect(INT32_MAX, "");
}

static void stop_b_and_repeat(void)
{
	loop_timer_stop(&b.timer);
	loop_timer_after(loop, &a.timer, 0);
}

static void test_callbacks(void **state)
{
	(void)state;
	a.then = stop_b_and_repeat;
	for (struct named *it = &a; it; it = it == &a ? &b : it == &b ? &c : NULL)
		loop_timer_after(loop, &it->timer, 5);
	expect(5, "ac"); /* not b, and a only once in this round */
	a.then = NULL;
	expect(0, "a");
	expect(-1, "");
}

static void hold_up(void)
{
	clock_ms += 30000; /* as kill(getpid(), SIGSTOP) does */
}

static void on_readable(struct loop_source *source, uint32_t events)
{
	(void)source, (void)events;
	hold_up();
}

static void test_suspended(void **state)
{
	(void)state;
	loop_timer_after(loop, &a.timer, 1000);
	loop_timer_after(loop, &b.timer, 5000);
	late_ms = 2000; /* a busy machine */
	expect(1000, "a");
	assert_int_equal(loop_suspended_ms(loop), 0);
	loop_timer_after(loop, &a.timer, 1000);
	late_ms = 60000;
	expect(1000, "a"); /* it was due, and b waits */
	assert_int_equal(loop_suspended_ms(loop), 60000);
	assert_int_equal(loop_now_ms(loop), 5000);
	expect(1000, "b");
}

static void test_suspended_in_a_callback(void **state)
{
	(void)state;
	a.then = hold_up;
	loop_timer_after(loop, &a.timer, 1000);
	loop_timer_after(loop, &b.timer, 5000);
	expect(1000, "a");
	assert_int_equal(loop_suspended_ms(loop), 30000);
	expect(4000, "b");
	/* No timer is late because of a descriptor's callback, either. */
	loop_timer_after(loop, &b.timer, 5000);
	readable = &(struct loop_source){.ready = on_readable};
	expect(5000, "");
	readable = NULL;
	assert_int_equal(loop_suspended_ms(loop), 60000);
	expect(5000, "b");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_order, begin, end),
		cmocka_unit_test_setup_teardown(test_move_and_stop, begin, end),
		cmocka_unit_test_setup_teardown(test_callbacks, begin, end),
		cmocka_unit_test_setup_teardown(test_suspended, begin, end),
		cmocka_unit_test_setup_teardown(test_suspended_in_a_callback, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
