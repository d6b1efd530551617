/* SPDX-License-Identifier: BSD-3-Clause */
/* How long a test waits for an event. */
#ifndef BERTH_TESTS_WAIT_H
#define BERTH_TESTS_WAIT_H

#include <stdlib.h>

/* Return this many milliseconds times BERTH_TEST_SLOW, which tests/run.sh --slow sets. Not for a
 * time that must expire, nor for a documented deadline. */
static inline int wait_ms(int milliseconds)
{
	const char *slow = getenv("BERTH_TEST_SLOW");
	int times = slow ? atoi(slow) : 1;

	return milliseconds * (times > 1 ? times : 1);
}

#endif
