/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage inventory: one node as a value, with its cores, NUMA nodes, GPUs, NICs and addresses.
 *
 * topology.c, gpu.c and nic.c fill it in from hwloc, NVML and /sys. Later stages see only this
 * value, so berth can plan for another machine from its capture. */
#ifndef BERTH_INVENTORY_INVENTORY_H
#define BERTH_INVENTORY_INVENTORY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/env.h"
#include "base/error.h"
#include "hostlist/idset.h"

/* How close two PCI devices are, in nvidia-smi's terms; a smaller value is closer. */
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
	NIC_OTHER_FABRIC, /* Extoll, Omni-Path...: a known fabric without a profile of its own */
	NIC_EFA,
	NIC_SLINGSHOT,
	NIC_INFINIBAND,
};
const char *nic_kind_name(enum nic_kind kind); /* "ethernet", "roce", "infiniband", ... */

enum nic_state { NIC_STATE_UNKNOWN = -1, NIC_STATE_DOWN = 0, NIC_STATE_UP = 1 };

/* A core that this job may use, with its allowed SMT siblings. If hwloc shows no cores, each PU is
 * an entry; if it shows no PUs, the NUMA cpusets become cores. */
struct inventory_core {
	int core_logical;      /* index in the array: hwloc's logical order */
	int package;	       /* index of its package; 0 if there are none */
	int numa_os;	       /* its NUMA node; -1 if none */
	struct idset *cpus_os; /* allowed PUs, OS indices; never empty */
	char *claimed_by;      /* as that of a GPU */
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
	int index;			    /* position in PCI order; partitions keep their order */
	char pci[20];			    /* "0000:03:00.0" */
	int partition;			    /* 0.. if several share the PCI function, else -1 */
	uint16_t vendor, device, pci_class; /* 0x10de, 0x2335, 0x0302 */
	char *name;			    /* product name, or NULL */
	char *os_devices;		    /* hwloc's names, "cuda0,nvml0"; "" when none */
	char *uuid;			    /* NVML's "GPU-..." or "MIG-...", or NULL */
	char *mig;	  /* a MIG device's older name "MIG-GPU-uuid/gi/ci", or NULL */
	char *fault;	  /* why it should not be used (NVML), or NULL */
	bool allowed;	  /* the scheduler's visible-device list includes it */
	char *claimed_by; /* the run of this job that uses it, for people; NULL: none. Not in the
			     JSON: see plan_apply_claims */
	/* NUMA nodes local to the GPU, including those this job may not use. Empty: unknown. */
	struct idset *numa_os;
	struct idset *cpus_os; /* allowed PUs local to the GPU; may be empty */
	/* Its locality is narrower than the machine, or there is only one package. */
	bool local_known;
	int package;	      /* -1 when unknown */
	int64_t memory_bytes; /* -1 unknown */
};

/* One port of one network device, in PCI order. A device without PCI has pci "". */
struct inventory_nic {
	char net[16];  /* the interface ("hsn0"); "" if none */
	char rdma[64]; /* the OpenFabrics or cxi device ("mlx5_0"); "" if none */
	int port;      /* port number, from 1 */
	char pci[20];
	uint16_t vendor, device, pci_class;
	enum nic_kind kind;
	enum nic_state state;  /* link state */
	int64_t speed_mbps;    /* link speed; -1 unknown */
	struct idset *numa_os; /* as for a GPU */
	struct idset *cpus_os;
	int package;
	/* The NIC never carries the job's traffic. It is wireless, on USB or without a driver, or
	 * the node has a better kind of NIC that is not down. */
	bool management;
};

enum iface_type { /* how berth classifies an interface when it chooses the rendezvous
			   address */
		  IFACE_PHYSICAL, /* a device; a bond, VLAN or bridge on one; IPoIB; a container's
				     own veth */
		  IFACE_LOOPBACK,
		  IFACE_VIRTUAL, /* container or VM bridge, veth in a bridge, tunnel, tap */
};

/* What else uses an interface. Of two equal networks, the ranks get the one that nothing else uses.
 */
enum address_use {
	USE_NONE,
	USE_DEFAULT_ROUTE, /* the node's IPv4 default route */
	USE_NODE_NAME,	   /* /etc/hosts gives one of its addresses for the node's name */
	USE_SCHEDULER,	   /* its subnet has SLURM_LAUNCH_NODE_IPADDR */
};

/* One address of one network interface. */
struct inventory_address {
	char iface[16];
	int family;		 /* AF_INET or AF_INET6 */
	unsigned char bytes[16]; /* network order; 4 or 16 used */
	int prefix;		 /* prefix length in bits */
	unsigned scope;		 /* IPv6 scope id, 0 otherwise */
	enum iface_type type;
	bool up; /* administratively up and running */
	bool link_local;
	enum address_use use; /* the interface's */
	int64_t speed_mbps;   /* -1 unknown */
	int nic;	      /* index in nics; -1 if no device is known */
	enum nic_kind kind;   /* that NIC's kind; NIC_ETHERNET without one */
};

/* Write "10.0.0.1", or with a port "10.0.0.1:4711" or "[fd00::1]:4711" (port 0: none); "?" for an
 * address of neither family. */
void inventory_address_format(const struct inventory_address *address, int port, char *text,
			      size_t size);
bool inventory_address_equal(const struct inventory_address *a, const struct inventory_address *b);
/* Is the address in the subnet that family, bytes and prefix of subnet describe? */
bool inventory_address_in_subnet(const struct inventory_address *address,
				 const struct inventory_address *subnet);
