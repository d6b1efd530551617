/* SPDX-License-Identifier: BSD-3-Clause */
/* Inventories of simulated nodes, built in memory. */
#ifndef BERTH_TESTS_UNIT_PLAN_INVENTORIES_H
#define BERTH_TESTS_UNIT_PLAN_INVENTORIES_H

#include "plan/plan.h"

/* Each package has numas NUMA nodes, each node has cores cores, and each core has smt siblings.
 * CPUs are numbered as Linux does: the first siblings of all cores come first. The caller frees the
 * inventory with inventory_free. */
struct inventory make_inventory(const char *node, int packages, int numas, int cores, int smt);

/* Add an allowed NVIDIA GPU without OS devices. numa_os: its NUMA node; -1: its locality is
 * unknown. Return it, so that the caller can change it. GPUs must be added in PCI order. */
struct inventory_gpu *make_gpu(struct inventory *inventory, const char *pci, int numa_os);

/* Add a NIC on a NUMA node; net or rdma is "" if it has no such name. Add NICs after all GPUs,
 * since this sets the paths to NODE, PKG or SYS; set_path changes one. */
struct inventory_nic *make_nic(struct inventory *inventory, const char *net, const char *rdma,
			       enum nic_kind kind, int numa_os);
void set_path(struct inventory *inventory, size_t gpu, size_t nic, enum path_class path);

/* Add an address such as "10.0.0.1/24" to an interface. If a NIC has that net, the address gets the
 * NIC's kind and speed. */
struct inventory_address *make_address(struct inventory *inventory, const char *iface,
				       const char *cidr);

/* A node of a large cluster: 2 packages, 4 NUMA nodes, 128 cores with 2 siblings, 8 NVIDIA GPUs,
 * 8 InfiniBand NICs and one for management, an address on each, loopback and a bridge. index is the
 * node's number; its addresses and GPU UUIDs contain it. */
struct inventory make_cluster(int index);

#endif
