/* SPDX-License-Identifier: BSD-3-Clause */
/* The rendezvous address, at which all nodes reach the first node, and each node's interface in its
 * subnet. */
#include "plan/plan.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/number.h"
#include "plan/plan_internal.h"

/* ---- addresses and subnets ---- */

/* A subnet is an address of which only family, bytes and prefix count. */
static int parse_address(const char *text, struct inventory_address *out)
{
	*out = (struct inventory_address){.family = AF_INET, .prefix = 32};
	if (inet_pton(AF_INET, text, out->bytes) == 1)
		return 0;
	*out = (struct inventory_address){.family = AF_INET6, .prefix = 128};
	return inet_pton(AF_INET6, text, out->bytes) == 1 ? 0 : -1;
}

/* "10.0.0.0/8", "fd00::/64", or one address. */
static int parse_subnet(const char *text, struct inventory_address *out)
{
	const char *slash = strchr(text, '/');
	char address[64];
	size_t length = slash ? (size_t)(slash - text) : strlen(text);

	if (length >= sizeof address)
		return -1;
	memcpy(address, text, length);
	address[length] = '\0';
	if (parse_address(address, out) < 0)
		return -1;
	return slash ? number_int("the prefix", slash + 1, 0, out->prefix, &out->prefix, NULL) : 0;
}

/* The CIDR text of the subnet that an address lies in. */
static void format_subnet(const struct inventory_address *address, char *text, size_t size)
{
	struct inventory_address base = *address;
	char host[INET6_ADDRSTRLEN];

	for (int bit = address->prefix; bit < (address->family == AF_INET6 ? 128 : 32); bit++)
		base.bytes[bit / 8] &= (unsigned char)~(0x80 >> (bit % 8));
	inventory_address_format(&base, 0, host, sizeof host);
	snprintf(text, size, "%s/%d", host, address->prefix);
}

/* ---- comparing two addresses ---- */

int plan_address_priority(const struct inventory *inventory,
			  const struct inventory_address *address)
{
	if (address->nic >= 0 && (size_t)address->nic < inventory->nic_count &&
	    inventory->nics[address->nic].management)
		return 0;
	return address->kind != NIC_ETHERNET ? 2 : 1;
}

/* The distance of the address's NIC to the node's GPUs, summed. */
static long distance(const struct inventory *inventory, const struct inventory_address *address)
{
	long sum = 0;

	if (!inventory->path || address->nic < 0 || (size_t)address->nic >= inventory->nic_count)
		return (long)inventory->gpu_count * PATH_UNKNOWN;
	for (size_t g = 0; g < inventory->gpu_count; g++)
		sum += inventory->path[g * inventory->nic_count + (size_t)address->nic];
	return sum;
}

/* Does the name suggest a network for applications? */
static bool has_fabric_name(const struct inventory_address *address)
{
	static const char *const names[] = {"hsn", "ib", "roce", "rdma"};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strncmp(address->iface, names[i], strlen(names[i])))
			return true;
	return false;
}

static int use_weight(enum address_use use)
{
	return use == USE_DEFAULT_ROUTE ? 2 : use != USE_NONE;
}

/* Compare two networks of equal kind, speed and distance. One that also serves another purpose is
 * likely the management network, most of all the default route's. Some names suggest a fabric.
 * Return > 0 if a is better; *why then says what is wrong with b. */
static int compare_equals(const struct inventory_address *a, const struct inventory_address *b,
			  const char **why)
{
	static const char *const whys[] = {
		[USE_DEFAULT_ROUTE] = "it has the default route",
		[USE_NODE_NAME] = "the node's name belongs to it",
		[USE_SCHEDULER] = "the scheduler uses it",
	};
	int difference = use_weight(b->use) - use_weight(a->use);

	*why = whys[b->use];
	if (difference)
		return difference;
	*why = "its name is not a fabric's";
	return has_fabric_name(a) - has_fabric_name(b);
}

