/* SPDX-License-Identifier: BSD-3-Clause */
/* Whose are the sockets that listen on this node? A reserved port is bound with SO_REUSEADDR, so
 * any user may listen on it until the program that it is for does. Once that program listens, the
 * kernel refuses all others. So nothing is sent to a port before its listener is known to be the
 * job's. */
#ifndef BERTH_AGENT_LISTENERS_H
#define BERTH_AGENT_LISTENERS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "rendezvous/sock_diag.h"

enum port_owner {
	PORT_FREE,    /* none listens on it */
	PORT_OURS,    /* a process below this one, or root's */
	PORT_OUTSIDE, /* another process of this user */
	PORT_FOREIGN, /* a process of another user */
	PORT_UNKNOWN, /* the port of another machine, or this kernel does not tell */
};

/* Does a process of another user listen on one of these ports? Then set *port and *uid. Root, and
 * processes below this one, are no other users. False for root's jobs, whose ranks may have become
 * other users. */
bool listeners_have_foreign(const int *ports, size_t count, int *port, uid_t *uid);

/* Who listens on this port for those that connect to host: an address, a name, or NULL for any
 * address? PORT_FOREIGN, with *uid, even if only on another address; found: PORT_FREE, but there
 * is a listener of this user on this other address; else "". With containers, whose processes need
 * not descend from this one, PORT_OUTSIDE becomes PORT_OURS. Names are not resolved: those of this
 * machine are "localhost" and uname's, others count as another machine's. */
enum port_owner listeners_find(int port, const char *host, bool containers,
			       char found[INET6_ADDRSTRLEN], uid_t *uid);

/* Does the process have one of these sockets open? -1: it does not show them. */
int listeners_process_has(pid_t pid, const unsigned *inodes, size_t count);

#endif
