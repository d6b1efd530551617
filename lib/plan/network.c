/* SPDX-License-Identifier: BSD-3-Clause */
/* The address at which all nodes reach the head, and each node's interface in its subnet. */
#include "plan/plan.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "plan/plan_internal.h"

struct subnet {
	int family, prefix;
	unsigned char bytes[16];
};

/* ---- addresses and subnets ---- */

static size_t width(int family)
{
	return family == AF_INET6 ? 16 : 4;
}

void network_format(const struct machine_address *address, char *text, size_t size)
{
	if (!inet_ntop(address->family, address->bytes, text, (socklen_t)size))
		snprintf(text, size, "?");
}

static bool in_subnet(const struct subnet *subnet, const struct machine_address *address)
{
	int bytes = subnet->prefix / 8, bits = subnet->prefix % 8;

	if (subnet->family != address->family)
		return false;
	if (memcmp(subnet->bytes, address->bytes, (size_t)bytes))
		return false;
	return !bits || !((subnet->bytes[bytes] ^ address->bytes[bytes]) >> (8 - bits));
}

static int parse_address(const char *text, struct subnet *out)
{
	struct subnet subnet = {.family = AF_INET, .prefix = 32};

	if (inet_pton(AF_INET, text, subnet.bytes) != 1) {
		subnet.family = AF_INET6;
		subnet.prefix = 128;
		if (inet_pton(AF_INET6, text, subnet.bytes) != 1)
			return -1;
	}
	*out = subnet;
	return 0;
}

/* "10.0.0.0/8", "fd00::/64", or one address. */
static int parse_subnet(const char *text, struct subnet *out)
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

static struct subnet subnet_of(const struct machine_address *address)
{
	struct subnet subnet = {.family = address->family, .prefix = address->prefix};

	memcpy(subnet.bytes, address->bytes, sizeof subnet.bytes);
	return subnet;
}

/* The CIDR text of the subnet that an address lies in. */
static void format_subnet(const struct machine_address *address, char *text, size_t size)
{
	struct machine_address base = *address;
	char host[INET6_ADDRSTRLEN];

	for (int bit = address->prefix; bit < (int)width(address->family) * 8; bit++)
		base.bytes[bit / 8] &= (unsigned char)~(0x80 >> (bit % 8));
	network_format(&base, host, sizeof host);
	snprintf(text, size, "%s/%d", host, address->prefix);
}

static bool same_address(const struct machine_address *a, const struct machine_address *b)
{
	return a->family == b->family && !memcmp(a->bytes, b->bytes, width(a->family));
}

/* ---- the better of two ---- */

int plan_address_worth(const struct machine *card, const struct machine_address *address)
{
	if (address->nic >= 0 && (size_t)address->nic < card->nic_count &&
	    card->nics[address->nic].management)
		return 0;
	return address->kind != NIC_ETHERNET ? 2 : 1;
}

/* How far the address's NIC is from the node's GPUs, all together. */
static long distance(const struct machine *card, const struct machine_address *address)
{
	long sum = 0;

	if (!card->path || address->nic < 0 || (size_t)address->nic >= card->nic_count)
		return (long)card->gpu_count * PATH_UNKNOWN;
	for (size_t g = 0; g < card->gpu_count; g++)
		sum += card->path[g * card->nic_count + (size_t)address->nic];
	return sum;
}

/* > 0: a is the better one. */
static int compare(const struct machine *card, const struct machine_address *a,
		   const struct machine_address *b)
{
	int by_name;

	if (plan_address_worth(card, a) != plan_address_worth(card, b))
		return plan_address_worth(card, a) - plan_address_worth(card, b);
	if (a->speed_mbps != b->speed_mbps)
		return a->speed_mbps > b->speed_mbps ? 1 : -1;
	if (distance(card, a) != distance(card, b))
		return distance(card, a) < distance(card, b) ? 1 : -1;
	by_name = strverscmp(b->iface, a->iface);
	if (by_name)
		return by_name;
	if (a->family != b->family) /* IPv4 is what every library understands */
		return a->family == AF_INET ? 1 : -1;
	return memcmp(b->bytes, a->bytes, width(a->family));
}

/* ---- candidates ---- */

/* The wishes of the command line, parsed. */
struct wish {
	const char *iface;
	bool has_subnet, has_head;
	struct subnet subnet, head;
	bool pretended; /* nobody's wish: request->one_machine */
};