/* > 0: a is the better one. */
static int compare(const struct inventory *inventory, const struct inventory_address *a,
		   const struct inventory_address *b)
{
	const char *why;
	int by_name;

	if (plan_address_priority(inventory, a) != plan_address_priority(inventory, b))
		return plan_address_priority(inventory, a) - plan_address_priority(inventory, b);
	if (a->speed_mbps != b->speed_mbps)
		return a->speed_mbps > b->speed_mbps ? 1 : -1;
	if (distance(inventory, a) != distance(inventory, b))
		return distance(inventory, a) < distance(inventory, b) ? 1 : -1;
	by_name = compare_equals(a, b, &why);
	if (!by_name)
		by_name = strverscmp(b->iface, a->iface);
	if (by_name)
		return by_name;
	if (a->family != b->family) /* every library understands IPv4 */
		return a->family == AF_INET ? 1 : -1;
	return memcmp(b->bytes, a->bytes, sizeof a->bytes);
}

/* ---- candidates ---- */

/* What the choice depends on: the nodes, and the command line's network options, parsed. */
struct search {
	const struct inventory *inventories; /* [count] */
	size_t count;
	const struct plan_reach *reach;
	const struct plan_request *request;
	bool has_master_addr;
	struct inventory_address subnet, master_addr;
	bool simulated; /* not an option of the user: request->single_host */
};

static int parse_request(struct search *search, struct error *err)
{
	const struct plan_request *request = search->request;

	search->has_master_addr = request->master_addr != NULL;
	if (request->subnet && parse_subnet(request->subnet, &search->subnet) < 0)
		return error_set(err, ERR_USAGE,
				 "--subnet is '%.80s', expected a CIDR such as 10.1.0.0/16",
				 request->subnet);
	if (request->master_addr && parse_address(request->master_addr, &search->master_addr) < 0)
		return error_set(err, ERR_USAGE,
				 "--master-addr is '%.80s', expected a numeric address such as "
				 "10.1.0.7 (not a name, which nodes may resolve differently)",
				 request->master_addr);
	return 0;
}

int plan_network_check(const struct plan_request *request, struct error *err)
{
	struct search search = {.request = request};

	return parse_request(&search, err);
}

static bool is_requested(const struct search *search)
{
	return search->request->iface || search->request->subnet || search->has_master_addr;
}

/* Simulated nodes share all addresses. */
static void request_loopback(struct search *search)
{
	search->simulated =
		search->request->single_host && search->count > 1 && !is_requested(search);
	if (search->simulated)
		search->has_master_addr = parse_address("127.0.0.1", &search->master_addr) == 0;
}

/* The first other node that owns the same address, or -1. */
static int other_owner(const struct search *search, const struct inventory_address *address)
{
	for (size_t n = 1; n < search->count; n++)
		for (size_t a = 0; a < search->inventories[n].address_count; a++)
			if (inventory_address_equal(&search->inventories[n].addresses[a], address))
				return (int)n;
	return -1;
}

static const char *first_node_name(const struct search *search)
{
	return search->inventories[0].node ? search->inventories[0].node : "the first node";
}

static const char *node_name(const struct search *search, size_t node)
{
	return search->inventories[node].node ? search->inventories[node].node : "another node";
}

/* Append why other nodes cannot reach the address: "; n2's hsn0 is down", "; n2 has no address in
 * 10.9.0.0/24". The inventories do not show what lies between the nodes. */
static void add_unreachable(const struct search *search, const struct inventory_address *address,
			    int stalled, char *text, size_t size)
{
	char range[80];
	size_t lacking = 0;

	for (size_t n = 1; n < search->count; n++) {
		const struct inventory *node = &search->inventories[n];
		const struct inventory_address *there = NULL;

		for (size_t a = 0; a < node->address_count && !(there && there->up); a++)
			if (inventory_address_in_subnet(&node->addresses[a], address))
				there = &node->addresses[a];
		if ((there && there->up) || lacking++)
			continue;
		format_subnet(address, range, sizeof range);
		if (there)
			text_append(text, size, "; %s's %s is down", node_name(search, n),
				    there->iface);
		else
			text_append(text, size, "; %s has no address in %s", node_name(search, n),
				    range);
	}
	if (lacking > 1)
		text_append(text, size, "; %zu more node%s cannot use it either", lacking - 1,
			    lacking == 2 ? "" : "s");
	else if (!lacking && stalled >= 0 && (size_t)stalled < search->count)
		text_append(text, size,
			    "; %s connects to it, but no data passes (compare the MTUs)",
			    node_name(search, (size_t)stalled));
	else if (!lacking && search->count == 2)
		text_append(text, size, "; %s cannot", node_name(search, 1));
	else if (!lacking)
		text_append(text, size, "; berth check lists the others");
}

