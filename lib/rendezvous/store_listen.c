/* SPDX-License-Identifier: BSD-3-Clause */
/* The listening socket of rank 0. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rendezvous/store.h"

static int listen_at(const struct addrinfo *address)
{
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), one = 1;

	if (fd < 0)
		return -1;
	/* berth run's agent reserves the port: bound with SO_REUSEADDR, not listening. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (!bind(fd, address->ai_addr, address->ai_addrlen) && !listen(fd, 4096))
		return fd;
	int saved = errno;

	close(fd);
	errno = saved;
	return -1;
}

/* Listen at the first address that works; *error receives the errno of the last try. */
static int listen_any(const char *address, int port, int flags, int *error)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | flags};
	struct addrinfo *list;
	char service[16];
	int fd = -1;

	snprintf(service, sizeof service, "%d", port);
	if (getaddrinfo(address, service, &hints, &list))
		return -1;
	for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next) {
		fd = listen_at(at);
		*error = errno;
	}
	freeaddrinfo(list);
	return fd;
}

/* Listen at address if it is ours; otherwise (a name, or an address that is translated on the way)
 * on all addresses. */
int store_listen(const char *address, int port, struct error *err)
{
	int saved = EADDRNOTAVAIL, fd = listen_any(address, port, 0, &saved);

	if (fd < 0 && saved == EADDRNOTAVAIL)
		fd = listen_any(NULL, port, AI_PASSIVE, &saved);
	if (fd < 0)
		error_set(err, ERR_NETWORK, "rank 0 cannot listen on %s port %d: %s%s", address,
			  port, strerror(saved),
			  saved == EADDRINUSE ? "; another program (torchrun?) or a leftover job "
						"uses the port: choose another MASTER_PORT"
					      : "");
	return fd;
}
