/* SPDX-License-Identifier: BSD-3-Clause */
/* A machine in the making: what the files of this stage share while machine_load runs. Nothing
 * here outlives that call. */
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

struct build {
	const struct machine_source *source;
	struct machine *machine;
	hwloc_topology_t topology;
	hwloc_bitmap_t allowed;	  /* PUs that cgroup and affinity allow */
	hwloc_bitmap_t cpu_nodes; /* NUMA nodes that have CPUs of their own */
	/* hwloc's object of each GPU and NIC (PCI or OS device), NULL where it has none; as
	 * long as machine->gpus and machine->nics, in their order. */
	hwloc_obj_t *gpu_objs, *nic_objs;
};

/* topology_open.c: loaded, for hwloc_topology_destroy. */
int topology_open(const struct machine_source *source, hwloc_topology_t *out, struct error *err);

/* topology.c */
int topology_read(struct build *build, struct error *err); /* cores, NUMA nodes, allowed */

/* Where something sits. Sets are new; place_clear frees them. */
struct place {
	struct idset *numa_os, *cpus_os;
	int package;
	bool known; /* narrower than the machine, or the machine has one package */
};
int place_of(const struct build *build, hwloc_obj_t obj, struct place *out, struct error *err);
/* Of a PCI function that hwloc does not have: by the NUMA node that /sys tells, -1 unknown. */
int place_of_numa(const struct build *build, int numa_os, struct place *out, struct error *err);
void place_clear(struct place *place);
hwloc_obj_t topology_pci(const struct build *build, const char *pci); /* or NULL */
const char *obj_info(hwloc_obj_t obj, const char *name);	      /* or NULL */

/* gpu.c: every GPU, sorted, with partitions; then what the drivers know. */
int gpu_read(struct build *build, struct error *err);
bool gpu_on_bus(const char *sys_root); /* does /sys show any? Far cheaper than hwloc's I/O */
int gpu_insert(struct build *build, size_t at, struct error *err); /* an empty GPU at index at */
/* Another entry after gpus[at], on the same function: a copy without its UUID. */
int gpu_add_partition(struct build *build, size_t at, struct error *err);
void gpu_clear(struct machine_gpu *gpu);
int nvml_read(struct build *build, struct error *err); /* NVIDIA's library */
int kfd_read(struct build *build, struct error *err);  /* AMD's driver, below sys_root */

/* nic.c: NICs from hwloc's objects or from /sys, sorted, with kind and management. */
int nic_read(struct build *build, struct error *err);
void nic_clear(struct machine_nic *nic);

/* One network device, before it becomes one NIC a port. */
#define DEVICE_PORTS 8
enum link_layer { LINK_UNKNOWN, LINK_INFINIBAND, LINK_ETHERNET };
struct device_port {
	enum machine_state state;
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
	int numa_os; /* as /sys tells, -1 unknown */
	bool cxi;    /* a Slingshot driver stands behind it */
	bool aside;  /* wireless or USB: not the job's while there is another */
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
int address_read(struct build *build, const struct ifaddrs *list, struct error *err);
int64_t cgroup_memory_limit(const char *sys_root, const char *proc_cgroup_text);

/* path_class.c */
int path_read(struct build *build, struct error *err);

/* A note for machine->notes; memory that is out only loses the note. */
void machine_note(struct machine *machine, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* array with room for one more entry of size bytes, zeroed; NULL when memory is out (array is
 * still valid then). */
void *grow(void *array, size_t count, size_t size);

#endif