static void describe_duplicate(const struct search *search, size_t low, size_t high,
			       const struct inventory_address *address, char *text, size_t size)
{
	char host[INET6_ADDRSTRLEN];

	inventory_address_format(address, 0, host, sizeof host);
	snprintf(text, size, "%s and %s both have the address %s", node_name(search, low),
		 high == low ? "another node" : node_name(search, high), host);
}

struct address_owner {
	unsigned char bytes[16];
	size_t node;
};

static int compare_owners(const void *a, const void *b)
{
	return memcmp(((const struct address_owner *)a)->bytes,
		      ((const struct address_owner *)b)->bytes, 16);
}

/* Find two nodes with one address in this address's subnet: connections may reach either. text
 * becomes "n2 and n3 both have the address 10.9.0.13", or "". */
static void find_duplicate(const struct search *search, const struct inventory_address *address,
			   char *text, size_t size)
{
	struct address_owner *all = calloc(search->count, sizeof *all);
	size_t filled = 0;

	for (size_t n = 0; all && n < search->count; n++)
		for (size_t a = 0; a < search->inventories[n].address_count; a++) {
			const struct inventory_address *at = &search->inventories[n].addresses[a];

			if (!at->up || !inventory_address_in_subnet(at, address))
				continue;
			memcpy(all[filled].bytes, at->bytes, sizeof all[filled].bytes);
			all[filled++].node = n;
			break;
		}
	if (filled)
		qsort(all, filled, sizeof *all, compare_owners);
	for (size_t i = 1; i < filled && !*text; i++) {
		struct inventory_address same = *address;

		if (compare_owners(&all[i - 1], &all[i]))
			continue;
		size_t low = all[i - 1].node < all[i].node ? i - 1 : i;

		memcpy(same.bytes, all[i].bytes, sizeof same.bytes);
		describe_duplicate(search, all[low].node, all[2 * i - 1 - low].node, &same, text,
				   size);
	}
	free(all);
}

/* Why this address of the first node is unusable; "" if it is usable. A request overrides only
 * reasons that depend on the interface's type: agents on one machine may use loopback. */
static void reject(const struct search *search, size_t index, char *text, size_t size)
{
	const struct inventory_address *address = &search->inventories[0].addresses[index];
	int shared = search->reach && index < search->reach->address_count
			     ? search->reach->shared[index]
			     : -1;

	*text = '\0';
	if (search->request->iface && strcmp(search->request->iface, address->iface))
		snprintf(text, size, "excluded by --iface %s", search->request->iface);
	else if (search->request->subnet && !inventory_address_in_subnet(address, &search->subnet))
		snprintf(text, size, "outside --subnet");
	else if (search->has_master_addr &&
		 !inventory_address_in_subnet(address, &search->master_addr))
		snprintf(text, size, "differs from --master-addr");
	else if (!address->up)
		snprintf(text, size, "down");
	if (*text || search->count == 1)
		return;
	if (!is_requested(search)) {
		if (address->type == IFACE_LOOPBACK)
			snprintf(text, size, "loopback");
		else if (address->type == IFACE_VIRTUAL)
			snprintf(text, size, "interface of a container, VM or tunnel");
		if (shared < 0 && !*text && !address->link_local)
			shared = other_owner(search, address);
		if (!*text && shared >= 0)
			describe_duplicate(search, 0,
					   (size_t)shared < search->count ? (size_t)shared : 0,
					   address, text, size);
	}
	if (!*text && address->link_local)
		snprintf(text, size, "link-local");
	/* Simulated nodes run on one machine and share all addresses. */
	if (!*text && (!is_requested(search) || other_owner(search, address) < 0))
		find_duplicate(search, address, text, size);
	/* A simulated node that was too busy to try its own machine's loopback reaches it
	 * nevertheless. */
	if (*text || !search->reach || search->simulated || index >= search->reach->address_count ||
	    search->reach->reached[index] >= (int)search->count)
		return;
	snprintf(text, size, "only %d of %zu nodes can reach it", search->reach->reached[index],
		 search->count);
	add_unreachable(search, address,
			search->reach->stalled ? search->reach->stalled[index] : -1, text, size);
}

/* Is the best usable address slower than this rejected one: in its NIC's class, or in speed within
 * the class? */
