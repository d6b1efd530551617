/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks of a comm, each in a process of its own, and what every comm must do for them. */
#ifndef BERTH_TESTS_COMM_JOB_H
#define BERTH_TESTS_COMM_JOB_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/comm/comm.h"

#define RANKS 4
#define SHORT_MS 3000 /* a deadline that is meant to expire */
#define LONG_MS 60000

/* A rank's results, in memory that all processes share. */
struct said {
	char text[1024];
	int code;
	char host_id[64];
	double seconds;
};
extern struct said *said;

/* The comm under test, and how to open a device for it; main sets them before anything else. */
extern const char *job_comm;
extern struct device *(*job_device)(void);
int job_main(const struct CMUnitTest *tests, size_t count);

struct rank {
	struct device *device;
	struct device_queue *queue;
	struct ranks *ranks;
	struct meeting *meeting;
	struct comm *comm;
	int rank, size;
	bool allow_shared;
	int timeout_ms;
	struct error err;
};
typedef void (*rank_role)(struct rank *rank);

/* For a rank's process, where cmocka's asserts cannot be used. */
#define WANT(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "rank %d, line %d: %s; %s\n", rank->rank, __LINE__,        \
				#condition, rank->err.text);                                       \
			_exit(99);                                                                 \
		}                                                                                  \
	} while (0)

int rank_open(struct rank *rank);
void rank_close(struct rank *rank);
/* All operations, once for each type and reduction. */
void rank_well(struct rank *rank);

/* Run role on size ranks, with one GPU each or one for all; status[size]: exit codes. */
void job(rank_role role, int size, const char *fault, bool one_gpu, int timeout_ms, int *status);
void job_has(int rank, const char *text);
void job_all_well(int size, const int *status);

#endif
