/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/rank_proxy_channel.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/rank_proxy_internal.h"
#include "base/number.h"

int rank_proxies_block_signals(int more)
{
	static const int passed_on[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGQUIT};
	sigset_t set;

	sigemptyset(&set);
	for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
		sigaddset(&set, passed_on[i]);
	if (more)
		sigaddset(&set, more);
	signal(SIGPIPE, SIG_IGN);
	if (more)
		signal(more, SIG_DFL);
	if (sigprocmask(SIG_BLOCK, &set, NULL))
		return -1;
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int rank_proxies_address(const struct env *env, const char *rank_name, int *rank,
			 struct sockaddr_un *out, socklen_t *size, struct error *err)
{
	const char *token = env_get(env, RANK_PROXIES_ENV), *number = env_get(env, rank_name);
	int rc, length;

	if (!token || strlen(token) != RANK_PROXIES_TOKEN ||
	    token[strspn(token, "0123456789abcdef")])
		return error_set(err, ERR_USAGE,
				 "%s is not set, or no token: keepers and tasks are started by "
				 "berth run --launcher srun-ranks",
				 RANK_PROXIES_ENV);
	if (!number)
		return error_set(err, ERR_DATA, "%s is not set, so this is no rank's", rank_name);
	rc = number_int(rank_name, number, 0, INT32_MAX, rank, err);
	if (rc)
		return rc;
	memset(out, 0, sizeof *out);
	out->sun_family = AF_UNIX;
	length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "berth-task-%s-%d", token,
			  *rank);
	*size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
	return 0;
}

int rank_proxies_is_own_user(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof peer;

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == getuid();
}

int rank_proxies_send(int fd, enum rank_proxies_kind kind, int value, const int *fds,
		      size_t fd_count)
{
	struct rank_proxies_message message = {(uint32_t)kind, value};
	struct iovec part = {&message, sizeof message};
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(RANK_PROXIES_FDS * sizeof(int))];
	} control = {0};
	struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};

	if (fd_count) {
		header.msg_control = control.room;
		header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		struct cmsghdr *controller = CMSG_FIRSTHDR(&header);

		controller->cmsg_level = SOL_SOCKET;
		controller->cmsg_type = SCM_RIGHTS;
		controller->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(controller), fds, fd_count * sizeof(int));
	}
	return sendmsg(fd, &header, MSG_NOSIGNAL) == sizeof message ? 0 : -1;
}

int rank_proxies_receive(int fd, struct rank_proxies_message *out, int *fds)
{
	struct iovec part = {out, sizeof *out};
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(RANK_PROXIES_FDS * sizeof(int))];
	} control;
	struct msghdr header = {.msg_iov = &part,
				.msg_iovlen = 1,
				.msg_control = control.room,
				.msg_controllen = sizeof control.room};
	ssize_t n;

	for (size_t i = 0; fds && i < RANK_PROXIES_FDS; i++)
		fds[i] = -1;
	n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -1 : 0;
	for (struct cmsghdr *controller = CMSG_FIRSTHDR(&header); controller;
	     controller = CMSG_NXTHDR(&header, controller)) {
		size_t size = controller->cmsg_len - CMSG_LEN(0);
		int got[RANK_PROXIES_FDS];

		if (controller->cmsg_level != SOL_SOCKET || controller->cmsg_type != SCM_RIGHTS ||
		    size > sizeof got)
			continue;
		memcpy(got, CMSG_DATA(controller), size);
		for (size_t i = 0; i < size / sizeof *got; i++)
			if (fds)
				fds[i] = got[i];
			else
				close(got[i]);
	}
	return n == sizeof *out;
}
