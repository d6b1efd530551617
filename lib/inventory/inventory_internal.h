/* SPDX-License-Identifier: BSD-3-Clause */
/* An inventory in the making: what the files of this stage share while inventory_discover runs.
 * Nothing here outlives that call. */
#ifndef BERTH_INVENTORY_INVENTORY_INTERNAL_H
#define BERTH_INVENTORY_INVENTORY_INTERNAL_H

#include <hwloc.h>
#include <ifaddrs.h>

#include "inventory/inventory.h"

/* A PCI function by its numbers, which also define the order of GPUs and NICs. */
struct pci_id {
	unsigned domain, bus, dev, func;
};
/* Parse "0000:03:00.0" (a domain of 4 to 8 hexadecimal digits) or NVML's "00000000:03:00.0". Return
 * 0, or -1 if text is not a PCI address. */
int pci_parse(const char *text, struct pci_id *out);
int pci_compare(struct pci_id a, struct pci_id b); /* <0, 0, >0 */
void pci_format(struct pci_id id, char out[20]);

struct discovery {
	const struct inventory_source *source;
	struct inventory *inventory;
	hwloc_topology_t topology;
	hwloc_bitmap_t allowed;	  /* PUs that cgroup and affinity allow */
	hwloc_bitmap_t cpu_nodes; /* NUMA nodes that have CPUs of their own */
	/* hwloc's object for each GPU and NIC (a PCI or OS device), or NULL. Parallel to
	 * inventory->gpus and inventory->nics. */
	hwloc_obj_t *gpu_objs, *nic_objs;
};

/* topology_open.c: load the topology; the caller destroys it with hwloc_topology_destroy. */
int topology_open(const struct inventory_source *source, hwloc_topology_t *out, struct error *err);

/* topology.c */
/* Cores, NUMA nodes, allowed PUs. */
int topology_read(struct discovery *discovery, struct error *err);

/* Where a device sits. The sets are new. */
struct locality {
	struct idset *numa_os, *cpus_os;
	int package;
	bool known; /* narrower than the machine, or the machine has only one package */
};
int topology_locality_of(const struct discovery *discovery, hwloc_obj_t obj, struct locality *out,
			 struct error *err);
/* The same for a PCI function that hwloc lacks, from the NUMA node in /sys (-1: unknown). */
int topology_locality_of_numa(const struct discovery *discovery, int numa_os, struct locality *out,
			      struct error *err);
hwloc_obj_t topology_pci(const struct discovery *discovery, const char *pci); /* or NULL */
const char *topology_obj_info(hwloc_obj_t obj, const char *name);	      /* or NULL */

/* gpu.c: find every GPU that hwloc knows, sorted, with partitions. */
int gpu_read(struct discovery *discovery, struct error *err);
/* Does /sys show any? Far cheaper than hwloc's I/O discovery. */
bool gpu_on_bus(const char *sys_root);
int gpu_insert(struct discovery *discovery, size_t at,
	       struct error *err); /* insert an empty GPU at index at */
/* Add an entry after gpus[at] on the same PCI function: a copy without its UUID. */
int gpu_add_partition(struct discovery *discovery, size_t at, struct error *err);
void gpu_set_locality(struct inventory_gpu *gpu, const struct locality *locality);
int nvml_read(struct discovery *discovery, struct error *err); /* reads NVML */
/* Reads AMD's driver below sys_root. */
int kfd_read(struct discovery *discovery, struct error *err);

/* nic.c: read the NICs from hwloc's objects or from /sys, sort them, and set their kind. */
int nic_read(struct discovery *discovery, struct error *err);

/* nic.c, after locality_read: which NICs are for management. If each GPU has an RDMA NIC on its own
 * PCI switches, these are fabrics of other kinds with no NIC on such a switch; then all kinds below
 * the best one that is left. */
void nic_mark(struct inventory *inventory);

/* One network device, before it becomes one NIC per port. */
#define DEVICE_PORTS 8
enum link_layer { LINK_UNKNOWN, LINK_INFINIBAND, LINK_ETHERNET };
struct device_port {
	enum nic_state state;
	enum link_layer link;
	int64_t speed_mbps;
};
struct device_net {
	char name[16];
	int port; /* port number, from 1 */
	struct device_port at;
};
struct device_rdma {
	char name[64];
	int port_count; /* at least 1 */
	struct device_port ports[DEVICE_PORTS];
};
struct device {
	char pci[20]; /* "" when none */
	uint16_t vendor, device, pci_class;
	hwloc_obj_t obj;
	int numa_os;	  /* from /sys; -1 unknown */
	bool cxi;	  /* it has a Slingshot driver */
	bool last_resort; /* wireless or USB: used only if there is no other */
	size_t net_count, rdma_count;
	struct device_net *nets;
	struct device_rdma *rdmas;
};
struct devices {
	size_t count;
	struct device *list;
};
/* nic_sys.c, as nic_from_sys: */
extern const struct device_port device_port_unknown;
void devices_free(struct devices *devices);
/* Find the device at pci, or add it; pci "" always adds one. NULL if memory is out. */
struct device *devices_at(struct devices *devices, const char *pci);
struct device_net *device_add_net(struct device *device, const char *name);
struct device_rdma *device_add_rdma(struct device *device, const char *name);
int nic_from_sys(const char *sys_root, struct devices *out, struct error *err);

/* Pure: derive a device's kind from PCI ids, driver and link layer, never from a name. */
enum nic_kind nic_kind_of(const struct device *device, enum link_layer link);

/* address.c: fill inventory->addresses from interfaces as getifaddrs lists them. */
int address_read(struct discovery *discovery, const struct ifaddrs *list, struct error *err);
/* Set the use of the interfaces whose subnet has text (an IPv4 address; NULL or anything else:
 * none). */
void address_mark_scheduler(struct inventory *inventory, const char *text);
/* Leave out the addresses of interfaces that match a pattern of list ("eno1,docker*"; NULL: none),
 * and let such NICs, also by their RDMA names, carry no traffic of the job. */
void address_ban(struct inventory *inventory, const char *list);

/* cgroup.c: the limits of the groups that /proc/self/cgroup names, in bytes and in thousandths of a
 * CPU; -1: none. */
int64_t cgroup_memory_limit(const char *sys_root, const char *proc_cgroup_text);
int64_t cgroup_cpu_limit(const char *sys_root, const char *proc_cgroup_text);

/* visible_devices.c: is any GPU of that PCI vendor? */
bool inventory_has_vendor(const struct inventory *inventory, uint16_t vendor);

/* path_class.c */
int locality_read(struct discovery *discovery, struct error *err);

/* Add a note to inventory->notes. If memory is out, only the note is lost. */
void inventory_note(struct inventory *inventory, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

#endif