static int parse_wish(const struct plan_request *request, struct wish *wish, struct error *err)
{
	wish->iface = request->iface;
	wish->has_subnet = request->subnet != NULL;
	wish->has_head = request->head != NULL;
	if (request->subnet && parse_subnet(request->subnet, &wish->subnet) < 0)
		return error_set(err, ERR_USAGE,
				 "--subnet is '%.80s', expected a CIDR such as 10.1.0.0/16",
				 request->subnet);
	if (request->head && parse_address(request->head, &wish->head) < 0)
		return error_set(err, ERR_USAGE,
				 "--master-addr is '%.80s', expected a numeric address such as 10.1.0.7 "
				 "(names are not resolved: nodes may resolve them differently)",
				 request->head);
	return 0;
}

int plan_network_check(const struct plan_request *request, struct error *err)
{
	struct wish wish = {0};

	return parse_wish(request, &wish, err);
}

static bool wished(const struct wish *wish)
{
	return wish->iface || wish->has_subnet || wish->has_head;
}

/* Pretended nodes share all addresses. */
static void wish_loopback(const struct plan_request *request, size_t count, struct wish *wish)
{
	wish->pretended = request->one_machine && count > 1 && !wished(wish);
	if (wish->pretended)
		wish->has_head = parse_address("127.0.0.1", &wish->head) == 0;
}

/* The first other node that owns the address itself, or -1. */
static int owner_elsewhere(const struct machine *cards, size_t count,
			   const struct machine_address *address)
{
	for (size_t n = 1; n < count; n++)
		for (size_t a = 0; a < cards[n].address_count; a++)
			if (same_address(&cards[n].addresses[a], address))
				return (int)n;
	return -1;
}

static const char *name_of(const struct machine *cards, size_t node)
{
	return cards[node].node ? cards[node].node : "another node";
}

/* Which nodes can have no part in the address's subnet: "; n2's hsn0 is down", "; n2 has no address
 * in 10.9.0.0/24", added to text. What lies between the nodes nobody's card tells. */
static void add_lacking(const struct machine *cards, size_t count,
			const struct machine_address *address, char *text, size_t size)
{
	struct subnet subnet = subnet_of(address);
	char range[80];
	size_t lacking = 0, used;

	for (size_t n = 1; n < count; n++) {
		const struct machine_address *there = NULL;

		for (size_t a = 0; a < cards[n].address_count && !(there && there->up); a++)
			if (in_subnet(&subnet, &cards[n].addresses[a]))
				there = &cards[n].addresses[a];
		if ((there && there->up) || lacking++)
			continue;
		format_subnet(address, range, sizeof range);
		used = strlen(text);
		if (there)
			snprintf(text + used, size - used, "; %s's %s is down", name_of(cards, n),
				 there->iface);
		else
			snprintf(text + used, size - used, "; %s has no address in %s",
				 name_of(cards, n), range);
	}
	used = strlen(text);
	if (lacking > 1)
		snprintf(text + used, size - used, ", and %zu more nodes alike", lacking - 1);
	else if (!lacking && count == 2)
		snprintf(text + used, size - used, ", not by %s", name_of(cards, 1));
	else if (!lacking)
		snprintf(text + used, size - used, "; berth check says from which not");
}

static void both_have(const struct machine *cards, size_t low, size_t high,
		      const struct machine_address *address, char *text, size_t size)
{
	char host[INET6_ADDRSTRLEN];

	network_format(address, host, sizeof host);
	snprintf(text, size, "%s and %s both have %s", name_of(cards, low),
		 high == low ? "another node" : name_of(cards, high), host);
}

struct owned {
	unsigned char bytes[16];
	size_t node;
};

static int compare_owned(const void *a, const void *b)
{
	return memcmp(((const struct owned *)a)->bytes, ((const struct owned *)b)->bytes, 16);
}

/* Two nodes with one address in this address's subnet: connections reach either of them. text: ""
 * or "n2 and n3 both have 10.9.0.13". */
static void find_twice(const struct machine *cards, size_t count,
		       const struct machine_address *address, char *text, size_t size)
{
	struct subnet subnet = subnet_of(address);
	struct owned *all = calloc(count, sizeof *all);
	size_t filled = 0;

	for (size_t n = 0; all && n < count; n++)
		for (size_t a = 0; a < cards[n].address_count; a++) {
			const struct machine_address *at = &cards[n].addresses[a];

			if (!at->up || !in_subnet(&subnet, at))
				continue;
			memcpy(all[filled].bytes, at->bytes, sizeof all[filled].bytes);
			all[filled++].node = n;
			break;
		}
	if (filled)
		qsort(all, filled, sizeof *all, compare_owned);
	for (size_t i = 1; i < filled && !*text; i++) {
		struct machine_address same = *address;

		if (compare_owned(&all[i - 1], &all[i]))
			continue;
		size_t low = all[i - 1].node < all[i].node ? i - 1 : i;

		memcpy(same.bytes, all[i].bytes, sizeof same.bytes);
		both_have(cards, all[low].node, all[2 * i - 1 - low].node, &same, text, size);
	}
	free(all);
}

