/* SPDX-License-Identifier: BSD-3-Clause */
/* Is a node this machine? */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "hostlist/hostlist.h"
#include "launch/launcher.h"

static bool is_host_name(const char *name)
{
	char host[256] = "";

	if (!strcasecmp(name, "localhost"))
		return true;
	gethostname(host, sizeof host - 1);
	return *name && *name != '.' && hostlist_same_host(name, host);
}

static bool is_own_address(const char *name)
{
	struct ifaddrs *list = NULL;
	unsigned char bytes[16];
	bool found = false;

	if (inet_pton(AF_INET, name, bytes) != 1 && inet_pton(AF_INET6, name, bytes) != 1)
		return false;
	if (getifaddrs(&list))
		return false;
	for (const struct ifaddrs *at = list; at && !found; at = at->ifa_next) {
		int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;

		const void *own = NULL;

		if (family == AF_INET)
			own = &((const struct sockaddr_in *)at->ifa_addr)->sin_addr;
		else if (family == AF_INET6)
			own = &((const struct sockaddr_in6 *)at->ifa_addr)->sin6_addr;
		found = own && inet_pton(family, name, bytes) == 1 &&
			!memcmp(bytes, own, family == AF_INET ? 4 : 16);
	}
	freeifaddrs(list);
	return found;
}

bool launcher_is_this_host(const char *name)
{
	return is_host_name(name) || is_own_address(name);
}
