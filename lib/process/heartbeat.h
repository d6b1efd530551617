/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank shows that it makes progress; any program can implement this contract. From time to
 * time the rank writes the number of steps since its start, from 0 on, into the file named by
 * BERTH_HEARTBEAT_FILE:
 *
 *     12.5 step 1212, waits for the others
 *
 * That is a decimal number, a blank, and a status text for people; both are optional. One write at
 * the file's beginning is best. An empty file counts as one being written. Every change of the
 * file, even a touch, shows that the rank lives. A number of 1 or more shows that this attempt has
 * done a step. Without a number, changes are counted. The rank with the lowest number is the one
 * behind. */
#ifndef BERTH_PROCESS_HEARTBEAT_H
#define BERTH_PROCESS_HEARTBEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTBEAT_STATUS_BYTES 80

struct heartbeat {
	double steps; /* -1: nothing written yet */
	char status_text[HEARTBEAT_STATUS_BYTES];
	bool seen, numbered;
	int64_t changed_ns, size; /* of the file, at the last poll */
};

/* Look at the file and return whether it changed. Initialise heartbeat with steps -1 and everything
 * else zero. */
bool heartbeat_poll(const char *path, struct heartbeat *heartbeat);
/* Parse "12.5 step 1212". Return the number (-1: none) and the status text, cut and without control
 * characters. */
double heartbeat_parse(const char *text, char status_text[HEARTBEAT_STATUS_BYTES]);

#endif
