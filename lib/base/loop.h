/* SPDX-License-Identifier: BSD-3-Clause */
/* An event loop for one thread: descriptors (epoll) and timers. */
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

/* A timer, embedded in its owner's struct; zeros, but for due: not armed. The loop calls due once
 * it is due, and then it is no longer armed. */
struct loop_timer {
	void (*due)(struct loop_timer *timer);
	int64_t due_ms;			 /* by loop_now_ms; 0: not armed */
	struct loop_timer *next, **link; /* the loop's */
};

/* The struct of this type whose member is the source or timer. */
#define LOOP_OWNER(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

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

/* Arm the timer, or move it. It must stay valid until it is due, stopped, or the loop is freed. */
void loop_timer_set(struct loop *loop, struct loop_timer *timer, int64_t due_ms);
void loop_timer_after(struct loop *loop, struct loop_timer *timer, int64_t ms); /* from now on */
void loop_timer_stop(struct loop_timer *timer); /* one that is not armed is allowed */

/* The monotonic clock, in ms, without the time for which this process was suspended (Ctrl-Z,
 * qsig -s suspend, a frozen cgroup): what is late then is late because of that. */
int64_t loop_now_ms(const struct loop *loop);
int64_t loop_suspended_ms(const struct loop *loop); /* for how long it was, in all */

/* Wait for events and timers, call ready for each source with events, then due for each timer that
 * is due; one that is armed meanwhile waits for the next call. Return 0, or -ERR_INTERNAL if epoll
 * failed. */
int loop_once(struct loop *loop, struct error *err);

#endif