/* What bars this address of the head's; "" when nothing does. A wish lifts what depends on the
 * sort of the interface only: loopback serves agents that share one machine. */
static void refuse(const struct machine *cards, size_t count, const struct wish *wish,
		   const struct plan_reach *reach, size_t index, char *text, size_t size)
{
	const struct machine_address *address = &cards[0].addresses[index];
	int shared = reach && index < reach->address_count ? reach->shared[index] : -1;

	*text = '\0';
	if (wish->iface && strcmp(wish->iface, address->iface))
		snprintf(text, size, "not --iface %s", wish->iface);
	else if (wish->has_subnet && !in_subnet(&wish->subnet, address))
		snprintf(text, size, "not in --subnet");
	else if (wish->has_head && !in_subnet(&wish->head, address))
		snprintf(text, size, "not --master-addr");
	else if (!address->up)
		snprintf(text, size, "down");
	if (*text || count == 1)
		return;
	if (!wished(wish)) {
		if (address->sort == IFACE_LOOPBACK)
			snprintf(text, size, "loopback");
		else if (address->sort == IFACE_VIRTUAL)
			snprintf(text, size, "a container's, VM's or tunnel's interface");
		if (shared < 0 && !*text && !address->link_local)
			shared = owner_elsewhere(cards, count, address);
		if (!*text && shared >= 0)
			both_have(cards, 0, (size_t)shared < count ? (size_t)shared : 0, address,
				  text, size);
	}
	if (!*text && address->link_local)
		snprintf(text, size, "link-local");
	/* Pretended nodes, which are one machine, have all addresses in common. */
	if (!*text && (!wished(wish) || owner_elsewhere(cards, count, address) < 0))
		find_twice(cards, count, address, text, size);
	/* A pretended node that was too busy to try its own machine's loopback reaches it all the same. */
	if (*text || !reach || wish->pretended || index >= reach->address_count ||
	    reach->reached[index] >= (int)count)
		return;
	snprintf(text, size, "reached by %d of %zu nodes", reach->reached[index], count);
	add_lacking(cards, count, address, text, size);
}

/* Would the ranks have met over more than a name's difference on this address that was refused? */
static bool regretted(const struct machine *card, const struct machine_address *refused,
		      const struct machine_address *best)
{
	if (refused->sort != IFACE_PHYSICAL || refused->link_local)
		return false;
	return plan_address_worth(card, refused) > plan_address_worth(card, best) ||
	       (plan_address_worth(card, refused) == plan_address_worth(card, best) && best->speed_mbps > 0 &&
		refused->speed_mbps > best->speed_mbps);
}

/* Nobody asked for the slower network: say why it is taken. */
static int regret(const struct machine *cards, size_t count, const struct wish *wish,
		  const struct plan_reach *reach, const struct machine_address *best,
		  struct plan_network *out, struct error *err)
{
	const struct machine *head = &cards[0];
	char host[INET6_ADDRSTRLEN], why[256];

	for (size_t i = 0; i < head->address_count && count > 1 && !wished(wish); i++) {
		const struct machine_address *address = &head->addresses[i];

		refuse(cards, count, wish, reach, i, why, sizeof why);
		if (!*why || !regretted(head, address, best))
			continue;
		network_format(address, host, sizeof host);
		if (asprintf(&out->warning,
			     "the ranks meet at %s on %s, and what nodes send each other goes over "
			     "it; %s %s would be faster, but: %s",
			     out->address, best->iface, address->iface, host, why) >= 0)
			return 0;
		out->warning = NULL;
		return error_memory(err, "the head's address");
	}
	return 0;
}

static void append(char *text, size_t size, const char *more)
{
	size_t used = strlen(text);

	if (used + 1 < size)
		snprintf(text + used, size - used, "%s", more);
}

/* Add to "eth0 10.0.0.1 (loopback); ...". */
static void add_refused(const struct machine_address *address, const char *why, char *text,
			size_t size)
{
	char host[INET6_ADDRSTRLEN], item[400];

	network_format(address, host, sizeof host);
	snprintf(item, sizeof item, "%s%s %s (%s)", *text ? "; " : "", address->iface, host, why);
	append(text, size, item);
}

/* ---- the choice ---- */

