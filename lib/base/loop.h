/* SPDX-License-Identifier: BSD-3-Clause */
/* One thread's waiting: descriptors and a clock (epoll). */
#ifndef BERTH_BASE_LOOP_H
#define BERTH_BASE_LOOP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/error.h"

/* Something to wait for, part of its owner's struct. ready gets EPOLLIN, EPOLLOUT, EPOLLHUP... */
struct loop_source {
	void (*ready)(struct loop_source *source, uint32_t events);
	int fd;		 /* -1: not in a loop */
	uint32_t events; /* waited for */
};

struct loop;

int loop_new(struct loop **out, struct error *err);
void loop_free(struct loop *loop); /* NULL is fine; sources are their owners' */

/* Wait for events on fd from now on. The source must stay until loop_remove. */
int loop_add(struct loop *loop, struct loop_source *source, int fd, uint32_t events,
	     struct error *err);
/* Wait for signals by a signalfd, close-on-exec and non-blocking, that ready reads; they are
 * blocked in this thread from now on. SIGHUP is left out where it was ignored from the start:
 * nohup. The descriptor, source->fd, is the caller's to close. */
int loop_add_signals(struct loop *loop, struct loop_source *source, const int *signals,
		     size_t count, struct error *err);
/* Change what is waited for; nothing happens when it is the same. */
void loop_modify(struct loop *loop, struct loop_source *source, uint32_t events);
/* Forget the source: its ready is not called again, not even in the round under way. Does not
 * close the descriptor. A source that is in no loop is fine. */
void loop_remove(struct loop *loop, struct loop_source *source);

/* Wait at most timeout_ms (-1: no limit) and call what is ready. -ERR_INTERNAL: epoll failed. */
int loop_once(struct loop *loop, int timeout_ms, struct error *err);

#endif
