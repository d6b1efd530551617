/* SPDX-License-Identifier: BSD-3-Clause */
#include "overlay/address_probe.h"

#include <errno.h>
#include <unistd.h>

#include "overlay/socket.h"

static enum address_probe_outcome outcome_of(int error)
{
	return error == ECONNREFUSED   ? ADDRESS_PROBE_REFUSED
	       : error == ETIMEDOUT    ? ADDRESS_PROBE_TIMEOUT
	       : error == EHOSTUNREACH ? ADDRESS_PROBE_HOST_UNREACHABLE
				       : ADDRESS_PROBE_UNREACHABLE;
}

void address_probe_stop(struct address_probe *probe)
{
	if (probe->source.fd < 0)
		return;
	loop_timer_stop(&probe->late);
	loop_close(probe->loop, &probe->source);
}

static void finish(struct address_probe *probe, enum address_probe_outcome outcome)
{
	address_probe_stop(probe);
	probe->request.done(probe, outcome);
}

bool address_probe_answered(const struct address_probe *probe)
{
	return probe->received == sizeof probe->answer + probe->request.load;
}

static void on_late(struct loop_timer *timer)
{
	struct address_probe *probe = LOOP_OWNER(timer, struct address_probe, late);

	finish(probe, probe->connected ? ADDRESS_PROBE_NO_REPLY : ADDRESS_PROBE_TIMEOUT);
}

/* Return 0, or why the connection failed. */
static int connected(struct address_probe *probe)
{
	socklen_t size = sizeof(int);
	int error = 0;

	if (getsockopt(probe->source.fd, SOL_SOCKET, SO_ERROR, &error, &size))
		return errno;
	if (error)
		return error;
	probe->connected = true;
	if (probe->request.answer_ms)
		loop_timer_after(probe->loop, &probe->late, probe->request.answer_ms);
	return 0;
}

static void on_ready(struct loop_source *source, uint32_t events)
{
	static unsigned char load[WIRE_PROBE_LOAD_MAX]; /* what it holds does not matter */
	struct address_probe *probe = LOOP_OWNER(source, struct address_probe, source);
	size_t more = probe->request.load;
	bool asks = probe->sent < sizeof probe->question + more;
	size_t *done = asks ? &probe->sent : &probe->received;
	size_t head = asks ? sizeof probe->question : sizeof probe->answer;
	size_t left = *done < head ? head - *done : head + more - *done;
	unsigned char *at = *done >= head ? load : (asks ? probe->question : probe->answer) + *done;
	int error = probe->connected ? 0 : connected(probe);
	ssize_t n;

	if (error) {
		finish(probe, outcome_of(error));
		return;
	}
	if (asks && !(events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
		return;
	n = asks ? send(source->fd, at, left, MSG_NOSIGNAL) : recv(source->fd, at, left, 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		finish(probe, asks ? outcome_of(errno) : ADDRESS_PROBE_UNAUTHENTICATED);
		return;
	}
	*done += (size_t)n;
	if (*done < head + more)
		return;
	if (asks)
		loop_modify(probe->loop, source, EPOLLIN);
	else
		finish(probe, handshake_probe_verify(probe->request.secret, probe->request.job,
						     probe->question, probe->answer)
				      ? ADDRESS_PROBE_OK
				      : ADDRESS_PROBE_UNAUTHENTICATED);
}

enum address_probe_outcome address_probe_start(struct address_probe *probe, struct loop *loop,
					       const struct address_probe_request *request,
					       const struct sockaddr_storage *to, socklen_t size)
{
	int fd, under_way;

	*probe = (struct address_probe){.source = {on_ready, -1, 0},
					.late.due = on_late,
					.loop = loop,
					.request = *request};
	errno = 0;
	if (socket_connect(to, size, &fd, &under_way, NULL))
		return outcome_of(errno);
	handshake_probe_question(request->secret, request->job, request->load, probe->question);
	if (loop_add(loop, &probe->source, fd, EPOLLOUT, NULL)) {
		close(fd);
		return ADDRESS_PROBE_UNREACHABLE;
	}
	if (request->connect_ms)
		loop_timer_after(loop, &probe->late, request->connect_ms);
	return ADDRESS_PROBE_PENDING;
}
