/* SPDX-License-Identifier: BSD-3-Clause */
/* TCP sockets and addresses as text: "10.0.0.1:4711", "[fe80::1%eth0]:4711". */
#ifndef BERTH_OVERLAY_SOCKET_H
#define BERTH_OVERLAY_SOCKET_H

#include <stddef.h>
#include <sys/socket.h>

#include "base/error.h"

/* Listen on port (0: any) of every address, IPv4 and IPv6 (IPv4 alone where there is no IPv6).
 * The descriptor is non-blocking; *port is the one it got. -ERR_NETWORK: taken, forbidden. */
int socket_listen(int port, int *fd, int *actual, struct error *err);

/* Bind without listening, with SO_REUSEADDR, on every address: nobody else is given the port,
 * and a program that sets SO_REUSEADDR itself (every torch store) can still listen on it.
 * port 0: any free one. -ERR_NETWORK: the port is taken; err says to choose another. */
int socket_reserve(int port, int *fd, int *actual, struct error *err);

/* Parse "ADDRESS:PORT" with a numeric address. -ERR_DATA. */
int socket_parse(const char *text, struct sockaddr_storage *out, socklen_t *size,
		 struct error *err);
/* Start to connect; the descriptor is non-blocking, *under_way says whether it is done. */
int socket_connect(const struct sockaddr_storage *to, socklen_t size, int *fd, int *under_way,
		   struct error *err);
/* An address as text with its port (port 0: without). */
void socket_text(const struct sockaddr_storage *address, char *out, size_t size);
/* The other end, "socket pair" for a Unix socket. */
void socket_peer_text(int fd, char *out, size_t size);
/* The other end's address with another port. */
void socket_peer_with_port(int fd, int port, char *out, size_t size);
/* Every address of this machine that others may reach (up, neither loopback nor link-local), with
 * port: "10.0.0.1:4711,[fd00::1]:4711". -ERR_NETWORK: there is none. */
int socket_own_addresses(int port, char *out, size_t size, struct error *err);

#endif
