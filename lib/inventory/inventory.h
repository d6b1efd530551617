/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage machine: one node as a value (its "card"): cores, NUMA nodes, GPUs, NICs, addresses.
 *
 * Made from hwloc, NVML and /sys by topology.c, gpu.c and nic.c; everything after this stage
 * sees this value only, so a plan can be made from another machine's capture. */
#ifndef BERTH_INVENTORY_INVENTORY_H
#define BERTH_INVENTORY_INVENTORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/env.h"
#include "base/error.h"
#include "hostlist/idset.h"

/* How near two PCI devices are, as nvidia-smi names it; a smaller value is nearer. */
enum path_class {
	PATH_PIX,     /* one PCI switch */
	PATH_PXB,     /* several bridges, no host bridge between */
	PATH_PHB,     /* the same host bridge */
	PATH_NODE,    /* the same NUMA node, another host bridge */
	PATH_PKG,     /* the same package */
	PATH_SYS,     /* another package */
	PATH_UNKNOWN, /* not recorded */
};
const char *path_class_name(enum path_class path); /* "PIX" ... "UNK" */

enum nic_kind {
	NIC_ETHERNET,
	NIC_ROCE,	  /* RDMA-capable Ethernet */
	NIC_OTHER_FABRIC, /* Extoll, Omni-Path...: known as a fabric, no profile of its own */
	NIC_EFA,
	NIC_SLINGSHOT,
	NIC_INFINIBAND,
};
const char *nic_kind_name(enum nic_kind kind); /* "ethernet", "roce", "infiniband", ... */

enum nic_state { NIC_STATE_UNKNOWN = -1, NIC_STATE_DOWN = 0, NIC_STATE_UP = 1 };

/* A core that this job may use, with the allowed ones of its SMT siblings. Where hwloc has no
 * cores, one entry a PU; where it has no PUs, cores are made from the NUMA cpusets. */
struct inventory_core {
	int core_logical;      /* place in the array: hwloc's logical order */
	int package;	       /* index among packages, 0 where there are none */
	int numa_os;	       /* its NUMA node, -1 where none */
	struct idset *cpus_os; /* allowed PUs, OS indices; never empty */
};

/* A NUMA node with allowed cores or memory (memory-only nodes have empty cpus). */
struct inventory_numa {
	int numa_os;
	int package;
	struct idset *cpus_os; /* allowed PUs; may be empty */
	uint64_t memory_bytes;
};

/* One physical GPU, or one partition of it (MIG, MI300 modes), in PCI order. */
struct inventory_gpu {
	int index;     /* place in PCI order, partitions in their order */
	char pci[20];  /* "0000:03:00.0" */
	int partition; /* 0.. when several share the PCI function, -1 otherwise */
	uint16_t vendor, device, pci_class; /* 0x10de, 0x2335, 0x0302 */
	char *name;			    /* product name, or NULL */
	char *os_devices;		    /* hwloc's names, "cuda0,nvml0"; "" when none */
	char *uuid;			    /* NVML's "GPU-..." or "MIG-...", or NULL */
	char *mig;	       /* a MIG device's older name "MIG-GPU-uuid/gi/ci", or NULL */
	char *fault;	       /* why it should not be used (NVML), or NULL */
	bool allowed;	       /* the scheduler's visible-device list has it */
	struct idset *numa_os; /* NUMA nodes of its locality, also those this job may not use;
				  empty: unknown */
	struct idset *cpus_os; /* allowed PUs of its locality; may be empty */
	bool local_known; /* its locality is narrower than the machine, or there is one package */
	int package;	  /* -1 when unknown */
	int64_t memory_bytes; /* -1 unknown */
};

/* One port of one network device, in PCI order. A device without PCI has pci "". */
struct inventory_nic {
	char net[16];  /* the interface, "" when none ("hsn0") */
	char rdma[64]; /* the OpenFabrics or cxi device, "" when none ("mlx5_0") */
	int port;      /* 1.. */
	char pci[20];
	uint16_t vendor, device, pci_class;
	enum nic_kind kind;
	enum nic_state state;  /* link */
	int64_t speed_mbps;    /* of the link; -1 unknown */
	struct idset *numa_os; /* as a GPU's */
	struct idset *cpus_os;
	int package;
	bool management; /* never carries the job's traffic: a better kind of NIC is there and
			    not down, or it is wireless, on USB, or has no driver */
};

enum iface_type {		  /* what an interface is, for the choice of the head's address */
		  IFACE_PHYSICAL, /* a device; a bond, VLAN or bridge on one; IPoIB; a container's
				     own veth */
		  IFACE_LOOPBACK,
		  IFACE_VIRTUAL, /* container or VM bridge, veth in a bridge, tunnel, tap */
};

