/* SPDX-License-Identifier: BSD-3-Clause */
/* How a rank tells that it goes on, a contract with any program: now and then it writes how many
 * steps it has done since its start into the file that BERTH_HEARTBEAT_FILE names, from 0 on, as
 *
 *     12.5 step 1212, waits for the others
 *
 * a decimal number, and behind a blank words for people (both are optional). One write from the
 * file's beginning is best; a file that is empty at the moment is one being written. Each change of
 * the file, a touch too, shows that the rank lives; a number of 1 or more, that this attempt made a
 * step; where there is no number, changes are counted. The rank with the lowest number is the one
 * behind. */
#ifndef BERTH_PROCESS_HEARTBEAT_H
#define BERTH_PROCESS_HEARTBEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HEARTBEAT_ENV "BERTH_HEARTBEAT_FILE"
#define HEARTBEAT_STATUS_BYTES 80

struct heartbeat {
	double steps; /* -1: nothing was written yet */
	char status_text[HEARTBEAT_STATUS_BYTES];
	bool seen, numbered;
	int64_t changed_ns, size; /* of the file, when it was looked at last */
};

/* Where the rank's file is, in its node's folder. */
void heartbeat_path(const char *dir, int local_rank, char *out, size_t size);
/* Look at the file; was there anything new? Begin with steps -1 and all else zero. */
bool heartbeat_poll(const char *path, struct heartbeat *heartbeat);
/* "12.5 step 1212": the number (-1: there is none) and the words, cut and without control
 * characters. */
double heartbeat_parse(const char *text, char status_text[HEARTBEAT_STATUS_BYTES]);

#endif
