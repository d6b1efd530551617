/* SPDX-License-Identifier: BSD-3-Clause */
/* A time limit for who connects to PMIx's own listening socket.
 *
 * PMIx's one thread reads a newcomer's greeting with blocking recv() and no limit: a local stranger
 * that connects and is silent, or whose bytes look like the header of a long greeting, would stop
 * the PMIx of all ranks of the node for ever. The library has no setting for it; an accepted socket
 * inherits the timeouts of the socket that listens, and PMIx takes one that ran out as the end of
 * the newcomer. Connections that have greeted do not block and are not touched by it. */
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "pmix/server.h"

/* A rank's greeting is one small segment, sent as soon as it is connected. */
#define GREETING_S 1

static bool listens_on_tcp(int fd)
{
	int listens = 0, family = 0;
	socklen_t size = sizeof listens;

	if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) || !listens)
		return false;
	size = sizeof family;
	return !getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) &&
	       (family == AF_INET || family == AF_INET6);
}

void server_socket_set_timeout(void)
{
	struct timeval limit = {.tv_sec = GREETING_S};
	int seconds = GREETING_S;
	DIR *list = opendir("/proc/self/fd");
	struct dirent *entry;

	while (list && (entry = readdir(list))) {
		char *end;
		long fd = strtol(entry->d_name, &end, 10);

		if (end == entry->d_name || *end || !listens_on_tcp((int)fd))
			continue;
		setsockopt((int)fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		/* Who says nothing is not even accepted before. */
		setsockopt((int)fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds);
	}
	if (list)
		closedir(list);
}
