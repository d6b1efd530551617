/* SPDX-License-Identifier: BSD-3-Clause */
/* Checks that one address serves all nodes for the rendezvous, that each address belongs to one
 * node, and that the best network is the one that would be used. */
#include <string.h>

#include "check/check_internal.h"

/* Two nodes with one address: traffic for one of them reaches the other. */
static bool judge_duplicates(struct check *check, size_t i)
{
	for (size_t a = 0; a < check->inventories[i].address_count; a++)
		for (size_t j = 0; j < check->count; j++)
			for (size_t b = 0; j != i && b < check->inventories[j].address_count; b++) {
				const struct inventory_address
					*mine = &check->inventories[i].addresses[a],
					*its = &check->inventories[j].addresses[b];
				char text[80];

				if (!check_address_usable(check, mine) ||
				    !check_address_usable(check, its) ||
				    !inventory_address_equal(mine, its))
					continue;
				inventory_address_format(mine, 0, text, sizeof text);
				check_add(check, i, "network", CHECK_FAULT,
					  "ask an administrator to give each node its own address",
					  "%s has the address %s, and so has %s (%s)", mine->iface,
					  text, check->nodes[j].name, its->iface);
				return true;
			}
	return false;
}

static bool has_iface(const struct inventory *inventory, const char *name)
{
	for (size_t a = 0; a < inventory->address_count; a++)
		if (!strcmp(inventory->addresses[a].iface, name))
			return true;
	for (size_t n = 0; n < inventory->nic_count; n++)
		if (!strcmp(inventory->nics[n].net, name))
			return true;
	return false;
}

/* Find the best address whose subnet at least half of the nodes have; *owner is its node. */
static const struct inventory_address *best_subnet(const struct check *check, size_t *owner)
{
	const struct inventory_address *best = NULL;

	for (size_t i = 0; i < check->count; i++)
		for (size_t a = 0; a < check->inventories[i].address_count; a++) {
			const struct inventory_address *address =
				&check->inventories[i].addresses[a];
			size_t have = 0;

			if (!check_address_usable(check, address) ||
			    (best && !check_better_address(&check->inventories[i], address,
							   &check->inventories[*owner], best)))
				continue;
			for (size_t j = 0; j < check->count; j++)
				have += check_address_in_subnet(check, j, address, true) != NULL;
			if (2 * have < check->count)
				continue;
			best = address;
			*owner = i;
		}
	return best;
}

/* Report a node that lacks the network most nodes have: the others' ring must go around it. */
static bool judge_missing_address(struct check *check, size_t i,
				  const struct inventory_address *best, const char *owner)
{
	const struct inventory_address *down = check_address_in_subnet(check, i, best, false);
	char text[80];

	if (check_address_in_subnet(check, i, best, true))
		return false;
	inventory_address_format(best, 0, text, sizeof text);
	if (down)
		check_add(check, i, "network", CHECK_FAULT,
			  "bring it up with ip link set, or check its cable; exclude the node "
			  "until then",
			  "%s is down here, so the job would use a slower network", down->iface);
	else
		check_add(check, i, "network",
			  has_iface(&check->inventories[i], best->iface) ? CHECK_FAULT : CHECK_NOTE,
			  "ask an administrator to assign its address; exclude the node until then",
			  "%s in the network of %s on %s (%s/%d), so the job would use a slower "
			  "network",
			  has_iface(&check->inventories[i], best->iface) ? "no address"
									 : "no interface",
			  text, owner, best->iface, best->prefix);
	return true;
}

static bool is_chosen(const struct check *check, size_t owner, const struct inventory_address *best)
{
	int chosen = check_chosen_address(check, owner);

	return chosen >= 0 && check_same_subnet(best, &check->inventories[owner].addresses[chosen]);
}

static void report_choice(struct check *check, size_t i)
{
	int chosen = check_chosen_address(check, i);
	char text[80];

	if (chosen < 0) {
		check_add(check, i, "network", CHECK_FAULT,
			  "use --iface or --subnet to choose a network that this node has",
			  "no interface in the chosen network, %s", check->plan.network.subnet);
		return;
	}
	const struct inventory_address *address = &check->inventories[i].addresses[chosen];

	inventory_address_format(address, 0, text, sizeof text);
	if (address->speed_mbps >= 0)
		check_add(check, i, "network", CHECK_OK, NULL, "%s %s, %s, %lld Mb/s",
			  address->iface, text, nic_kind_name(address->kind),
			  (long long)address->speed_mbps);
	else
		check_add(check, i, "network", CHECK_OK, NULL, "%s %s, %s", address->iface, text,
			  nic_kind_name(address->kind));
}

static void judge(struct check *check)
{
	const struct plan_request *plan_request = &check->request->plan_request;
	const struct inventory_address *best = NULL;
	size_t owner = 0;

	if (check->count > 1 && !plan_request->iface && !plan_request->subnet &&
	    !plan_request->master_addr && !check->simulated)
		best = best_subnet(check, &owner);
	for (size_t i = 0; i < check->count; i++) {
		bool reported = false;

		if (check->nodes[i].missing)
			continue;
		if (check->count == 1) {
			check_add(check, i, "network", CHECK_SKIPPED, NULL,
				  "one node: its ranks use loopback");
			continue;
		}
		if (!check->simulated)
			reported = judge_duplicates(check, i);
		if (!reported && best && !is_chosen(check, owner, best))
			reported = judge_missing_address(check, i, best, check->nodes[owner].name);
		if (!check->planned && i == 0)
			check_add(check, i, "network", CHECK_FAULT,
				  "see reach below, or choose another network with --iface or "
				  "--subnet",
				  "%s", check->plan_error.text);
		if (!reported && check->planned)
			report_choice(check, i);
	}
}

const struct check_probe probe_network = {"network", .judge = judge};
