/* SPDX-License-Identifier: BSD-3-Clause */
/* The addresses of this node, and the type of each one's interface. */
#include "hostlist/hostlist.h"
#include "inventory/sys.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fnmatch.h>
#include <limits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define STACK_MAX 4 /* a VLAN on a bond on a bridge... */

/* if_arp.h's numbers. */
#define TYPE_ETHER 1
#define TYPE_INFINIBAND 32
#define TYPE_LOOPBACK 772

struct iface_info {
	enum iface_type type;
	int nic; /* index in inventory->nics, or -1 */
};

static int nic_with_net(const struct inventory *inventory, const char *name)
{
	for (size_t i = 0; i < inventory->nic_count; i++)
		if (strcmp(inventory->nics[i].net, name) == 0)
			return (int)i;
	return -1;
}

static void inspect_iface(const struct inventory *inventory, const char *sys_root, const char *name,
			  int depth, struct iface_info *out);

/* Look at the devices below a bond, VLAN or bridge. It is physical if any of them is. Among several
 * devices take one that is up, the first by name. */
static void inspect_lower_devices(const struct inventory *inventory, const char *sys_root,
				  const char *name, int depth, struct iface_info *out)
{
	char dir[PATH_MAX];
	struct dirent **list;

	snprintf(dir, sizeof dir, "%s/sys/class/net/%s", sys_root, name);

	int count = sys_list(dir, &list);

	for (int i = 0; i < count; i++) {
		struct iface_info below;

		if (strncmp(list[i]->d_name, "lower_", 6) != 0)
			continue;
		inspect_iface(inventory, sys_root, list[i]->d_name + 6, depth + 1, &below);
		if (below.type != IFACE_PHYSICAL)
			continue;
		out->type = IFACE_PHYSICAL;
		if (out->nic < 0 ||
		    (inventory->nics[out->nic].state != NIC_STATE_UP && below.nic >= 0 &&
		     inventory->nics[below.nic].state == NIC_STATE_UP))
			out->nic = below.nic;
	}
	sys_list_free(list, count);
}

/* DEVTYPE of the interface ("bond", "vlan", "bridge", "macvlan"), "" when it has none. */
static void devtype_of(const char *sys_root, const char *name, char *out, size_t size)
{
	out[0] = '\0';
	if (sys_text(out, size, "%s/sys/class/net/%s/uevent", sys_root, name) != 0 ||
	    strncmp(out, "DEVTYPE=", 8) != 0)
		out[0] = '\0';
	else
		memmove(out, out + 8, strlen(out + 8) + 1);
}

/* An Ethernet-like interface without a device. It is the end of a container's own veth pair (its
 * other end is in another namespace, and no bridge contains it), a dummy, or a tap. */
static bool is_container_veth(const char *sys_root, const char *name)
{
	return sys_number(TYPE_ETHER, "%s/sys/class/net/%s/type", sys_root, name) == TYPE_ETHER &&
	       !sys_has("%s/sys/class/net/%s/master", sys_root, name) &&
	       !sys_has("%s/sys/class/net/%s/tun_flags", sys_root, name) &&
	       sys_number(0, "%s/sys/class/net/%s/iflink", sys_root, name) !=
		       sys_number(0, "%s/sys/class/net/%s/ifindex", sys_root, name);
}

static void inspect_iface(const struct inventory *inventory, const char *sys_root, const char *name,
			  int depth, struct iface_info *out)
{
	static const char *const stacked[] = {"bond", "vlan", "team", "macvlan", "ipvlan"};
	char devtype[32];

	*out = (struct iface_info){.type = IFACE_VIRTUAL, .nic = nic_with_net(inventory, name)};
	if (depth > STACK_MAX)
		return;
	if (out->nic >= 0 || sys_has("%s/sys/class/net/%s/device", sys_root, name) ||
	    sys_number(0, "%s/sys/class/net/%s/type", sys_root, name) == TYPE_INFINIBAND) {
		out->type = IFACE_PHYSICAL;
		if (out->nic < 0) /* an IPoIB child */
			inspect_lower_devices(inventory, sys_root, name, depth, out);
		return;
	}
	if (sys_number(0, "%s/sys/class/net/%s/type", sys_root, name) == TYPE_LOOPBACK) {
		out->type = IFACE_LOOPBACK;
		return;
	}
	inspect_lower_devices(inventory, sys_root, name, depth, out);
	devtype_of(sys_root, name, devtype, sizeof devtype);
	for (size_t i = 0; i < sizeof stacked / sizeof *stacked; i++)
		if (strcmp(devtype, stacked[i]) == 0 &&
		    (i != 1 || out->type == IFACE_PHYSICAL || is_container_veth(sys_root, name)))
			out->type = IFACE_PHYSICAL;
	if (!devtype[0] && is_container_veth(sys_root, name))
		out->type = IFACE_PHYSICAL;
}

