/* SPDX-License-Identifier: BSD-3-Clause */
/* The ranks of a run as one group: the small values that they agree on, whether all of them are
 * ready, and messages that are printed once and not by each rank.
 *
 * Every rank makes the same collective calls in the same order. */
#ifndef BERTH_TRAIN_COMM_RANK_GROUP_H
#define BERTH_TRAIN_COMM_RANK_GROUP_H

#include <stdbool.h>

#include "train/comm/comm.h"

/* A value that owns nothing. The fields are rank_group.c's own. */
struct rank_group {
	struct comm *comm;
	struct device_queue *queue;
	void (*print)(void *context, const char *text);
	void *context;
	bool gave_up; /* all ranks know that one of them is not ready */
};

/* comm, queue and context are borrowed. print receives one line; any thread may call it. */
struct rank_group rank_group_make(struct comm *comm, struct device_queue *queue,
				  void (*print)(void *context, const char *text), void *context);
int rank_group_rank(const struct rank_group *group);
int rank_group_size(const struct rank_group *group);

/* Reduce values in host memory over all ranks. Collective. */
int rank_group_reduce(const struct rank_group *group, double *values, size_t count,
		      enum comm_reduce reduce, struct error *err);
/* Send root's data in host memory to all ranks. Collective. */
int rank_group_broadcast(const struct rank_group *group, void *data, size_t size_bytes, int root,
			 struct error *err);

/* Let every rank report whether it is ready (rc 0), so that one rank with a missing file stops all
 * of them at once and none waits for it in the first reduction. Returns rc, or the code of the
 * lowest rank that is not ready; err then names that rank. Collective until it has failed once:
 * from then on it returns rc, because the rank that knows the cause has left. */
int rank_group_ready(struct rank_group *group, int rc, struct error *err);
/* For a rank that fails only because another did: wait at most 10 s. The launcher takes the first
 * rank that ends as the cause, so the rank that knows the reason must end first. Its end is
 * followed by the launcher's SIGTERM, which ends this process. */
void rank_group_let_failed_rank_end_first(void);

/* Print a line on rank 0 alone. A line that begins with "note: " or "warning: " is a message, and
 * is prefixed with the program's name. The same holds for the next two functions. */
void rank_group_note(const struct rank_group *group, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Print text on this rank, with its number on all ranks but 0. group is a struct
 * rank_group: this is a callback, too. */
void rank_group_note_from_rank(void *group, const char *text);
/* Print a line on this rank, whichever rank it is. */
void rank_group_note_here(const struct rank_group *group, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
