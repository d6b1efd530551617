/* SPDX-License-Identifier: BSD-3-Clause */
/* The umask and the soft limits (ulimit -S) of the process that started the job. All ranks get
 * them, whichever launcher started their agents. */
#ifndef BERTH_PROCESS_RLIMITS_H
#define BERTH_PROCESS_RLIMITS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

struct limits {
	bool known;
	mode_t umask;
	rlim_t soft[RLIM_NLIMITS];
};

void limits_read(struct limits *out); /* of this process */
/* {umask, soft: [number; -1: unlimited]}. A new reference; NULL if they are not known or memory is
 * out. */
json_t *limits_to_json(const struct limits *limits);
/* Anything else than such an object gives limits that are not known. */
void limits_from_json(const json_t *json, struct limits *out);
/* Set the soft limits of this process as far as its hard ones allow. Locked memory is never
 * reduced, because RDMA needs it. Async-signal-safe. */
void limits_apply(const struct limits *limits);
/* Name those that the hard limits do not allow, "open files: 1024 of 65536"; "" if there are none.
 */
void limits_lacking(const struct limits *limits, char *text, size_t size);

#endif
