/* SPDX-License-Identifier: BSD-3-Clause */
/* TCP sockets, and addresses as text: "10.0.0.1:4711", "[fe80::1%eth0]:4711". */
#ifndef BERTH_OVERLAY_SOCKET_H
#define BERTH_OVERLAY_SOCKET_H

#include <net/if.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"

/* Listen on port (0: any) of every address, IPv4 and IPv6, or IPv4 only if there is no IPv6. *fd is
 * non-blocking; *actual is the port. Return 0, or -ERR_NETWORK if the port is taken or
 * forbidden. */
int socket_listen(int port, int *fd, int *actual, struct error *err);

/* Reserve a port: bind with SO_REUSEADDR on every address, without listening. The kernel gives it
 * to no other program, but a program that sets SO_REUSEADDR itself can still listen on it; every
 * torch store does. port 0: any free one. Return 0, or -ERR_NETWORK if the port is taken; err
 * suggests another. */
int socket_reserve(int port, int *fd, int *actual, struct error *err);

/* Parse "ADDRESS:PORT" with a numeric address. -ERR_DATA. */
int socket_parse(const char *text, struct sockaddr_storage *out, socklen_t *size,
		 struct error *err);
/* Start to connect. *fd is non-blocking; *under_way is nonzero while the connection is in
 * progress. */
int socket_connect(const struct sockaddr_storage *to, socklen_t size, int *fd, int *under_way,
		   struct error *err);
/* Format an address with its port; port 0: without. */
void socket_text(const struct sockaddr_storage *address, char *out, size_t size);
/* Format the peer's address; "socket pair" for a Unix socket. */
void socket_peer_text(int fd, char *out, size_t size);
/* Format the peer's address with another port. */
void socket_peer_with_port(int fd, int port, char *out, size_t size);
/* Is the interface that has the socket's own address down? If so, name receives its name. */
bool socket_is_down(int fd, char name[IF_NAMESIZE]);
/* The speed of an interface in Mb/s, -1 if unknown; sys_root: before /sys. */
typedef int64_t socket_speed(const char *sys_root, const char *iface);
/* List every address of this machine that others may reach, with port:
 * "10.0.0.1:4711,[fd00::1]:4711". Included are addresses that are up and neither loopback nor
 * link-local. Those of bridges without a device of the node (docker0, virbr0) are left out if
 * there are others. Those of the fastest interface come first, those of unknown speed last. At
 * most 64. Return 0, or -ERR_NETWORK if there is none. */
int socket_own_addresses(int port, socket_speed *speed_of, char *out, size_t size,
			 struct error *err);

#endif
