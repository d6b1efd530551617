/* SPDX-License-Identifier: BSD-3-Clause */
/* The network part of a rank's environment: interfaces and ports for NCCL, Gloo, UCX, libfabric,
 * Open MPI and Cray's MPICH, and the fabric's profile. Only for several nodes. */
#include <stdio.h>
#include <string.h>

#include "plan/environment.h"
#include "plan/plan_internal.h"

bool environment_one_node(const struct environment_builder *m)
{
	return m->plan->network.single_node;
}

/* Then the inventory has fewer interfaces than the node, and NCCL knows of no ban. */
static bool some_banned(const struct environment_builder *m)
{
	return env_get(m->env, INVENTORY_BANNED) != NULL;
}

/* Are all NICs of a fabric banned, or for management? */
static bool no_fabric_left(const struct environment_builder *m)
{
	const struct inventory *inventory = m->inventory;
	bool found = false;

	for (size_t n = 0; n < inventory->nic_count; n++) {
		if (inventory->nics[n].kind == NIC_ETHERNET)
			continue;
		if (!inventory->nics[n].management)
			return false;
		found = true;
	}
	return found && some_banned(m);
}

/* Would NCCL by itself choose this interface and no other? Its search (socket.cc,
 * ncclFindInterfaces) takes names that begin with ib, else all but docker* and lo*. Versions differ
 * on virbr* and on interfaces that are down: if one of those exists, the answer is no. */
static bool nccl_picks_it(const struct inventory *inventory, const char *iface)
{
	bool some_ib = false, found = false;

	for (size_t i = 0; i < inventory->address_count; i++)
		some_ib |= !strncmp(inventory->addresses[i].iface, "ib", 2);
	for (size_t i = 0; i < inventory->address_count; i++) {
		const char *name = inventory->addresses[i].iface;

		if (some_ib ? strncmp(name, "ib", 2)
			    : !strncmp(name, "docker", 6) || !strncmp(name, "lo", 2))
			continue;
		if (strcmp(name, iface))
			return false;
		found = true;
	}
	return found;
}

/* NCCL matches prefixes. "=" makes a name exact, which is needed if the name is the prefix of
 * another. */
static void nccl_iface(const struct environment_builder *m, const char *iface, char *text,
		       size_t size)
{
	const struct inventory *inventory = m->inventory;
	bool prefix = some_banned(m);

	for (size_t i = 0; i < inventory->address_count; i++)
		prefix |= !strncmp(inventory->addresses[i].iface, iface, strlen(iface)) &&
			  strcmp(inventory->addresses[i].iface, iface);
	snprintf(text, size, "%s%s", prefix ? "=" : "", iface);
}

/* "mlx5_0:1,mlx5_3:1" for the fabric's usable ports. "" if NCCL's own search, which takes every
 * active RDMA port, finds the same. */
static void nccl_hcas(const struct inventory *inventory, char *text, size_t size)
{
	bool others = false;
	size_t used = 0;

	*text = '\0';
	for (size_t n = 0; n < inventory->nic_count; n++) {
		const struct inventory_nic *nic = &inventory->nics[n];

		if (!*nic->rdma || nic->state == NIC_STATE_DOWN)
			continue;
		if (nic_class(inventory, n) == NIC_CLASS_NONE) {
			others = true;
			continue;
		}
		if (used < size)
			used += (size_t)snprintf(text + used, size - used, "%s%s:%d",
						 used ? "," : "=", nic->rdma, nic->port);
	}
	if (!others || used >= size)
		*text = '\0';
}

/* For libraries that accept an address range instead of a name; Open MPI reads only IPv4 ranges. */
static const char *range_or_name(const struct environment_builder *m)
{
	int index;

	if (strchr(m->plan->network.subnet, ':') ||
	    !network_iface(m->inventory, &m->plan->network, &index))
		return m->node->iface;
	return m->plan->network.subnet;
}

static void ucx_devices(const struct environment_builder *m, char *text, size_t size)
{
	size_t used = 0;

	*text = '\0';
	for (size_t n = 0; n < m->rank->nic_count; n++) {
		const struct plan_nic *nic = &m->rank->nics[n];

		if (nic->state == NIC_STATE_DOWN || !*nic->rdma || used >= size ||
		    (nic->kind != NIC_INFINIBAND && nic->kind != NIC_ROCE))
			continue;
		used += (size_t)snprintf(text + used, size - used, "%s%s:%d", used ? "," : "",
					 nic->rdma, nic->port);
	}
	if (!used || used >= size)
		snprintf(text, size, "%s", m->node->iface);
}

/* Open MPI and its relatives refuse an include list together with an exclude list, and then find no
 * network at all. So the user's exclusion stays. */
static void put_include(struct environment_builder *m, enum env_from from, const char *name,
			const char *exclusion, const char *range)
{
	if (!env_get(m->env, exclusion))
		environment_put_from(m, from, name, range,
				     "otherwise Open MPI uses every network it finds");
}