static bool is_slower_than(const struct inventory *inventory,
			   const struct inventory_address *rejected,
			   const struct inventory_address *best)
{
	if (rejected->type != IFACE_PHYSICAL || rejected->link_local)
		return false;
	return plan_address_priority(inventory, rejected) >
		       plan_address_priority(inventory, best) ||
	       (plan_address_priority(inventory, rejected) ==
			plan_address_priority(inventory, best) &&
		best->speed_mbps > 0 && rejected->speed_mbps > best->speed_mbps);
}

/* The user did not request the slower network, so explain why berth uses it. */
static int slower_network_warning(const struct search *search, const struct inventory_address *best,
				  struct plan_network *out, struct error *err)
{
	const struct inventory *first_node = &search->inventories[0];
	char host[INET6_ADDRSTRLEN], why[256];

	for (size_t i = 0;
	     i < first_node->address_count && search->count > 1 && !is_requested(search); i++) {
		const struct inventory_address *address = &first_node->addresses[i];

		reject(search, i, why, sizeof why);
		if (!*why || !is_slower_than(first_node, address, best))
			continue;
		inventory_address_format(address, 0, host, sizeof host);
		out->warning = text_format(
			"rendezvous and traffic between nodes use %s on %s; the faster %s "
			"(%s) cannot be used: %s",
			out->address, best->iface, address->iface, host, why);
		return out->warning ? 0 : error_memory(err, "the rendezvous address");
	}
	return 0;
}

/* Add to "eth0 10.0.0.1 (loopback); ...". */
static void add_rejected(const struct inventory_address *address, const char *why, char *text,
			 size_t size)
{
	char host[INET6_ADDRSTRLEN];

	inventory_address_format(address, 0, host, sizeof host);
	text_append(text, size, "%s%s %s (%s)", *text ? "; " : "", address->iface, host, why);
}

/* ---- the choice ---- */

static int set_reason(struct plan_network *network, struct error *err, const char *first,
		      const char *more)
{
	network->why = text_format("%s%s", first, more);
	return network->why ? 0 : error_memory(err, "the rendezvous address");
}

/* One node and no request: the ranks use loopback. */
static int on_loopback(const struct inventory *inventory, struct plan_network *out,
		       struct error *err)
{
	const struct inventory_address *best = NULL;

	out->single_node = true;
	snprintf(out->address, sizeof out->address, "127.0.0.1");
	snprintf(out->iface, sizeof out->iface, "lo");
	for (size_t i = 0; i < inventory->address_count; i++) {
		const struct inventory_address *address = &inventory->addresses[i];

		if (address->type == IFACE_LOOPBACK && address->up &&
		    (!best || (best->family == AF_INET6 && address->family == AF_INET)))
			best = address;
	}
	if (best) {
		memcpy(out->iface, best->iface, sizeof out->iface);
		if (best->family == AF_INET6)
			snprintf(out->address, sizeof out->address, "::1");
	}
	return set_reason(out, err, "one node: its ranks use loopback", "");
}

/* Is a --master-addr on none of the first node's interfaces? The ranks would wait for each other at
 * an address that no node has. If an inventory lists no addresses, the answer is unknown. */
static int refuse_foreign_address(const struct search *search, struct plan_network *out,
				  struct error *err)
{
	const struct inventory *first_node = &search->inventories[0];
	const char *given = search->simulated ? "127.0.0.1" : search->request->master_addr;
	char own[500] = "", host[INET6_ADDRSTRLEN], other[100] = "";

	if (!first_node->address_count) {
		out->single_node = search->count == 1;
		snprintf(out->address, sizeof out->address, "%s", given);
		return set_reason(out, err, "used as given: the first node's addresses are unknown",
				  "");
	}
	for (size_t a = 0; a < first_node->address_count; a++) {
		const struct inventory_address *address = &first_node->addresses[a];

		if (!address->up || address->link_local ||
		    (search->count > 1 && address->type == IFACE_LOOPBACK))
			continue;
		inventory_address_format(address, 0, host, sizeof host);
		text_append(own, sizeof own, "%s%s on %s", *own ? ", " : "", host, address->iface);
	}
	for (size_t n = 1; n < search->count && !*other; n++)
		for (size_t a = 0; a < search->inventories[n].address_count; a++)
			if (inventory_address_in_subnet(&search->inventories[n].addresses[a],
							&search->master_addr))
				snprintf(other, sizeof other, " (it belongs to %.64s)",
					 node_name(search, n));
	return error_set(err, ERR_USAGE,
			 "--master-addr %s: no interface of %s has that address%s, but rank 0 "
			 "listens on %s, which has %s. Give an address of that node, or omit "
			 "--master-addr to use its best address that all nodes can reach.",
			 given, first_node_name(search), other, first_node_name(search),
			 *own ? own : "none that is up");
}

