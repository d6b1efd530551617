/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/listeners.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "process/process_tree.h"

#define MOST 64 /* of one port on all addresses */

int listeners_process_has(pid_t pid, const unsigned *inodes, size_t count)
{
	char path[64];
	struct dirent *entry;
	int found = 0;
	DIR *dir;

	snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
	dir = opendir(path);
	if (!dir)
		return errno == ENOENT ? 0 : -1;
	while (!found && (entry = readdir(dir))) {
		char target[64] = "";
		unsigned inode;

		if (readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1) < 0 ||
		    sscanf(target, "socket:[%u]", &inode) != 1)
			continue;
		for (size_t i = 0; !found && i < count; i++)
			found = inodes[i] == inode;
	}
	closedir(dir);
	return found;
}

/* Is the socket that of a process below this one? A process that does not show its sockets, as its
 * program is not readable, may have it if it is the user's own; but not those of berth. */
static bool is_below(const struct sock_diag_listener *listener)
{
	struct process_tree list = {0};
	bool own = listener->uid == geteuid(), found = false;

	if (process_tree_read(NULL, 0, &list))
		return own;
	for (size_t i = 0; !found && i < list.count; i++) {
		int has = listeners_process_has(list.items[i].pid, &listener->inode, 1);

		found = has > 0 || (has < 0 && own && strncmp(list.items[i].name, "berth", 5) != 0);
	}
	process_tree_free(&list);
	return found;
}

/* Root may do anything, and forwards the ports of containers. A container's program may have
 * another user's number here. */
static bool is_foreign(const struct sock_diag_listener *listener)
{
	return listener->uid && listener->uid != geteuid() && !is_below(listener);
}

bool listeners_have_foreign(const int *ports, size_t count, int *port, uid_t *uid)
{
	struct sock_diag_listener list[MOST];
	int n = geteuid() ? sock_diag_listeners(ports, count, list, MOST) : 0;

	for (int i = 0; i < n; i++)
		if (is_foreign(&list[i])) {
			*port = list[i].port;
			*uid = list[i].uid;
			return true;
		}
	return false;
}

/* Read host, an address, into *to. Return false if it is not this machine's; a name of this machine
 * becomes an address of family AF_UNSPEC. */
static bool is_here(const char *host, struct sockaddr_storage *to)
{
	const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM};
	struct addrinfo *found;
	struct utsname name;
	bool here;
	int fd;

	memset(to, 0, sizeof *to);
	if (!host || !strcmp(host, "localhost"))
		return true;
	if (getaddrinfo(host, NULL, &hints, &found))
		return !uname(&name) && !strcmp(host, name.nodename);
	memcpy(to, found->ai_addr, found->ai_addrlen);
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	here = fd >= 0 && !bind(fd, found->ai_addr, found->ai_addrlen);
	if (fd >= 0)
		close(fd);
	freeaddrinfo(found);
	return here;
}

enum port_owner listeners_find(int port, const char *host, bool containers,
			       char found[INET6_ADDRSTRLEN], uid_t *uid)
{
	struct sock_diag_listener list[MOST];
	enum port_owner best = PORT_FREE;
	struct sockaddr_storage to;
	int n;

	*found = '\0';
	if (!is_here(host, &to) || (n = sock_diag_listeners(&port, 1, list, MOST)) < 0)
		return PORT_UNKNOWN;
	for (int i = 0; i < n; i++) {
		enum port_owner one = geteuid() && is_foreign(&list[i]) ? PORT_FOREIGN
				      : containers || !list[i].uid || is_below(&list[i])
					      ? PORT_OURS
					      : PORT_OUTSIDE;

		if (one == PORT_FOREIGN) {
			*uid = list[i].uid;
			return one;
		}
		inet_ntop(list[i].family, list[i].address, found, INET6_ADDRSTRLEN);
		if (best != PORT_OURS &&
		    (to.ss_family == AF_UNSPEC || sock_diag_takes(&list[i], &to)))
			best = one;
	}
	return best;
}
