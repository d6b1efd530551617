/* SPDX-License-Identifier: BSD-3-Clause */
/* Listening sockets are IPv6 sockets that accept IPv4, too; only a host without IPv6 gets an IPv4
 * one. So a listener has one descriptor and one port. */
#include "overlay/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <glob.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/number.h"

#define ADDRESSES_MAX 64 /* of this host; further ones are left out */

static socklen_t address_size(int family)
{
	return family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static in_port_t *port_of(struct sockaddr_storage *address)
{
	return address->ss_family == AF_INET6 ? &((struct sockaddr_in6 *)address)->sin6_port
					      : &((struct sockaddr_in *)address)->sin_port;
}

/* Bind to port on every address; -errno. */
static int bind_any(int family, int port, bool reuse, int *out, int *actual)
{
	struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
	socklen_t size = address_size(family);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, off = 0;

	if (fd < 0)
		return -errno;
	*port_of(&address) = htons((uint16_t)port);
	if (reuse)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
	if (bind(fd, (struct sockaddr *)&address, size) ||
	    getsockname(fd, (struct sockaddr *)&address, &size)) {
		int saved = errno;

		close(fd);
		return -saved;
	}
	*actual = ntohs(*port_of(&address));
	*out = fd;
	return 0;
}

static int bind_both(int port, bool reuse, int *fd, int *actual)
{
	int rc = bind_any(AF_INET6, port, reuse, fd, actual);

	/* IPv6 is not built in, or it is disabled. */
	if (rc == -EAFNOSUPPORT || rc == -EADDRNOTAVAIL)
		rc = bind_any(AF_INET, port, reuse, fd, actual);
	return rc;
}

static int explain_bind_failure(int port, int rc, struct error *err)
{
	if (rc == -EADDRINUSE)
		return error_set(err, ERR_NETWORK,
				 "port %d is already in use on this node. Choose another port, or "
				 "omit --port to get a free one.",
				 port);
	return error_set(err, ERR_NETWORK, "cannot use port %d: %s", port, strerror(-rc));
}

int socket_listen(int port, int *fd, int *actual, struct error *err)
{
	int rc = bind_both(port, true, fd, actual);

	if (rc)
		return explain_bind_failure(port, rc, err);
	if (listen(*fd, 1024)) {
		int saved = errno;

		close(*fd);
		return explain_bind_failure(port, -saved, err);
	}
	return 0;
}

/* Does the kernel still have connections of an ended program on this port (TIME_WAIT and similar
 * states)? These files do not list sockets that are bound without listening. */
static int has_lingering_connections(int port)
{
	static const char *const files[] = {"/proc/net/tcp", "/proc/net/tcp6"};
	int found = 0;

	for (size_t i = 0; i < 2 && !found; i++) {
		char line[512];
		FILE *file = fopen(files[i], "re");

		while (file && !found && fgets(line, sizeof line, file)) {
			unsigned local;

			if (sscanf(line, "%*d: %*[0-9A-Fa-f]:%x", &local) == 1)
				found = local == (unsigned)port;
		}
		if (file)
			fclose(file);
	}
	return found;
}

int socket_reserve(int port, int *fd, int *actual, struct error *err)
{
	int on = 1, held, number;
	/* With SO_REUSEADDR the bind would succeed even if another job has reserved the port. So
	 * bind without it, and set it afterwards for the program that will listen. */
	int rc = bind_both(port, false, &held, &number);

	if (rc == -EADDRINUSE && has_lingering_connections(port))
		rc = bind_both(port, true, &held, &number);
	if (rc)
		return explain_bind_failure(port, rc, err);
	setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	*fd = held;
	*actual = number;
	return 0;
}

int socket_parse(const char *text, struct sockaddr_storage *out, socklen_t *size, struct error *err)
{
	struct sockaddr_storage address = {0};
	struct sockaddr_in *in = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;
	char host[64];
	const char *colon = strrchr(text, ':');
	int port;

	if (!colon || colon == text || (size_t)(colon - text) >= sizeof host)
		return error_set(err, ERR_DATA,
				 "'%.80s' is not an address with a port, such as 10.0.0.1:4711 or "
				 "[fd00::1]:4711",
				 text);
	memcpy(host, text, (size_t)(colon - text));
	host[colon - text] = 0;
	int rc = number_int("port", colon + 1, 1, 65535, &port, err);

	if (rc)
		return rc;
	bool v6 = host[0] == '[' && host[strlen(host) - 1] == ']';

	address.ss_family = v6 ? AF_INET6 : AF_INET;
	*port_of(&address) = htons((uint16_t)port);
	if (v6) {
		host[strlen(host) - 1] = 0;
		char *zone = strchr(host, '%');

		if (zone) {
			*zone++ = 0;
			in6->sin6_scope_id = if_nametoindex(zone);
		}
		rc = inet_pton(AF_INET6, host + 1, &in6->sin6_addr) == 1;
	} else {
		rc = inet_pton(AF_INET, host, &in->sin_addr) == 1;
	}
	if (!rc)
		return error_set(err, ERR_DATA, "'%.80s' has no numeric address", text);
	*size = address_size(address.ss_family);
	*out = address;
	return 0;
}

int socket_connect(const struct sockaddr_storage *to, socklen_t size, int *out, int *under_way,
		   struct error *err)
{
	char text[64];
	int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

	if (fd < 0)
		return error_set(err, ERR_NETWORK, "socket: %s", strerror(errno));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	*under_way = connect(fd, (const struct sockaddr *)to, size) != 0;
	if (*under_way && errno != EINPROGRESS && errno != EAGAIN) {
		int saved = errno;

		close(fd);
		socket_text(to, text, sizeof text);
		error_set(err, ERR_NETWORK, "connecting to %s: %s", text, strerror(saved));
		errno = saved;
		return -ERR_NETWORK;
	}
	*out = fd;
	return 0;
}

void socket_text(const struct sockaddr_storage *address, char *out, size_t size)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
	char host[INET6_ADDRSTRLEN] = "?", zone[IF_NAMESIZE] = "";

	if (address->ss_family == AF_INET) {
		inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
		snprintf(out, size, "%s:%u", host, ntohs(in->sin_port));
	} else if (address->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
		inet_ntop(AF_INET, &in6->sin6_addr.s6_addr[12], host, sizeof host);
		snprintf(out, size, "%s:%u", host, ntohs(in6->sin6_port));
	} else if (address->ss_family == AF_INET6) {
		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof host);
		if (in6->sin6_scope_id)
			if_indextoname(in6->sin6_scope_id, zone);
		snprintf(out, size, "[%s%s%s]:%u", host, zone[0] ? "%" : "", zone,
			 ntohs(in6->sin6_port));
	} else {
		snprintf(out, size, "socket pair");
	}
}

