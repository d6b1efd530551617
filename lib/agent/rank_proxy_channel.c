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

int tasks_signals(int more)
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

int tasks_address(const struct env *env, const char *rank_name, int *rank, struct sockaddr_un *out,
		  socklen_t *size, struct error *err)
{
	const char *token = env_get(env, TASKS_ENV), *number = env_get(env, rank_name);
	int rc, length;

	if (!token || strlen(token) != TASKS_TOKEN || token[strspn(token, "0123456789abcdef")])
		return error_set(err, ERR_USAGE,
				 "%s is not set, or no token: keepers and tasks are started by "
				 "berth run --launcher srun-ranks",
				 TASKS_ENV);
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

int tasks_is_ours(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof peer;

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == getuid();
}

int tasks_say(int fd, enum tasks_kind kind, int value, const int *fds, size_t fd_count)
{
	struct tasks_word word = {(uint32_t)kind, value};
	struct iovec part = {&word, sizeof word};
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(TASKS_FDS * sizeof(int))];
	} control = {0};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

	if (fd_count) {
		message.msg_control = control.room;
		message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);

		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
		memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
	}
	return sendmsg(fd, &message, MSG_NOSIGNAL) == sizeof word ? 0 : -1;
}

int tasks_hear(int fd, struct tasks_word *out, int *fds)
{
	struct iovec part = {out, sizeof *out};
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(TASKS_FDS * sizeof(int))];
	} control;
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
				 .msg_controllen = sizeof control.room};
	ssize_t n;

	for (size_t i = 0; fds && i < TASKS_FDS; i++)
		fds[i] = -1;
	n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -1 : 0;
	for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
		size_t size = head->cmsg_len - CMSG_LEN(0);
		int got[TASKS_FDS];

		if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
		    size > sizeof got)
			continue;
		memcpy(got, CMSG_DATA(head), size);
		for (size_t i = 0; i < size / sizeof *got; i++)
			if (fds)
				fds[i] = got[i];
			else
				close(got[i]);
	}
	return n == sizeof *out;
}