static int set_why(struct plan_network *network, struct error *err, const char *first,
		   const char *more)
{
	size_t size = strlen(first) + strlen(more) + 1;

	network->why = malloc(size);
	if (!network->why)
		return error_memory(err, "the head's address");
	snprintf(network->why, size, "%s%s", first, more);
	return 0;
}

/* One node without a wish: the ranks meet on loopback. */
static int on_loopback(const struct machine *card, struct plan_network *out, struct error *err)
{
	const struct machine_address *best = NULL;

	out->single_node = true;
	snprintf(out->address, sizeof out->address, "127.0.0.1");
	snprintf(out->iface, sizeof out->iface, "lo");
	for (size_t i = 0; i < card->address_count; i++) {
		const struct machine_address *address = &card->addresses[i];

		if (address->sort == IFACE_LOOPBACK && address->up &&
		    (!best || (best->family == AF_INET6 && address->family == AF_INET)))
			best = address;
	}
	if (best) {
		memcpy(out->iface, best->iface, sizeof out->iface);
		if (best->family == AF_INET6)
			snprintf(out->address, sizeof out->address, "::1");
	}
	return set_why(out, err, "one node: its ranks meet on loopback", "");
}

/* An address that the head has on none of its interfaces, --master-addr's: the ranks would wait for each other at
 * nobody's. Of a card that lists no address nothing is known. */
static int foreign_head(const struct machine *cards, size_t count, const struct plan_request *request,
			const struct wish *wish, struct plan_network *out, struct error *err)
{
	const char *head = cards[0].node ? cards[0].node : "the head";
	char own[500] = "", host[INET6_ADDRSTRLEN], item[100], other[100] = "";

	if (!cards[0].address_count) {
		out->single_node = count == 1;
		snprintf(out->address, sizeof out->address, "%s",
			 wish->pretended ? "127.0.0.1" : request->head);
		return set_why(out, err, "taken as given: the head's addresses are not known", "");
	}
	for (size_t a = 0; a < cards[0].address_count; a++) {
		const struct machine_address *address = &cards[0].addresses[a];

		if (!address->up || address->link_local ||
		    (count > 1 && address->sort == IFACE_LOOPBACK))
			continue;
		network_format(address, host, sizeof host);
		snprintf(item, sizeof item, "%s%s on %s", *own ? ", " : "", host, address->iface);
		append(own, sizeof own, item);
	}
	for (size_t n = 1; n < count && !*other; n++)
		for (size_t a = 0; a < cards[n].address_count; a++)
			if (in_subnet(&wish->head, &cards[n].addresses[a]))
				snprintf(other, sizeof other, " (it is %.64s's)", name_of(cards, n));
	return error_set(err, ERR_USAGE,
			 "--master-addr %s: no interface of %s has that address%s, and the ranks meet on "
			 "%s; it has %s: give one of them, or leave --master-addr away and the best that "
			 "all nodes reach is taken",
			 wish->pretended ? "127.0.0.1" : request->head, head, other, head,
			 *own ? own : "none that is up");
}

static int none_fits(const struct machine *cards, size_t count, const char *refused,
		     struct error *err)
{
	const char *loopback = NULL;
	char hint[80] = "";

	for (size_t a = 0; a < cards[0].address_count; a++)
		if (cards[0].addresses[a].up && cards[0].addresses[a].sort == IFACE_LOOPBACK)
			loopback = cards[0].addresses[a].iface;
	for (size_t a = 0; loopback && a < cards[0].address_count; a++)
		if (cards[0].addresses[a].up && cards[0].addresses[a].sort != IFACE_LOOPBACK)
			loopback = NULL;
	if (loopback && count > 1)
		snprintf(hint, sizeof hint, " (--iface %s where all are one machine)", loopback);
	return error_set(err, ERR_NETWORK,
			 "no address of %s can serve as the head's for %zu node%s: %s; name one "
			 "with --iface%s, --subnet or --master-addr",
			 cards[0].node ? cards[0].node : "the head", count, count == 1 ? "" : "s",
			 *refused ? refused : "its card lists none", hint);
}

/* "; rather than eth0 10.1.0.11 (management only); not docker0 ...": what else there was. Loopback and
 * link-local addresses nobody had thought of. */