void socket_peer_text(int fd, char *out, size_t size)
{
	struct sockaddr_storage address = {0};
	socklen_t length = sizeof address;

	if (getpeername(fd, (struct sockaddr *)&address, &length))
		snprintf(out, size, "an unconnected peer");
	else
		socket_text(&address, out, size);
}

void socket_peer_with_port(int fd, int port, char *out, size_t size)
{
	struct sockaddr_storage address = {0};
	socklen_t length = sizeof address;

	getpeername(fd, (struct sockaddr *)&address, &length);
	*port_of(&address) = htons((uint16_t)port);
	socket_text(&address, out, size);
}

bool socket_is_down(int fd, char name[IF_NAMESIZE])
{
	struct sockaddr_storage own = {0}, one;
	socklen_t length = sizeof own;
	struct ifaddrs *list = NULL;
	char text[80], other[80];
	bool down = false;

	if (getsockname(fd, (struct sockaddr *)&own, &length) || own.ss_family == AF_UNIX ||
	    getifaddrs(&list))
		return false;
	*port_of(&own) = 0;
	socket_text(&own, text, sizeof text);
	for (const struct ifaddrs *it = list; it && !down; it = it->ifa_next) {
		if (!it->ifa_addr || it->ifa_flags & IFF_RUNNING)
			continue;
		memset(&one, 0, sizeof one);
		memcpy(&one, it->ifa_addr, address_size(it->ifa_addr->sa_family));
		socket_text(&one, other, sizeof other);
		down = !strcmp(text, other) && snprintf(name, IF_NAMESIZE, "%s", it->ifa_name) > 0;
	}
	freeifaddrs(list);
	return down;
}

