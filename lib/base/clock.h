/* SPDX-License-Identifier: BSD-3-Clause */
/* Clocks. Durations and deadlines use the monotonic clock, which cannot be set. Only times that
 * leave the machine (a job's end, a file's date) use the wall clock. */
#ifndef BERTH_BASE_CLOCK_H
#define BERTH_BASE_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* The monotonic clock, in milliseconds and in seconds. */
int64_t clock_now_ms(void);
double clock_now_s(void);

/* The wall clock: microseconds and seconds since 1970-01-01 UTC. */
int64_t clock_wall_us(void);
double clock_wall_s(void);

/* The time left until clock_now_ms() reaches until_ms, for poll: 0 if it has. */
int clock_left_ms(int64_t until_ms);
/* The monotonic clock's time timeout_ms from now. It serves pthread_cond_timedwait on a condition
 * from clock_cond_init. */
struct timespec clock_after_ms(int64_t timeout_ms);
/* Initialise a condition variable whose timed waits use the monotonic clock. */
void clock_cond_init(pthread_cond_t *cond);
/* Start a thread that takes no signals. Return 0, or pthread_create's error. */
int thread_start(pthread_t *thread, void *(*run)(void *context), void *context);
/* Wait for a thread to end and join it. Return false if it still runs after timeout_ms. */
bool clock_join(pthread_t thread, int64_t timeout_ms);

#endif