static void add_others(const struct machine *cards, size_t count, const struct wish *wish,
		       const struct plan_reach *reach, const struct machine_address *best,
		       char *text, size_t size)
{
	char rather[400] = "", refused[700] = "", why[256];

	for (size_t i = 0; i < cards[0].address_count && !wished(wish); i++) {
		const struct machine_address *address = &cards[0].addresses[i];

		if (address == best || address->link_local || address->sort == IFACE_LOOPBACK)
			continue;
		refuse(cards, count, wish, reach, i, why, sizeof why);
		if (*why)
			add_refused(address, why, refused, sizeof refused);
		else
			add_refused(address,
				    plan_address_worth(&cards[0], address) ? nic_kind_name(address->kind)
							      : "management only",
				    rather, sizeof rather);
	}
	snprintf(text, size, "%s%s%s%s", *rather ? "; rather than " : "", rather,
		 *refused ? "; not " : "", refused);
}

static int describe(const struct machine *cards, size_t count, const struct plan_request *request,
		    const struct wish *wish, const struct plan_reach *reach,
		    const struct machine_address *best, struct plan_network *out, struct error *err)
{
	char first[256], speed[48] = "speed unknown";
	char others[1200];
	const char *by = request->head	   ? "--master-addr"
			 : request->iface  ? "--iface"
			 : request->subnet ? "--subnet"
					   : NULL;

	if (best->speed_mbps >= 0)
		snprintf(speed, sizeof speed,
			 best->speed_mbps % 1000 ? "%lld Mb/s" : "%lld Gb/s",
			 (long long)(best->speed_mbps % 1000 ? best->speed_mbps
							     : best->speed_mbps / 1000));
	if (wish->pretended)
		snprintf(first, sizeof first, "%s on %s: all nodes are this machine", out->address,
			 best->iface);
	else if (by)
		snprintf(first, sizeof first, "%s on %s: asked for by %s", out->address,
			 best->iface, by);
	else
		snprintf(first, sizeof first,
			 reach ? "%s on %s (%s, %s): the best address of %s that all %zu nodes reach"
			       : "%s on %s (%s, %s): the best address of %s; whether all %zu nodes reach "
				 "it is tried before ranks start",
			 out->address, best->iface, nic_kind_name(best->kind), speed,
			 cards[0].node ? cards[0].node : "the head", count);
	add_others(cards, count, wish, reach, best, others, sizeof others);
	return set_why(out, err, first, others);
}

int plan_network(const struct machine *cards, size_t count, const struct plan_request *request,
		 const struct plan_reach *reach, struct plan_network *out, struct error *err)
{
	struct plan_network network = {.kind = NIC_ETHERNET};
	const struct machine_address *best = NULL;
	struct wish wish = {0};
	char refused[700] = "";
	bool head_known = false;
	int rc = parse_wish(request, &wish, err);

	if (!rc)
		wish_loopback(request, count, &wish);
	if (!rc && count == 1 && !wished(&wish))
		rc = on_loopback(&cards[0], &network, err);
	if (rc || network.why)
		goto out;
	for (size_t i = 0; i < cards[0].address_count; i++) {
		const struct machine_address *address = &cards[0].addresses[i];
		char why[256];

		head_known |= wish.has_head && in_subnet(&wish.head, address);
		refuse(cards, count, &wish, reach, i, why, sizeof why);
		if (*why)
			add_refused(address, why, refused, sizeof refused);
		else if (!best || compare(&cards[0], address, best) > 0)
			best = address;
	}
	if (!best && wish.has_head && !head_known) {
		rc = foreign_head(cards, count, request, &wish, &network, err);
		goto out;
	}
	if (!best) {
		rc = none_fits(cards, count, refused, err);
		goto out;
	}
	network.single_node = count == 1;
	network.kind = best->kind;
	memcpy(network.iface, best->iface, sizeof network.iface);
	network_format(best, network.address, sizeof network.address);
	if (count > 1)
		format_subnet(best, network.subnet, sizeof network.subnet);
	rc = describe(cards, count, request, &wish, reach, best, &network, err);
	if (!rc)
		rc = regret(cards, count, &wish, reach, best, &network, err);
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

bool network_iface(const struct machine *card, const struct plan_network *network, int *index)
{
	struct subnet subnet;
	int inside = -1, kin = -1;
	bool parsed = parse_subnet(network->subnet, &subnet) == 0;

	for (size_t i = 0; parsed && i < card->address_count; i++) {
		const struct machine_address *address = &card->addresses[i];

		if (!address->up)
			continue;
		if (in_subnet(&subnet, address) &&
		    (inside < 0 || compare(card, address, &card->addresses[inside]) > 0))
			inside = (int)i;
		if (address->sort != IFACE_PHYSICAL || address->link_local ||
		    address->family != subnet.family || address->kind != network->kind)
			continue;
		if (kin < 0 || compare(card, address, &card->addresses[kin]) > 0)
			kin = (int)i;
	}
	*index = inside >= 0 ? inside : kin;
	return inside >= 0;
}
