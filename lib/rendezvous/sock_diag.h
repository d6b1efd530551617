/* SPDX-License-Identifier: BSD-3-Clause */
/* Which user or process owns a TCP socket of this machine. The kernel answers (NETLINK_SOCK_DIAG)
 * for the sockets of this network namespace. */
#ifndef BERTH_RENDEZVOUS_SOCK_DIAG_H
#define BERTH_RENDEZVOUS_SOCK_DIAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* Set *uid to the user of the other end of a connected TCP or Unix socket. Return 0, or -errno:
 * -ENOENT if the other end is not on this machine, or not open any more. */
int sock_diag_peer(int fd, uid_t *uid);

struct sock_diag_listener {
	int port, family; /* AF_INET also if an IPv6 socket listens at an IPv4 address */
	uid_t uid;
	unsigned inode;	     /* in /proc/PID/fd */
	uint32_t address[4]; /* in network byte order; of IPv4 the first; all zero: any */
	bool only_v6;	     /* takes no connections to IPv4 addresses */
};

/* Store at most room of the sockets that listen on one of these TCP ports. Return how many, or
 * -errno: this kernel does not tell. */
int sock_diag_listeners(const int *ports, size_t count, struct sock_diag_listener *out,
			size_t room);
/* Does a connection to this address of its port reach the listener? While it listens, no other
 * socket can: the kernel refuses the bind. Pure. */
bool sock_diag_takes(const struct sock_diag_listener *listener, const struct sockaddr_storage *to);

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

/* This user's connections to 127.0.0.0/8 and ::1, as the inodes of their two ends, one pair after
 * the other. Return 0, or -errno. */
int sock_diag_loopback(struct sock_diag_inodes *out);

#endif