/* Derive link_local from family and bytes. */
bool inventory_address_is_link_local(const struct inventory_address *address);

struct inventory {
	char *node;	      /* this node's name: the host name, not resolved */
	bool this_system;     /* taken from the running machine, so binding has an effect */
	char *source;	      /* "this machine", or the path of the XML */
	size_t package_count; /* >= 1 */
	size_t core_count, numa_count, gpu_count, nic_count, address_count;
	int64_t node_core_count; /* with those that this job may not use; -1: unknown */
	struct inventory_core *cores;
	struct inventory_numa *numas;
	struct inventory_gpu *gpus;
	struct inventory_nic *nics;
	struct inventory_address *addresses;
	struct idset *allowed_cpus_os; /* what cgroups and affinity allow */
	uint8_t *path;		       /* enum path_class, [gpu_count][nic_count] */
	int64_t memory_limit_bytes;    /* the cgroup's limit; -1: none */
	int64_t cpu_limit_millis;      /* its CPU time, in thousandths of a CPU; -1: no limit */
	char **notes;		       /* note_count remarks about unusual findings */
	size_t note_count;
};

/* Where to look. NULL or zero selects the running machine; tests set the roots. */
struct inventory_source {
	const char *topology_file; /* hwloc XML (BERTH_TOPOLOGY, --topology), or NULL */
	const char *sys_root;	   /* prefix of /sys, "" by default; e.g. "tests/fixtures/x" */
	const char *nvml_library;  /* "libnvidia-ml.so.1" by default; "": do not use NVML */
	bool no_network;  /* leave out addresses and /sys NICs (an XML of another machine) */
	bool all_devices; /* read the PCI devices even if there is no GPU */
};

/* Make this node's inventory. Loads hwloc once; makes no GPU context; does not block on the
 * network. The process's binding and environment stay as they were.
 *
 * Use topology_file for another machine: HWLOC_XMLFILE, HWLOC_SYNTHETIC and similar variables have
 * no effect. This function hides them from hwloc during the call, so no other thread may change the
 * environment then. It tries an XML in a child process first, because hwloc ends the process on
 * some damaged files.
 *
 * Return 0; -ERR_INPUT if the file is missing or unreadable; -ERR_DATA if this hwloc cannot read
 * the XML (err names an hwloc 3 file as such). *out is untouched on failure; otherwise the caller
 * frees it with inventory_free. */
int inventory_discover(const struct inventory_source *source, struct inventory *out,
		       struct error *err);
/* Append the topology as hwloc XML, as lstopo writes it. Same errors. */
int inventory_topology_xml(const struct inventory_source *source, struct bytes *out,
			   struct error *err);
void inventory_free(
	struct inventory *inventory); /* frees what it holds and clears it; NULL is allowed */

/* Mark the GPUs that a visible-device list allows (CUDA_VISIBLE_DEVICES and similar variables).
 * Entries are ordinals in PCI order, UUIDs or their prefixes, MIG UUIDs, or "MIG-GPU-uuid/gi/ci".
 * "" allows none, NULL allows all. Backslashes from PBS are stripped. As in CUDA, the list ends at
 * the first entry that is not a device. cgroup-relative ordinals count the GPUs that hwloc or NVML
 * shows. Return 0, or -ERR_DATA if an entry matches no GPU or a GPU occurs twice; err then calls
 * the list by name and quotes the entry, and nothing has changed. Call it once: a second list would
 * count among the GPUs that the first allowed. */
int inventory_allow_gpus(struct inventory *inventory, const char *name, const char *list,
			 struct error *err);

/* Mark the GPUs that env's lists allow. Each vendor's list is read as its runtime reads it. NVIDIA
 * reads CUDA_VISIBLE_DEVICES. AMD reads ROCR_VISIBLE_DEVICES and then HIP_VISIBLE_DEVICES, which
 * counts among the GPUs left by the first. Intel reads ZE_AFFINITY_MASK. CUDA's variable also
 * applies to other vendors' GPUs, but only if their own are unset: HIP reads it and Slurm sets it.
 * If the inventory has no GPU, it gets a note about inventory_listed_gpus instead.
 * Return 0, or -ERR_DATA as inventory_allow_gpus. */
int inventory_allow_visible_devices(struct inventory *inventory, const struct env *env,
				    struct error *err);

/* The first variable of env that lists GPUs, or NULL. If no GPU is visible (on a login node, in a
 * container without the driver), its list comes from elsewhere. */
const char *inventory_listed_gpus(const struct env *env);

/* BERTH_TOPOLOGY, or NULL if it is unset or empty. Borrowed from env. */
const char *inventory_topology_file(const struct env *env);

/* Patterns of interfaces, such as eno1,docker*, that no job uses. */
#define INVENTORY_BANNED "BERTH_BANNED_INTERFACES"

/* Make the inventory of the node that env describes, without banned interfaces. It is a capture of
 * another machine if source has a file or BERTH_TOPOLOGY is set. Otherwise it is this machine with
 * the GPUs that its visible-device lists allow; those lists do not apply to a capture. Returns the
 * errors of both functions; errors about BERTH_TOPOLOGY name the variable. */
int inventory_discover_from_env(const struct inventory_source *source, const struct env *env,
				struct inventory *out, struct error *err);

/* Convert an inventory to JSON and back. inventory_from_json reads untrusted data from the network
 * and checks all limits. Cores and paths are packed; see inventory_json.c. */
json_t *inventory_to_json(const struct inventory *inventory);
int inventory_from_json(const json_t *json, struct inventory *out, struct error *err);

#endif
