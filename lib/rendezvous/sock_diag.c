/* SPDX-License-Identifier: BSD-3-Clause */
/* Each question uses a socket of its own, so what is left of an answer, once the sought socket was
 * found, cannot be taken for the answer to the next question. */
#include "rendezvous/sock_diag.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define ANSWER_S 2
#define LOOPBACK_ENDS 512 /* further ones are left out */

struct query {
	struct nlmsghdr header;
	struct inet_diag_req_v2 body;
};

/* Return a socket on which the answers arrive, or -errno. */
static int ask(int family, int flags, unsigned int states, const struct inet_diag_sockid *id)
{
	struct query query = {
		.header = {.nlmsg_len = sizeof query,
			   .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			   .nlmsg_flags = (unsigned short)(NLM_F_REQUEST | flags)},
		.body = {.sdiag_family = (unsigned char)family,
			 .sdiag_protocol = IPPROTO_TCP,
			 .idiag_states = states,
			 .id = *id},
	};
	struct timeval limit = {.tv_sec = ANSWER_S};
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), rc = 0;

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (send(fd, &query, sizeof query, 0) != sizeof query)
		rc = -errno;
	if (!rc)
		return fd;
	close(fd);
	return rc;
}

/* Call found for each socket of the answer until it returns true. Return 1 then; 0 at the end, or
 * -errno. Closes fd. */
static int answers(int fd, bool (*found)(const struct nlmsghdr *header, void *context),
		   void *context)
{
	_Alignas(struct nlmsghdr) char text[32768];

	for (;;) {
		ssize_t size = recv(fd, text, sizeof text, 0);
		const struct nlmsghdr *header = (const struct nlmsghdr *)text;
		int rc = size < 0 ? -errno : 2;

		if (size < 0 && errno == EINTR)
			continue;
		for (; rc == 2 && NLMSG_OK(header, size); header = NLMSG_NEXT(header, size)) {
			if (header->nlmsg_type == NLMSG_DONE)
				rc = 0;
			else if (header->nlmsg_type == NLMSG_ERROR)
				rc = ((const struct nlmsgerr *)NLMSG_DATA(header))->error;
			else if (found(header, context))
				rc = 1;
			else if (!(header->nlmsg_flags & NLM_F_MULTI))
				rc = 0;
		}
		if (rc == 2)
			continue;
		close(fd);
		return rc;
	}
}

/* An address as inet_diag wants it; an IPv4 address within IPv6 counts as IPv4. */
static int fill(const struct sockaddr_storage *address, __be32 out[4], __be16 *port, __u32 *scope)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

	memset(out, 0, 16);
	if (address->ss_family == AF_INET) {
		*port = v4->sin_port;
		memcpy(out, &v4->sin_addr, 4);
		return AF_INET;
	}
	*port = v6->sin6_port;
	if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
		memcpy(out, v6->sin6_addr.s6_addr + 12, 4);
		return AF_INET;
	}
	memcpy(out, &v6->sin6_addr, 16);
	*scope = v6->sin6_scope_id;
	return AF_INET6;
}

struct owner {
	const struct inet_diag_sockid *id;
	uid_t uid;
};

/* A socket that no process has open any more is reported as root's. */
static bool is_open_end(const struct nlmsghdr *header, void *context)
{
	const struct inet_diag_msg *message = NLMSG_DATA(header);
	struct owner *owner = context;

	if (message->idiag_state != TCP_ESTABLISHED || !message->idiag_inode ||
	    message->id.idiag_sport != owner->id->idiag_sport ||
	    message->id.idiag_dport != owner->id->idiag_dport)
		return false;
	owner->uid = message->idiag_uid;
	return true;
}

int sock_diag_peer(int fd, uid_t *uid)
{
	struct sockaddr_storage own, peer;
	socklen_t own_size = sizeof own, peer_size = sizeof peer;
	struct inet_diag_sockid id = {.idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}};
	struct owner owner = {.id = &id};
	struct ucred credentials;
	socklen_t size = sizeof credentials;
	int family, rc;

	if (getsockname(fd, (struct sockaddr *)&own, &own_size) ||
	    getpeername(fd, (struct sockaddr *)&peer, &peer_size))
		return -errno;
	if (own.ss_family == AF_UNIX) {
		if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size))
			return -errno;
		*uid = credentials.uid;
		return 0;
	}
	if (own.ss_family != AF_INET && own.ss_family != AF_INET6)
		return -EAFNOSUPPORT;
	/* The other end: its source is our peer. */
	family = fill(&peer, id.idiag_src, &id.idiag_sport, &id.idiag_if);
	fill(&own, id.idiag_dst, &id.idiag_dport, &id.idiag_if);
	/* Without NLM_F_DUMP the kernel looks up this one connection instead of listing all. */
	rc = ask(family, 0, ~0U, &id);
	if (rc >= 0)
		rc = answers(rc, is_open_end, &owner);
	if (rc == 1)
		*uid = owner.uid;
	return rc == 1 ? 0 : rc ? rc : -ENOENT;
}

struct listener_query {
	const int *ports;
	size_t count, room, found;
	struct sock_diag_listener *out;
};