/* Does one of the first count addresses belong to this interface? */
static bool has_iface(const struct inventory *inventory, const char *iface, size_t count)
{
	for (size_t a = 0; a < count; a++)
		if (!strcmp(inventory->addresses[a].iface, iface))
			return true;
	return false;
}

static int no_such_iface(const struct search *search, struct error *err)
{
	const struct inventory *first_node = &search->inventories[0];
	char names[300] = "";

	for (size_t a = 0; a < first_node->address_count; a++)
		if (!has_iface(first_node, first_node->addresses[a].iface, a))
			text_append(names, sizeof names, "%s%s", *names ? ", " : "",
				    first_node->addresses[a].iface);
	return error_set(err, ERR_USAGE,
			 "--iface %s: %s has no such interface with an address; it has %s",
			 search->request->iface, first_node_name(search), names);
}

static int no_usable_address(const struct search *search, const char *rejected, struct error *err)
{
	const struct inventory *first_node = &search->inventories[0];
	const char *loopback = NULL;
	bool others = false;
	char hint[80] = "";

	if (search->request->iface && first_node->address_count &&
	    !has_iface(first_node, search->request->iface, first_node->address_count))
		return no_such_iface(search, err);
	for (size_t a = 0; a < first_node->address_count; a++)
		if (first_node->addresses[a].up && first_node->addresses[a].type == IFACE_LOOPBACK)
			loopback = first_node->addresses[a].iface;
		else
			others |= first_node->addresses[a].up;
	if (loopback && !others && search->count > 1)
		snprintf(hint, sizeof hint, " (--iface %s if all nodes are this machine)",
			 loopback);
	return error_set(err, ERR_NETWORK,
			 "no address of %s can serve as the rendezvous address for %zu node%s: %s. "
			 "Choose one with --iface%s, --subnet or --master-addr.",
			 first_node_name(search), search->count, search->count == 1 ? "" : "s",
			 *rejected ? rejected : "its inventory lists none", hint);
}

/* What a usable address is, or why best was preferred. */
static const char *why_not(const struct inventory *inventory,
			   const struct inventory_address *address,
			   const struct inventory_address *best)
{
	const char *why;

	if (!plan_address_priority(inventory, address))
		return "management only";
	if (address->kind == best->kind && address->speed_mbps == best->speed_mbps &&
	    distance(inventory, address) == distance(inventory, best) &&
	    compare_equals(best, address, &why) > 0)
		return why;
	return nic_kind_name(address->kind);
}

/* Append the other addresses: "; alternatives: eth0 10.1.0.11 (management only); rejected: docker0
 * ...". Loopback and link-local addresses are left out: they are no alternatives. */
static void add_others(const struct search *search, const struct inventory_address *best,
		       char *text, size_t size)
{
	char rather[400] = "", rejected[700] = "", why[256];

	for (size_t i = 0; i < search->inventories[0].address_count && !is_requested(search); i++) {
		const struct inventory_address *address = &search->inventories[0].addresses[i];

		if (address == best || address->link_local || address->type == IFACE_LOOPBACK)
			continue;
		reject(search, i, why, sizeof why);
		if (*why)
			add_rejected(address, why, rejected, sizeof rejected);
		else
			add_rejected(address, why_not(&search->inventories[0], address, best),
				     rather, sizeof rather);
	}
	snprintf(text, size, "%s%s%s%s", *rather ? "; alternatives: " : "", rather,
		 *rejected ? "; rejected: " : "", rejected);
}

static int describe_network(const struct search *search, const struct inventory_address *best,
			    struct plan_network *out, struct error *err)
{
	char first[256], speed[48] = "speed unknown";
	char others[1200];
	const struct plan_request *request = search->request;
	const char *by = request->master_addr ? "--master-addr"
			 : request->iface     ? "--iface"
			 : request->subnet    ? "--subnet"
					      : NULL;