static int count_bits(const unsigned char *mask, int bytes)
{
	int bits = 0;

	for (int i = 0; i < bytes; i++)
		bits += __builtin_popcount(mask[i]);
	return bits;
}

/* Bytes, prefix and scope of an entry of getifaddrs. */
static void read_sockaddr(struct inventory_address *out, const struct ifaddrs *at)
{
	out->family = at->ifa_addr->sa_family;
	if (out->family == AF_INET) {
		const struct sockaddr_in *in = (const void *)at->ifa_addr;
		const struct sockaddr_in *mask = (const void *)at->ifa_netmask;

		memcpy(out->bytes, &in->sin_addr, 4);
		out->prefix = mask ? count_bits((const void *)&mask->sin_addr, 4) : 32;
	} else {
		const struct sockaddr_in6 *in = (const void *)at->ifa_addr;
		const struct sockaddr_in6 *mask = (const void *)at->ifa_netmask;

		memcpy(out->bytes, &in->sin6_addr, 16);
		out->prefix = mask ? count_bits((const void *)&mask->sin6_addr, 16) : 128;
		out->scope = in->sin6_scope_id;
	}
	out->link_local = inventory_address_is_link_local(out);
}

/* Does an IPv4 default route use the interface? */
static bool has_default_route(const char *sys_root, const char *name)
{
	char path[PATH_MAX], line[256], iface[32];
	unsigned destination, gateway, flags, mask;
	bool found = false;

	snprintf(path, sizeof path, "%s/proc/net/route", sys_root);

	FILE *file = fopen(path, "re");

	while (file && !found && fgets(line, sizeof line, file))
		found = sscanf(line, "%31s %x %x %x %*d %*d %*d %x", iface, &destination, &gateway,
			       &flags, &mask) == 5 &&
			!destination && !mask && !strcmp(iface, name);
	if (file)
		fclose(file);
	return found;
}

/* Does the line of /etc/hosts give one of the interface's addresses for the node's name? */
static bool names_node(char *line, const struct inventory *inventory, const char *iface)
{
	char *rest, *host, *name;
	unsigned char bytes[16];
	bool named = false;
	int family;

	line[strcspn(line, "#\n")] = 0;
	host = strtok_r(line, " \t", &rest);
	family = host && strchr(host, ':') ? AF_INET6 : AF_INET;
	if (!host || inet_pton(family, host, bytes) != 1)
		return false;
	while (!named && (name = strtok_r(NULL, " \t", &rest)))
		named = hostlist_same_host(name, inventory->node);
	for (size_t i = 0; named && i < inventory->address_count; i++)
		if (!strcmp(inventory->addresses[i].iface, iface) &&
		    inventory->addresses[i].family == family &&
		    !memcmp(inventory->addresses[i].bytes, bytes, family == AF_INET ? 4 : 16))
			return true;
	return false;
}

/* Only the file is read: a name server might not answer. */
static bool has_node_name(const char *sys_root, const struct inventory *inventory,
			  const char *iface)
{
	char path[PATH_MAX], line[1024];
	bool found = false;

	snprintf(path, sizeof path, "%s/etc/hosts", sys_root);

	FILE *file = fopen(path, "re");

	while (file && !found && fgets(line, sizeof line, file))
		found = names_node(line, inventory, iface);
	if (file)
		fclose(file);
	return found;
}