void environment_add_interfaces(struct environment_builder *m)
{
	enum env_from from = m->request->iface || m->request->subnet || m->request->master_addr
				     ? ENV_FROM_OPTION
				     : ENV_FROM_BERTH;
	const char *iface = m->node->iface, *range;
	char why[128], text[2048];

	if (environment_one_node(m) || !*iface)
		return;
	range = range_or_name(m);
	snprintf(why, sizeof why, "this node's interface to %s",
		 *m->plan->network.subnet ? m->plan->network.subnet : m->plan->network.address);
	nccl_iface(m, iface, text, sizeof text);
	if (env_get(m->env, "NCCL_SOCKET_IFNAME") || some_banned(m) ||
	    !nccl_picks_it(m->inventory, iface))
		environment_put_from(m, from, "NCCL_SOCKET_IFNAME", text, why);
	environment_put_from(m, from, "GLOO_SOCKET_IFNAME", iface, why);
	environment_put_from(m, from, "TP_SOCKET_IFNAME", iface, why);
	environment_put_from(m, from, "FI_TCP_IFACE", iface, why);
	ucx_devices(m, text, sizeof text);
	environment_put(m, "UCX_NET_DEVICES", text,
			!strcmp(text, iface) ? why : "the NICs nearest to this rank's GPU");
	put_include(m, from, "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", range);
	put_include(m, from, "OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_oob_tcp_if_exclude", range);
	put_include(m, from, "PRTE_MCA_prte_if_include", "PRTE_MCA_prte_if_exclude", range);
}

/* The number that Cray MPICH gives a Slingshot NIC: its position by name. -1: the rank has none. */
static int cray_nic(const struct inventory *inventory, const struct plan_rank *rank)
{
	const struct plan_nic *mine = NULL;
	int place = 0;

	for (size_t n = 0; n < rank->nic_count && !mine; n++)
		if (rank->nics[n].state != NIC_STATE_DOWN && rank->nics[n].kind == NIC_SLINGSHOT)
			mine = &rank->nics[n];
	for (size_t n = 0; mine && n < inventory->nic_count; n++) {
		const struct inventory_nic *nic = &inventory->nics[n];

		if (nic->kind != NIC_SLINGSHOT)
			continue;
		place += *mine->rdma ? strverscmp(nic->rdma, mine->rdma) < 0
				     : strverscmp(nic->net, mine->net) < 0;
	}
	return mine ? place : -1;
}

/* "0:0,1;1:2,3": a NIC, then the local ranks that use it. The same for all ranks of the node. */
static void add_cray_nics(struct environment_builder *m)
{
	int nic_count = 0;
	size_t used = 0;
	char text[8192] = "";

	for (size_t n = 0; n < m->inventory->nic_count; n++)
		nic_count += m->inventory->nics[n].kind == NIC_SLINGSHOT;
	if (nic_count < 2)
		return;
	for (int nic = 0; nic < nic_count; nic++) {
		bool first = true;

		for (size_t r = 0; r < m->node->rank_count && used < sizeof text; r++) {
			int its = cray_nic(m->inventory, &m->node->ranks[r]);

			if (its < 0)
				return;
			if (its != nic)
				continue;
			if (first)
				used += (size_t)snprintf(text + used, sizeof text - used,
							 "%s%d:%zu", used ? ";" : "", nic, r);
			else
				used += (size_t)snprintf(text + used, sizeof text - used, ",%zu",
							 r);
			first = false;
		}
	}
	if (used >= sizeof text)
		return;
	environment_put(m, "MPICH_OFI_NIC_POLICY", "USER",
			"use the plan's NICs, listed in MPICH_OFI_NIC_MAPPING");
	environment_put(m, "MPICH_OFI_NIC_MAPPING", text,
			"for each NIC, the local ranks whose GPUs are nearest to it");
}

void environment_add_fabric(struct environment_builder *m)
{
	enum nic_kind kind;
	char hcas[2048], why[512];

	if (environment_one_node(m) || !nic_best_class(m->inventory, &kind))
		return;
	if (no_fabric_left(m)) {
		environment_put(m, "NCCL_NET", "Socket", "the fabric's NICs are banned");
		return;
	}
	if (kind == NIC_INFINIBAND || kind == NIC_ROCE) {
		nccl_hcas(m->inventory, hcas, sizeof hcas);
		if (*hcas)
			environment_put(m, "NCCL_IB_HCA", hcas,
					"the fabric's ports, without management NICs");
	}
	if (kind == NIC_SLINGSHOT)
		add_cray_nics(m);
	for (const struct fabric_setting *s = fabric_settings; s->name; s++) {
		if (s->kind != kind || (s->when && !s->when(m->inventory, m->env)))
			continue;
		snprintf(why, sizeof why, "%s: %s (%s)", fabric_title(kind), s->why, s->source);
		environment_put(m, s->name, s->value, why);
	}
}
