/* SPDX-License-Identifier: BSD-3-Clause */
/* An event loop for one thread: descriptors and a timeout (epoll). */
#ifndef BERTH_BASE_LOOP_H
#define BERTH_BASE_LOOP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/error.h"

/* An event source, embedded in its owner's struct. The loop calls ready with EPOLLIN, EPOLLOUT,
 * EPOLLHUP... */
struct loop_source {
	void (*ready)(struct loop_source *source, uint32_t events);
	int fd;		 /* -1: not in a loop */
	uint32_t events; /* the events waited for */
};

struct loop;

int loop_new(struct loop **out, struct error *err);
void loop_free(struct loop *loop); /* NULL is allowed; the owners keep their sources */

/* Start to wait for events on fd. The source must stay valid until loop_remove. */
int loop_add(struct loop *loop, struct loop_source *source, int fd, uint32_t events,
	     struct error *err);
/* Wait for signals with a signalfd (close-on-exec, non-blocking) that ready must read. The signals
 * are blocked in this thread from now on. SIGHUP is left out if the process inherited it as ignored
 * (nohup). The caller closes the descriptor, source->fd. */
int loop_add_signals(struct loop *loop, struct loop_source *source, const int *signals,
		     size_t count, struct error *err);
/* Change the events waited for; does nothing if they are the same. */
void loop_modify(struct loop *loop, struct loop_source *source, uint32_t events);
/* Remove the source. Its ready is not called again, not even in the current round. The descriptor
 * stays open. A source that is in no loop is allowed. */
void loop_remove(struct loop *loop, struct loop_source *source);
/* Remove the source and close its descriptor. A source that is in no loop is allowed. */
void loop_close(struct loop *loop, struct loop_source *source);

/* Wait at most timeout_ms (-1: no limit) and call ready for each source with events. Return 0, or
 * -ERR_INTERNAL if epoll failed. */
int loop_once(struct loop *loop, int timeout_ms, struct error *err);

#endif