void address_mark_scheduler(struct inventory *inventory, const char *text)
{
	struct inventory_address subnet = {.family = AF_INET};

	if (!text || inet_pton(AF_INET, text, subnet.bytes) != 1)
		return;
	for (size_t i = 0; i < inventory->address_count; i++) {
		struct inventory_address *address = &inventory->addresses[i];

		subnet.prefix = address->prefix;
		if (address->type != IFACE_PHYSICAL ||
		    !inventory_address_in_subnet(address, &subnet))
			continue;
		for (size_t j = 0; j < inventory->address_count; j++)
			if (!strcmp(inventory->addresses[j].iface, address->iface) &&
			    inventory->addresses[j].use == USE_NONE)
				inventory->addresses[j].use = USE_SCHEDULER;
	}
}

/* Is name, which may be "", in the list of patterns? */
static bool is_listed(const char *list, const char *name)
{
	char pattern[64];

	while (*(list += strspn(list, ", "))) {
		size_t length = strcspn(list, ", ");

		snprintf(pattern, sizeof pattern, "%.*s", (int)length, list);
		if (*name && !fnmatch(pattern, name, 0))
			return true;
		list += length;
	}
	return false;
}

void address_ban(struct inventory *inventory, const char *list)
{
	size_t kept = 0;

	if (!list)
		return;
	for (size_t i = 0; i < inventory->address_count; i++)
		if (!is_listed(list, inventory->addresses[i].iface))
			inventory->addresses[kept++] = inventory->addresses[i];
	inventory->address_count = kept;
	for (size_t i = 0; i < inventory->nic_count; i++)
		if (is_listed(list, inventory->nics[i].net) ||
		    is_listed(list, inventory->nics[i].rdma))
			inventory->nics[i].management = true;
}

int address_read(struct discovery *discovery, const struct ifaddrs *list, struct error *err)
{
	struct inventory *inventory = discovery->inventory;
	const char *sys_root = discovery->source->sys_root ? discovery->source->sys_root : "";

	for (const struct ifaddrs *at = list; at; at = at->ifa_next) {
		if (!at->ifa_addr ||
		    (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6))
			continue;

		struct inventory_address *address = array_add(
			&inventory->addresses, &inventory->address_count, sizeof *address);
		struct iface_info iface_info;

		if (!address)
			return error_memory(err, "the addresses");
		/* "eth0:1" is a label of eth0. */
		snprintf(address->iface, sizeof address->iface, "%.*s",
			 (int)strcspn(at->ifa_name, ":"), at->ifa_name);
		read_sockaddr(address, at);
		inspect_iface(inventory, sys_root, address->iface, 0, &iface_info);
		if (at->ifa_flags & IFF_LOOPBACK)
			iface_info.type = IFACE_LOOPBACK;
		else if (!sys_has("%s/sys/class/net/%s", sys_root, address->iface) &&
			 iface_info.nic < 0)
			iface_info.type = IFACE_PHYSICAL; /* without /sys, assume a device */
		address->type = iface_info.type;
		address->nic = iface_info.nic;
		address->up = (at->ifa_flags & IFF_UP) && (at->ifa_flags & IFF_RUNNING);
		if (iface_info.nic >= 0)
			address->kind = inventory->nics[iface_info.nic].kind;
		else if (sys_number(0, "%s/sys/class/net/%s/type", sys_root, address->iface) ==
			 TYPE_INFINIBAND)
			address->kind = NIC_INFINIBAND;
		address->speed_mbps = sys_net_speed(sys_root, address->iface);
		if (address->speed_mbps < 0 && iface_info.nic >= 0)
			address->speed_mbps = inventory->nics[iface_info.nic].speed_mbps;
	}
	for (size_t i = 0; i < inventory->address_count; i++) {
		struct inventory_address *address = &inventory->addresses[i];

		address->use = has_default_route(sys_root, address->iface) ? USE_DEFAULT_ROUTE
			       : has_node_name(sys_root, inventory, address->iface) ? USE_NODE_NAME
										    : USE_NONE;
	}
	return 0;
}