/* The kernel adds the attribute to each listener of IPv6. */
static bool is_only_v6(const struct nlmsghdr *header)
{
	const struct inet_diag_msg *message = NLMSG_DATA(header);
	const struct rtattr *at = (const struct rtattr *)(message + 1);
	unsigned left = (unsigned)(header->nlmsg_len - NLMSG_LENGTH(sizeof *message));

	for (; RTA_OK(at, left); at = RTA_NEXT(at, left))
		if (at->rta_type == INET_DIAG_SKV6ONLY)
			return *(const unsigned char *)RTA_DATA(at);
	return false;
}

/* A program such as Java's binds an IPv4 address to a socket of IPv6 (::ffff:10.0.0.1). */
static void record_address(struct sock_diag_listener *listener, const __be32 address[4])
{
	if (listener->family == AF_INET6 &&
	    IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)address)) {
		listener->family = AF_INET;
		listener->address[0] = address[3];
	} else {
		memcpy(listener->address, address, 16);
	}
}

static bool add_listener(const struct nlmsghdr *header, void *context)
{
	const struct inet_diag_msg *message = NLMSG_DATA(header);
	struct listener_query *query = context;
	size_t i = 0;

	while (i < query->count && query->ports[i] != ntohs(message->id.idiag_sport))
		i++;
	if (i == query->count || query->found == query->room)
		return false;
	query->out[query->found] = (struct sock_diag_listener){.port = query->ports[i],
							       .uid = message->idiag_uid,
							       .inode = message->idiag_inode,
							       .family = message->idiag_family,
							       .only_v6 = is_only_v6(header)};
	record_address(&query->out[query->found++], message->id.idiag_src);
	return false;
}

/* All sockets in these states. */
static int list(unsigned states, bool (*found)(const struct nlmsghdr *header, void *context),
		void *context)
{
	static const int families[] = {AF_INET, AF_INET6};
	struct inet_diag_sockid any = {0};
	int rc = 0;

	for (size_t i = 0; !rc && i < 2; i++) {
		rc = ask(families[i], NLM_F_DUMP, states, &any);
		if (rc >= 0)
			rc = answers(rc, found, context);
	}
	return rc;
}

int sock_diag_listeners(const int *ports, size_t count, struct sock_diag_listener *out, size_t room)
{
	struct listener_query query = {ports, count, room, 0, out};
	int rc = list(1U << TCP_LISTEN, add_listener, &query);

	return rc ? rc : (int)query.found;
}

bool sock_diag_takes(const struct sock_diag_listener *listener, const struct sockaddr_storage *to)
{
	static const __be32 any[4];
	struct inet_diag_sockid id = {0};
	int family = fill(to, id.idiag_dst, &id.idiag_dport, &id.idiag_if);

	if (!memcmp(listener->address, any, 16))
		return listener->family == family || (family == AF_INET && !listener->only_v6);
	return listener->family == family && !memcmp(listener->address, id.idiag_dst, 16);
}

struct port_query {
	int port;
	struct sock_diag_inodes *out;
};

static bool add_inode(const struct nlmsghdr *header, void *context)
{
	const struct inet_diag_msg *message = NLMSG_DATA(header);
	const struct port_query *query = context;
	struct sock_diag_inodes *out = query->out;

	if (ntohs(message->id.idiag_sport) != query->port &&
	    ntohs(message->id.idiag_dport) != query->port)
		return false;
	out->closed |= message->idiag_state == TCP_TIME_WAIT;
	if (message->idiag_inode && out->count < SOCK_DIAG_INODES)
		out->list[out->count++] = message->idiag_inode;
	return false;
}

int sock_diag_port(int port, struct sock_diag_inodes *out)
{
	struct port_query query = {port, out};

	out->count = 0;
	out->closed = false;
	return list(1U << TCP_LISTEN | 1U << TCP_ESTABLISHED | 1U << TCP_TIME_WAIT, add_inode,
		    &query);
}

struct loopback_query {
	struct sock_diag_inodes *out;
	struct {
		__be16 from, to;
		unsigned inode;
	} ends[LOOPBACK_ENDS];
	size_t count;
};

static bool is_loopback(int family, const __be32 address[4])
{
	if (family == AF_INET)
		return ntohl(address[0]) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)address) ||
	       (IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)address) &&
		ntohl(address[3]) >> 24 == IN_LOOPBACKNET);
}

static bool add_loopback(const struct nlmsghdr *header, void *context)
{
	const struct inet_diag_msg *message = NLMSG_DATA(header);
	const struct inet_diag_sockid *id = &message->id;
	struct loopback_query *query = context;
	struct sock_diag_inodes *out = query->out;

	if (message->idiag_uid != geteuid() || !message->idiag_inode ||
	    query->count == LOOPBACK_ENDS || !is_loopback(message->idiag_family, id->idiag_dst))
		return false;
	for (size_t i = 0; i < query->count; i++)
		if (query->ends[i].from == id->idiag_dport &&
		    query->ends[i].to == id->idiag_sport) {
			out->list[out->count++] = query->ends[i].inode;
			out->list[out->count++] = message->idiag_inode;
		}
	query->ends[query->count].from = id->idiag_sport;
	query->ends[query->count].to = id->idiag_dport;
	query->ends[query->count++].inode = message->idiag_inode;
	return false;
}

int sock_diag_loopback(struct sock_diag_inodes *out)
{
	struct loopback_query query = {.out = out};

	out->count = 0;
	return list(1U << TCP_ESTABLISHED, add_loopback, &query);
}
