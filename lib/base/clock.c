/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/clock.h"

#include <signal.h>

#define THREAD_STACK ((size_t)1 << 20) /* at least: 256 KiB were too few for hwloc */

static struct timespec now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time;
}

int64_t clock_now_ms(void)
{
	struct timespec time = now(CLOCK_MONOTONIC);

	return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

double clock_now_s(void)
{
	struct timespec time = now(CLOCK_MONOTONIC);

	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

int clock_left_ms(int64_t until_ms)
{
	int64_t left = until_ms - clock_now_ms();

	return left > 0 ? (int)left : 0;
}

int64_t clock_wall_us(void)
{
	struct timespec time = now(CLOCK_REALTIME);

	return (int64_t)time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

double clock_wall_s(void)
{
	return (double)clock_wall_us() * 1e-6;
}

static struct timespec after_ms(clockid_t clock, int64_t timeout_ms)
{
	struct timespec time = now(clock);
	int64_t ns = time.tv_nsec + timeout_ms % 1000 * 1000000;

	time.tv_sec += timeout_ms / 1000 + ns / 1000000000;
	time.tv_nsec = ns % 1000000000;
	return time;
}

struct timespec clock_after_ms(int64_t timeout_ms)
{
	return after_ms(CLOCK_MONOTONIC, timeout_ms);
}

int thread_start(pthread_t *thread, void *(*run)(void *context), void *context)
{
	sigset_t all, before;
	pthread_attr_t attributes;
	size_t size;
	int rc;

	sigfillset(&all);
	pthread_attr_init(&attributes);
	/* The default is ulimit -s, which some set to a few hundred kB. */
	if (!pthread_attr_getstacksize(&attributes, &size) && size < THREAD_STACK)
		pthread_attr_setstacksize(&attributes, THREAD_STACK);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(thread, &attributes, run, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return rc;
}

bool clock_join(pthread_t thread, int64_t timeout_ms)
{
	/* Before glibc 2.31, there is no pthread_clockjoin_np. GCC's ThreadSanitizer does not know
	 * it, and would report that the joined thread races with its caller. */
#if defined __SANITIZE_THREAD__ || !__GLIBC_PREREQ(2, 31)
	struct timespec deadline = after_ms(CLOCK_REALTIME, timeout_ms);

	return !pthread_timedjoin_np(thread, NULL, &deadline);
#else
	struct timespec deadline = clock_after_ms(timeout_ms);

	return !pthread_clockjoin_np(thread, NULL, CLOCK_MONOTONIC, &deadline);
#endif
}

void clock_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attributes);
	pthread_condattr_destroy(&attributes);
}
