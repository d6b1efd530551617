/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/loop.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define ROUND 64

struct loop {
	int epoll;
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

int loop_once(struct loop *loop, int timeout_ms, struct error *err)
{
	loop->at = 0;
	loop->count = epoll_wait(loop->epoll, loop->round, ROUND, timeout_ms);
	if (loop->count < 0) {
		loop->count = 0;
		return errno == EINTR ? 0
				      : error_set(err, ERR_INTERNAL,
						  "cannot wait for events (epoll_wait): %m");
	}
	while (loop->at < loop->count) {
		struct epoll_event *event = &loop->round[loop->at++];
		struct loop_source *source = event->data.ptr;

		if (source)
			source->ready(source, event->events);
	}
	loop->count = 0;
	return 0;
}
