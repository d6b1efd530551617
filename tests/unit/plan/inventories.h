/* SPDX-License-Identifier: BSD-3-Clause */
/* Cards of simulated nodes, built in memory. */
#ifndef BERTH_TESTS_UNIT_PLAN_INVENTORIES_H
#define BERTH_TESTS_UNIT_PLAN_INVENTORIES_H

#include "plan/plan.h"

/* Packages of numas NUMA nodes of cores cores with smt siblings each. CPUs are numbered as Linux
 * does: first siblings first. Owned by the caller, inventory_free. */
struct inventory make_inventory(const char *node, int packages, int numas, int cores, int smt);

/* A GPU local to a NUMA node (OS index), -1: its locality is unknown. NVIDIA's, without OS
 * devices, allowed. Returns it, to be changed. GPUs are added in PCI order. */
struct inventory_gpu *make_gpu(struct inventory *inventory, const char *pci, int numa_os);

/* A NIC on a NUMA node, "" where it has no net or no rdma name. After all GPUs: the paths are
 * NODE, PKG or SYS; set_path changes one. */
struct inventory_nic *make_nic(struct inventory *inventory, const char *net, const char *rdma,
			       enum nic_kind kind, int numa_os);
void set_path(struct inventory *inventory, size_t gpu, size_t nic, enum path_class path);

/* An address such as "10.0.0.1/24" of an interface; of the NIC with that net, where there is one,
 * with its kind and speed. */
struct inventory_address *make_address(struct inventory *inventory, const char *iface,
				       const char *cidr);

/* A node of a large cluster: 2 packages, 4 NUMA nodes, 128 cores with 2 siblings, 8 NVIDIA GPUs,
 * 8 InfiniBand NICs and one for management, an address on each, loopback and a bridge. index:
 * its number, which its addresses and GPU UUIDs show. */
struct inventory make_cluster(int index);

#endif