	if (best->speed_mbps >= 0)
		snprintf(speed, sizeof speed, best->speed_mbps % 1000 ? "%lld Mb/s" : "%lld Gb/s",
			 (long long)(best->speed_mbps % 1000 ? best->speed_mbps
							     : best->speed_mbps / 1000));
	if (search->simulated)
		snprintf(first, sizeof first, "%s on %s: all nodes are this machine", out->address,
			 best->iface);
	else if (by)
		snprintf(first, sizeof first, "%s on %s: requested with %s", out->address,
			 best->iface, by);
	else
		snprintf(first, sizeof first,
			 search->reach ? "%s on %s (%s, %s): the best address of %s that all %zu "
					 "nodes can reach"
				       : "%s on %s (%s, %s): the best address of %s; before ranks "
					 "start, berth tests whether all %zu nodes can reach it",
			 out->address, best->iface, nic_kind_name(best->kind), speed,
			 first_node_name(search), search->count);
	add_others(search, best, others, sizeof others);
	return set_reason(out, err, first, others);
}

int plan_network(const struct inventory *inventories, size_t count,
		 const struct plan_request *request, const struct plan_reach *reach,
		 struct plan_network *out, struct error *err)
{
	struct plan_network network = {.kind = NIC_ETHERNET};
	const struct inventory_address *best = NULL;
	struct search search = {
		.inventories = inventories, .count = count, .reach = reach, .request = request};
	char rejected[700] = "";
	bool master_addr_known = false;
	int rc = parse_request(&search, err);

	if (!rc)
		request_loopback(&search);
	if (!rc && count == 1 && !is_requested(&search))
		rc = on_loopback(&inventories[0], &network, err);
	if (rc || network.why)
		goto out;
	for (size_t i = 0; i < inventories[0].address_count; i++) {
		const struct inventory_address *address = &inventories[0].addresses[i];
		char why[256];

		master_addr_known |= search.has_master_addr &&
				     inventory_address_in_subnet(address, &search.master_addr);
		reject(&search, i, why, sizeof why);
		if (*why)
			add_rejected(address, why, rejected, sizeof rejected);
		else if (!best || compare(&inventories[0], address, best) > 0)
			best = address;
	}
	if (!best && search.has_master_addr && !master_addr_known) {
		rc = refuse_foreign_address(&search, &network, err);
		goto out;
	}
	if (!best) {
		rc = no_usable_address(&search, rejected, err);
		goto out;
	}
	network.single_node = count == 1;
	network.kind = best->kind;
	memcpy(network.iface, best->iface, sizeof network.iface);
	inventory_address_format(best, 0, network.address, sizeof network.address);
	if (count > 1)
		format_subnet(best, network.subnet, sizeof network.subnet);
	rc = describe_network(&search, best, &network, err);
	if (!rc)
		rc = slower_network_warning(&search, best, &network, err);
out:
	if (rc) {
		plan_network_free(&network);
		return rc;
	}
	*out = network;
	return 0;
}

void plan_network_free(struct plan_network *network)
{
	if (!network)
		return;
	free(network->why);
	free(network->warning);
	memset(network, 0, sizeof *network);
}

/* ---- each node's interface ---- */

bool network_iface(const struct inventory *inventory, const struct plan_network *network,
		   int *index)
{
	struct inventory_address subnet;
	int inside = -1, kin = -1;
	bool parsed = parse_subnet(network->subnet, &subnet) == 0;

	for (size_t i = 0; parsed && i < inventory->address_count; i++) {
		const struct inventory_address *address = &inventory->addresses[i];

		if (!address->up)
			continue;
		if (inventory_address_in_subnet(address, &subnet) &&
		    (inside < 0 || compare(inventory, address, &inventory->addresses[inside]) > 0))
			inside = (int)i;
		if (address->type != IFACE_PHYSICAL || address->link_local ||
		    address->family != subnet.family || address->kind != network->kind)
			continue;
		if (kin < 0 || compare(inventory, address, &inventory->addresses[kin]) > 0)
			kin = (int)i;
	}
	*index = inside >= 0 ? inside : kin;
	return inside >= 0;
}

void plan_node_address(const struct inventory *inventory, const struct plan_network *network,
		       char *text, size_t size)
{
	int index = -1;

	snprintf(text, size, "%s", network->address);
	if (!network->single_node)
		network_iface(inventory, network, &index);
	if (index >= 0)
		inventory_address_format(&inventory->addresses[index], 0, text, size);
}