/* One address of one network interface. */
struct inventory_address {
	char iface[16];
	int family;		 /* AF_INET or AF_INET6 */
	unsigned char bytes[16]; /* network order; 4 or 16 used */
	int prefix;		 /* bits */
	unsigned scope;		 /* IPv6 scope id, 0 otherwise */
	enum iface_type type;
	bool up; /* administratively up and running */
	bool link_local;
	int64_t speed_mbps; /* -1 unknown */
	int nic;	    /* index in nics, -1 when no device is known */
	enum nic_kind kind; /* the NIC's, NIC_ETHERNET without one */
};

struct inventory {
	char *node;	      /* this node's name (host name without being resolved) */
	bool this_system;     /* made from the running machine: binding has an effect */
	char *source;	      /* "this machine", or the XML's path */
	size_t package_count; /* >= 1 */
	size_t core_count, numa_count, gpu_count, nic_count, address_count;
	struct inventory_core *cores;
	struct inventory_numa *numas;
	struct inventory_gpu *gpus;
	struct inventory_nic *nics;
	struct inventory_address *addresses;
	struct idset *allowed_cpus_os; /* what cgroups and affinity allow */
	uint8_t *path;		       /* enum path_class, [gpu_count][nic_count] */
	int64_t memory_limit_bytes;    /* the cgroup's; -1 none */
	char **notes;		       /* what was odd and is worth telling, note_count of them */
	size_t note_count;
};

/* Where to look; NULLs and zeros mean the running machine. Tests pretend with the roots. */
struct inventory_source {
	const char *topology_file; /* hwloc XML (BERTH_TOPOLOGY, --topology), or NULL */
	const char *sys_root;	   /* "" by default: the prefix of /sys, e.g. "tests/fixtures/x" */
	const char *nvml_library;  /* "libnvidia-ml.so.1" by default; "" : do not look */
	bool no_network;	   /* leave addresses and /sys NICs out (XML of another machine) */
};

/* Load this node's machine. Loads hwloc once; no GPU context is made; does not block on the
 * network. Leaves the process's binding and environment alone; HWLOC_XMLFILE, HWLOC_SYNTHETIC
 * and their kin have no effect (they are hidden from hwloc for the length of the call, so no
 * other thread may change the environment then): another machine is topology_file's matter.
 * An XML is tried in a child process first, because hwloc ends the process on some damaged files.
 * 0; -ERR_INPUT: file missing or unreadable; -ERR_DATA: not an XML that this hwloc reads (an
 * hwloc 3 file says so). *out untouched on failure; inventory_free it otherwise. */
int inventory_discover(const struct inventory_source *source, struct inventory *out,
		       struct error *err);
void inventory_free(
	struct inventory *inventory); /* frees what it holds and clears it; NULL is fine */

/* Mark the GPUs that a visible-device list allows (CUDA_VISIBLE_DEVICES and its kin: ordinals in
 * PCI order, UUIDs and their prefixes, MIG UUIDs, "MIG-GPU-uuid/gi/ci"; "" allows none, NULL all;
 * backslashes of PBS stripped; CUDA ends the list at the first entry that is not a device).
 * cgroup-relative ordinals count among the GPUs hwloc or NVML shows.
 * -ERR_DATA: an entry that no GPU has, or a GPU twice; err names name and the entry, nothing has
 * changed then. Call it once: a second list would count among what the first allowed. */
int inventory_allow_gpus(struct inventory *inventory, const char *name, const char *list,
			 struct error *err);

/* Mark the GPUs that env's lists allow, each vendor's as its runtime reads them: NVIDIA
 * CUDA_VISIBLE_DEVICES; AMD ROCR_VISIBLE_DEVICES and, counted among those that it leaves,
 * HIP_VISIBLE_DEVICES; Intel ZE_AFFINITY_MASK. CUDA's variable counts for other vendors' GPUs where
 * their own are unset (HIP reads it, Slurm sets it), never beside them.
 * -ERR_DATA as inventory_allow_gpus. */
int inventory_allow_visible_devices(struct inventory *inventory, const struct env *env,
				    struct error *err);

/* BERTH_TOPOLOGY, or NULL where it is unset or empty. Borrowed from env. */
const char *inventory_topology_file(const struct env *env);

/* inventory_discover of the node that env describes: another machine's capture (source's file, else
 * BERTH_TOPOLOGY), or this one with the GPUs that its visible-device lists allow, which say nothing
 * about a capture. Errors as of both; those of BERTH_TOPOLOGY say so. */
int inventory_discover_from_env(const struct inventory_source *source, const struct env *env,
				struct inventory *out, struct error *err);

/* The card: everything above as JSON, and back (from the wire: limits checked, nothing trusted).
 * Cores and paths are packed; see json_write.c. */
json_t *inventory_to_json(const struct inventory *inventory);
int inventory_from_json(const json_t *json, struct inventory *out, struct error *err);

#endif
