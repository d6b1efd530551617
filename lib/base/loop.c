/* SPDX-License-Identifier: BSD-3-Clause */
/* epoll, and a list of timers sorted by time. A callback may add and remove any source and timer,
 * its own included. */
#include "base/loop.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"

#define ROUND 64
#define SUSPENDED_MS 2000 /* who wakes up so late was stopped: a busy machine delays less */

struct loop {
	int epoll;
	struct loop_timer *timers; /* the next one first */
	int64_t woke_ms;	   /* by clock_now_ms; 0: loop_once was not called yet */
	int64_t suspended_ms;
	struct epoll_event round[ROUND];
	int count, at; /* of the current round */
};

int loop_new(struct loop **out, struct error *err)
{
	struct loop *loop = calloc(1, sizeof *loop);

	if (!loop)
		return error_memory(err, "an event loop");
	loop->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (loop->epoll < 0) {
		free(loop);
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot create an event loop (epoll_create): %m");
	}
	*out = loop;
	return 0;
}

void loop_free(struct loop *loop)
{
	if (!loop)
		return;
	while (loop->timers)
		loop_timer_stop(loop->timers);
	close(loop->epoll);
	free(loop);
}

int loop_add(struct loop *loop, struct loop_source *source, int fd, uint32_t events,
	     struct error *err)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &event))
		return error_set(err, ERR_UNAVAILABLE, "cannot watch descriptor %d: %m", fd);
	source->fd = fd;
	source->events = events;
	return 0;
}

void loop_modify(struct loop *loop, struct loop_source *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	if (source->fd < 0 || source->events == events)
		return;
	source->events = events;
	epoll_ctl(loop->epoll, EPOLL_CTL_MOD, source->fd, &event);
}

void loop_remove(struct loop *loop, struct loop_source *source)
{
	if (source->fd < 0)
		return;
	epoll_ctl(loop->epoll, EPOLL_CTL_DEL, source->fd, NULL);
	source->fd = -1;
	/* Its event may wait in the current round, and the source may be freed by then. */
	for (int i = loop->at; i < loop->count; i++)
		if (loop->round[i].data.ptr == source)
			loop->round[i].data.ptr = NULL;
}

void loop_close(struct loop *loop, struct loop_source *source)
{
	int fd = source->fd;

	if (fd < 0)
		return;
	loop_remove(loop, source);
	close(fd);
}

static bool is_ignored(int number)
{
	struct sigaction now;

	return !sigaction(number, NULL, &now) && now.sa_handler == SIG_IGN;
}

int loop_add_signals(struct loop *loop, struct loop_source *source, const int *signals,
		     size_t count, struct error *err)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	for (size_t i = 0; i < count; i++)
		/* A blocked signal reaches the signalfd even if it is ignored. */
		if (signals[i] != SIGHUP || !is_ignored(SIGHUP))
			sigaddset(&set, signals[i]);
	sigprocmask(SIG_BLOCK, &set, NULL);
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return error_set(err, ERR_UNAVAILABLE, "cannot receive signals (signalfd): %m");

	int rc = loop_add(loop, source, fd, EPOLLIN, err);

	if (rc)
		close(fd);
	return rc;
}

/* ---- timers ---- */

void loop_timer_stop(struct loop_timer *timer)
{
	if (!timer->due_ms)
		return;
	*timer->link = timer->next;
	if (timer->next)
		timer->next->link = timer->link;
	timer->due_ms = 0;
}

void loop_timer_set(struct loop *loop, struct loop_timer *timer, int64_t due_ms)
{
	struct loop_timer **link = &loop->timers;

	loop_timer_stop(timer);
	/* Behind those that are due at the same time: they were set before. */
	while (*link && (*link)->due_ms <= due_ms)
		link = &(*link)->next;
	timer->due_ms = due_ms > 0 ? due_ms : 1; /* 0 is not armed */
	timer->next = *link;
	timer->link = link;
	if (timer->next)
		timer->next->link = &timer->next;
	*link = timer;
}

void loop_timer_after(struct loop *loop, struct loop_timer *timer, int64_t ms)
{
	loop_timer_set(loop, timer, loop_now_ms(loop) + ms);
}

int64_t loop_now_ms(const struct loop *loop)
{
	return clock_now_ms() - loop->suspended_ms;
}

int64_t loop_suspended_ms(const struct loop *loop)
{
	return loop->suspended_ms;
}

static int next_timeout_ms(const struct loop *loop)
{
	int64_t left_ms;

	if (!loop->timers)
		return -1;
	left_ms = loop->timers->due_ms - loop_now_ms(loop);
	return left_ms <= 0 ? 0 : left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

/* timeout_ms: how long it meant to sleep since this was last called. The time that a callback takes
 * counts, too: this process may have stopped itself in one. */
static void notice_suspension(struct loop *loop, int timeout_ms)
{
	int64_t before_ms = loop->woke_ms, late_ms;

	loop->woke_ms = clock_now_ms();
	late_ms = loop->woke_ms - before_ms - timeout_ms;
	if (timeout_ms >= 0 && late_ms > SUSPENDED_MS)
		loop->suspended_ms += late_ms;
}

static void call_due(struct loop *loop)
{
	struct loop_timer **end = &loop->timers, *due = loop->timers;
	int64_t now_ms;

	notice_suspension(loop, 0);
	now_ms = loop_now_ms(loop);
	while (*end && (*end)->due_ms <= now_ms)
		end = &(*end)->next;
	if (end == &loop->timers)
		return;
	/* Detach what is due: a timer that is armed again, even for now, waits for the next round.
	 * Otherwise it could keep the descriptors from their turn. */
	loop->timers = *end;
	if (loop->timers)
		loop->timers->link = &loop->timers;
	*end = NULL;
	/* A callback may stop one that is still in this list. */
	due->link = &due;
	while (due) {
		struct loop_timer *timer = due;

		loop_timer_stop(timer);
		timer->due(timer);
		notice_suspension(loop, 0);
	}
}

int loop_once(struct loop *loop, struct error *err)
{
	int timeout_ms = next_timeout_ms(loop);

	if (!loop->woke_ms) /* what came before, such as connecting, takes its time */
		loop->woke_ms = clock_now_ms();
	loop->at = 0;
	loop->count = epoll_wait(loop->epoll, loop->round, ROUND, timeout_ms);
	if (loop->count < 0 && errno != EINTR)
		return error_set(err, ERR_INTERNAL, "cannot wait for events (epoll_wait): %m");
	notice_suspension(loop, timeout_ms);
	while (loop->at < loop->count) {
		struct epoll_event *event = &loop->round[loop->at++];
		struct loop_source *source = event->data.ptr;

		if (source)
			source->ready(source, event->events);
	}
	loop->count = 0;
	call_due(loop);
	return 0;
}
