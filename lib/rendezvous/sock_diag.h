/* SPDX-License-Identifier: BSD-3-Clause */
/* Which user or process owns a TCP socket of this machine. The kernel answers (NETLINK_SOCK_DIAG)
 * for the sockets of this network namespace. */
#ifndef BERTH_RENDEZVOUS_SOCK_DIAG_H
#define BERTH_RENDEZVOUS_SOCK_DIAG_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Set *uid to the user of the other end of a connected TCP or Unix socket. Return 0, or -errno:
 * -ENOENT if the other end is not on this machine, or not open any more. */
int sock_diag_peer(int fd, uid_t *uid);

/* Does a user other than own listen on this TCP port? Return 1 and set *uid, 0, or -errno. */
int sock_diag_stranger_listens(int port, uid_t own, uid_t *uid);

/* At most this many; further ones are left out. */
#define SOCK_DIAG_INODES 4096

struct sock_diag_inodes {
	unsigned list[SOCK_DIAG_INODES];
	size_t count;
	bool closed; /* a connection was closed in the last minute (TIME_WAIT) */
};

/* The TCP sockets that listen on this port, or are connected from or to it, as their inodes in
 * /proc/PID/fd. Return 0, or -errno. */
int sock_diag_port(int port, struct sock_diag_inodes *out);

#endif
