/* SPDX-License-Identifier: BSD-3-Clause */
/* A time limit for peers that connect to PMIx's own listening socket.
 *
 * PMIx's single thread reads a new peer's first message with blocking recv() and no limit. A local
 * unauthenticated peer that connects and stays silent would block PMIx for all ranks of the node
 * forever; so would bytes that look like the header of a long message. The library has no setting
 * for it (after 6.1: 5 s). But an accepted socket inherits the timeouts of the listening socket,
 * and server_accept.c tells PMIx that the peer is gone when they pass. Connections that have sent
 * their first message do not block, and the timeout does not affect them. */
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "pmix/server.h"

/* A rank's first message is one small segment, so its bytes arrive together. The rank may get no
 * CPU between connecting and sending it: until then TCP does not report the peer, and PMIx serves
 * the others. */
#define GREETING_S 1
#define UNREPORTED_S 5 /* Linux: 7 s, because it counts retransmissions */

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
	int unreported_s = UNREPORTED_S;
	DIR *list = opendir("/proc/self/fd");
	struct dirent *entry;

	while (list && (entry = readdir(list))) {
		char *end;
		long fd = strtol(entry->d_name, &end, 10);

		if (end == entry->d_name || *end || !listens_on_tcp((int)fd))
			continue;
		setsockopt((int)fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		setsockopt((int)fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &unreported_s,
			   sizeof unreported_s);
	}
	if (list)
		closedir(list);
}
