/* SPDX-License-Identifier: BSD-3-Clause */
/* A machine in the making: what the files of this stage share while inventory_discover runs.
 * Nothing here outlives that call. */
#ifndef BERTH_INVENTORY_INVENTORY_INTERNAL_H
#define BERTH_INVENTORY_INVENTORY_INTERNAL_H

#include <hwloc.h>
#include <ifaddrs.h>

#include "inventory/inventory.h"

/* A PCI function by its numbers; the order of GPUs and NICs. */
struct pci_id {
	unsigned domain, bus, dev, func;
};
/* "0000:03:00.0" (domain of 4 to 8 hexadecimal digits); NVML's "00000000:03:00.0" too.
 * 0, or -1 when text is no PCI address. */
int pci_parse(const char *text, struct pci_id *out);
int pci_compare(struct pci_id a, struct pci_id b); /* <0, 0, >0 */
void pci_format(struct pci_id id, char out[20]);

struct discovery {
	const struct inventory_source *source;
	struct inventory *inventory;
	hwloc_topology_t topology;
	hwloc_bitmap_t allowed;	  /* PUs that cgroup and affinity allow */
	hwloc_bitmap_t cpu_nodes; /* NUMA nodes that have CPUs of their own */
	/* hwloc's object of each GPU and NIC (PCI or OS device), NULL where it has none; as
	 * long as machine->gpus and machine->nics, in their order. */
	hwloc_obj_t *gpu_objs, *nic_objs;
};

/* topology_open.c: loaded, for hwloc_topology_destroy. */
int topology_open(const struct inventory_source *source, hwloc_topology_t *out, struct error *err);

/* topology.c */
int topology_read(struct discovery *discovery, struct error *err); /* cores, NUMA nodes, allowed */

/* Where something sits. Sets are new; topology_locality_clear frees them. */
struct locality {
	struct idset *numa_os, *cpus_os;
	int package;
	bool known; /* narrower than the machine, or the machine has one package */
};
int topology_locality_of(const struct discovery *discovery, hwloc_obj_t obj, struct locality *out,
			 struct error *err);
/* Of a PCI function that hwloc does not have: by the NUMA node that /sys tells, -1 unknown. */
int topology_locality_of_numa(const struct discovery *discovery, int numa_os, struct locality *out,
			      struct error *err);
void topology_locality_clear(struct locality *locality);
hwloc_obj_t topology_pci(const struct discovery *discovery, const char *pci); /* or NULL */
const char *topology_obj_info(hwloc_obj_t obj, const char *name);	      /* or NULL */

/* gpu.c: every GPU, sorted, with partitions; then what the drivers know. */
int gpu_read(struct discovery *discovery, struct error *err);
bool gpu_on_bus(const char *sys_root); /* does /sys show any? Far cheaper than hwloc's I/O */
int gpu_insert(struct discovery *discovery, size_t at,
	       struct error *err); /* an empty GPU at index at */
/* Another entry after gpus[at], on the same function: a copy without its UUID. */
int gpu_add_partition(struct discovery *discovery, size_t at, struct error *err);
void gpu_clear(struct inventory_gpu *gpu);
int nvml_read(struct discovery *discovery, struct error *err); /* NVIDIA's library */
int kfd_read(struct discovery *discovery, struct error *err);  /* AMD's driver, below sys_root */

/* nic.c: NICs from hwloc's objects or from /sys, sorted, with kind and management. */
int nic_read(struct discovery *discovery, struct error *err);
void nic_clear(struct inventory_nic *nic);

/* One network device, before it becomes one NIC a port. */
#define DEVICE_PORTS 8
enum link_layer { LINK_UNKNOWN, LINK_INFINIBAND, LINK_ETHERNET };
struct device_port {
	enum nic_state state;
	enum link_layer link;
	int64_t speed_mbps;
};
struct device_net {
	char name[16];
	int port; /* 1.. */
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
	int numa_os;	  /* as /sys tells, -1 unknown */
	bool cxi;	  /* a Slingshot driver stands behind it */
	bool last_resort; /* wireless or USB: not the job's while there is another */
	size_t net_count, rdma_count;
	struct device_net *nets;
	struct device_rdma *rdmas;
};
struct devices {
	size_t count;
	struct device *list;
};
void devices_free(struct devices *devices);
/* The device at pci, made when new; pci "": always a new one. NULL when memory is out. */
struct device *devices_at(struct devices *devices, const char *pci);
struct device_net *device_add_net(struct device *device, const char *name);
struct device_rdma *device_add_rdma(struct device *device, const char *name);
int nic_from_sys(const char *sys_root, struct devices *out, struct error *err); /* nic_sys.c */

/* Pure: what a device is, from PCI, driver and link layer; never from a name. */
enum nic_kind nic_kind_of(const struct device *device, enum link_layer link);

/* address.c: interfaces (as getifaddrs lists them) to machine->addresses. */
int address_read(struct discovery *discovery, const struct ifaddrs *list, struct error *err);
int64_t cgroup_memory_limit(const char *sys_root, const char *proc_cgroup_text);

/* path_class.c */
int locality_read(struct discovery *discovery, struct error *err);

/* A note for machine->notes; memory that is out only loses the note. */
void inventory_note(struct inventory *inventory, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* array with room for one more entry of size bytes, zeroed; NULL when memory is out (array is
 * still valid then). */
void *array_grow(void *array, size_t count, size_t size);

#endif