static bool is_usable(const struct ifaddrs *it)
{
	if (!it->ifa_addr || !(it->ifa_flags & IFF_UP) || (it->ifa_flags & IFF_LOOPBACK))
		return false;
	if (it->ifa_addr->sa_family == AF_INET)
		return true;
	return it->ifa_addr->sa_family == AF_INET6 &&
	       !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)it->ifa_addr)->sin6_addr);
}

/* Is it a bridge for containers or virtual machines (docker0, virbr0)? Every node may have the same
 * address on it. A bridge that contains one of the node's devices is the node's own. */
static bool is_inner_bridge(const char *name)
{
	/* A port with a device, or one that is a bond or VLAN. */
	static const char *const own[] = {"lower_*/device", "lower_*/lower_*"};
	char path[300];
	bool inner;

	snprintf(path, sizeof path, "/sys/class/net/%s/bridge", name);
	inner = !access(path, F_OK);
	for (size_t i = 0; inner && i < sizeof own / sizeof *own; i++) {
		glob_t found = {0};

		snprintf(path, sizeof path, "/sys/class/net/%s/%s", name, own[i]);
		inner = glob(path, GLOB_NOSORT, NULL, &found) == GLOB_NOMATCH;
		globfree(&found);
	}
	return inner;
}

/* Choose the usable addresses of this host, the fastest first: agents take the first that answers,
 * and without the fastest network the job would fail anyway. Return how many. */
static size_t choose_addresses(const struct ifaddrs *list, bool bridges, socket_speed *speed_of,
			       const struct ifaddrs *out[ADDRESSES_MAX])
{
	int64_t speeds[ADDRESSES_MAX];
	size_t count = 0;

	for (const struct ifaddrs *it = list; it && count < ADDRESSES_MAX; it = it->ifa_next) {
		size_t at = count;
		int64_t speed;

		if (!is_usable(it) || is_inner_bridge(it->ifa_name) != bridges)
			continue;
		speed = speed_of("", it->ifa_name);
		for (; at && speeds[at - 1] < speed; at--) {
			out[at] = out[at - 1];
			speeds[at] = speeds[at - 1];
		}
		out[at] = it;
		speeds[at] = speed;
		count++;
	}
	return count;
}

/* Write the usable addresses of this host. Return the length of the text. */
static size_t write_addresses(const struct ifaddrs *list, bool bridges, int port,
			      socket_speed *speed_of, char *out, size_t size)
{
	const struct ifaddrs *chosen[ADDRESSES_MAX];
	size_t used = 0, count = choose_addresses(list, bridges, speed_of, chosen);

	out[0] = 0;
	for (size_t i = 0; i < count; i++) {
		const struct ifaddrs *it = chosen[i];
		struct sockaddr_storage address = {0};
		char text[80];

		memcpy(&address, it->ifa_addr, address_size(it->ifa_addr->sa_family));
		*port_of(&address) = htons((uint16_t)port);
		socket_text(&address, text, sizeof text);
		if (used + strlen(text) + 2 > size)
			break;
		used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "," : "", text);
	}
	return used;
}

int socket_own_addresses(int port, socket_speed *speed_of, char *out, size_t size,
			 struct error *err)
{
	struct ifaddrs *list = NULL;
	size_t used;

	if (getifaddrs(&list))
		return error_set(err, ERR_NETWORK, "cannot list this host's addresses: %s",
				 strerror(errno));
	used = write_addresses(list, false, port, speed_of, out, size);
	if (!used)
		/* Only now: other nodes that have the same address on a bridge would try it in
		 * vain. */
		used = write_addresses(list, true, port, speed_of, out, size);
	freeifaddrs(list);
	return used ? 0
		    : error_set(err, ERR_NETWORK,
				"this host has no address that other nodes can reach: every "
				"interface is down or loopback. To simulate several nodes on this "
				"host, use --launcher loopback with --nodes.");
}
