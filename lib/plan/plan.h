/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage plan: from the allocation and every node's inventory to what each rank gets. Pure: no I/O,
 * no clock, no environment except the one passed in. The same input gives the same plan.
 *
 *   plan.c                      ranks per node; calls the parts below in order, for all nodes
 *   gpus.c                      which GPUs a rank gets; assembles the ranks of one node
 *   core_domains.c              from which packages a rank takes cores
 *   cores.c                     which of those cores
 *   nics.c                      which NICs
 *   reasons.c                   the reasons and warnings as sentences
 *   network.c                   rendezvous address, each node's interface
 *   fabric.c                    what each kind of fabric needs set, as a table with sources
 *   environment.c               the environment of a rank, and whose value wins
 *   environment_network.c       the network part of it
 *   lint.c                      variables that do not do what the user meant
 *   claims.c                    what other runs of the job use
 *   plan_json.c                 the plan as JSON, and one node's part of it back */
#ifndef BERTH_PLAN_PLAN_H
#define BERTH_PLAN_PLAN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "hostlist/idset.h"
#include "inventory/inventory.h"

struct plan_gpu {
	char pci[20];
	int index;   /* in PCI order among all GPUs of the node */
	int ordinal; /* in this rank's CUDA_VISIBLE_DEVICES */
	char *uuid;  /* or NULL */
};

struct plan_nic {
	char net[16], rdma[64], pci[20]; /* "" if it has none */
	int port;
	enum nic_kind kind;
	enum path_class path; /* to the rank's first GPU, or to its cores if it has no GPU */
	enum nic_state state;
};

struct plan_rank {
	int rank, local_rank;
	size_t gpu_count, nic_count;
	struct plan_gpu *gpus;
	struct plan_nic *nics;
	/* Whole cores, disjoint between the ranks of a node. If there are more ranks than cores,
	 * ranks share them and a warning says so. */
	struct idset *cpus_os;
	struct idset *numa_os;
	/* OMP_NUM_THREADS: the number of the rank's cores, or its share of the cgroup's CPU time */
	int threads;
	char *why;
};

struct plan_node {
	char *node;
	size_t node_rank; /* place among the nodes with ranks (NODE_RANK); 0 if it has none */
	size_t rank_count;
	struct plan_rank *ranks;
	char *visible_devices; /* the list of visible devices of all its ranks (CUDA_VISIBLE_DEVICES
				  or plan_gpu_vendor's); NULL: do not set it */
	char iface[16];	       /* the interface in the chosen subnet; "" if none is needed */
	size_t warning_count;
	char **warnings;
	struct idset *free_cpus_os; /* left free on purpose, and reported */
};

/* Sizes that the user has given to another launcher, which the job must have. */
struct plan_sizes {
	int ranks, nodes, ranks_per_node; /* 0: not given */
	const char *source;		  /* a file, or the launcher */
};

struct plan_network;

struct plan_request {
	/* Ranks on all nodes. 0 selects the default: one per GPU, else one per slot, at most one
	 * per core. */
	int ranks;
	int ranks_per_node;    /* 0: option absent */
	int gpus_per_rank;     /* 0: option absent */
	bool gpus_visible_own; /* --gpus-visible own */
	bool all_cores;	       /* share out also the cores that would stay free */
	/* Other runs or roles probably use the same nodes: the ranks get only what they would have
	 * if each GPU, or without GPUs each slot, had a rank. */
	bool part;
	bool rest;	    /* with part: without a number of ranks, what others leave */
	bool no_gpus;	    /* the ranks get none, and see none */
	int cores_per_rank; /* set by plan_make for that, on nodes without GPUs; 0: an equal share
			     */
	bool per_node;	    /* one process per node with PET_* (--per-node) */
	const char *iface;  /* --iface, or NULL */
	const char *subnet; /* --subnet, or NULL */
	const char *master_addr; /* --master-addr: a numeric address, or NULL */
	/* All nodes are simulated on this machine. Unless iface, subnet or master_addr is given,
	 * ranks then use loopback, which always works. */
	bool single_host;
	int port; /* MASTER_PORT chosen by rank 0's agent; 0: not known yet */
	int attempt, max_restarts;
	size_t spares;			/* the last nodes, which get no ranks */
	const struct plan_sizes *sizes; /* NULL: none */
	/* For plan_environment: the network in which nodes of other roles reach this one; NULL: the
	 * plan's own. */
	const struct plan_network *outside;
	/* For plan_environment: the launcher that started the ranks, or NULL: berth. Then the
	 * result lacks what describes the job, and its numbers, which the caller has put in the
	 * plan, do not replace others; a negative one is unknown. */
	const char *outer;
	/* Likewise, what is known once the ranks start: the directory of their node's agent, the
	 * names of the run and of those around it, and the block of ports, NULL without --ports.
	 * dir NULL: not yet, and the result lists what follows as ENV_FROM_START. */
	const char *dir, *run, *ports;
};

/* What a user may say about where a job runs: the stages up to the plan need no more. */
struct plan_options {
	struct alloc_request alloc;
	struct plan_request plan;
};

/* What the ranks find in their agent's directory. The last two have the local rank's number. */
#define PLAN_FILE "plan.json"
#define PLAN_FILE_STOP "stop"
#define PLAN_FILE_END_TIME "end-time"
#define PLAN_FILE_REPORT "report.json"
#define PLAN_FILE_HEARTBEAT "heartbeat-%d"
#define PLAN_FILE_ERROR "error-%d.json"

/* Which of the first node's addresses other nodes reached, as the probes found. reached[i] is the
 * number of nodes, the first included, that got the controller's answer on
 * inventories[0].addresses[i]. shared[i] is a node that owns the same address, or -1. Pass a NULL
 * reach for one node, which has nothing to try. */
struct plan_reach {
	size_t address_count;
	const int *reached;
	const int *shared;
	const int *stalled; /* a node that connects to it, but passes no data, or -1; NULL: none */
};

struct plan_network {
	bool single_node;
	char address[64]; /* numeric, bare: MASTER_ADDR */
	char subnet[64];  /* CIDR of the chosen address; "" on one node */
	char iface[16];	  /* on the first node */
	enum nic_kind kind;
	char *why;     /* for people; also lists the refused addresses */
	char *warning; /* slower-network warning: a faster network was unusable, and why; or NULL */
};

struct plan {
	char *job_id;
	int world_size;
	int attempt;
	int port;
	int64_t end_time;
	size_t node_count;
	size_t nodes_with_ranks; /* without spares and others that have none: NNODES */
	struct plan_node *nodes;
	struct plan_network network;
	size_t warning_count;
	char **warnings;
	/* The nodes with ranks and their counts as Slurm writes them, "n[1-2]" and "4(x2)". NULL in
	 * a plan read from JSON. */
	char *node_list, *tasks_list;
};

/* Map rank_count ranks of one node to GPUs, cores and NICs; ranks are numbered from first_rank.
 * Return 0; -ERR_USAGE if rank_count < 1 or more GPUs per rank are requested than exist;
 * -ERR_UNAVAILABLE if memory is out. */
int plan_map_node(const struct inventory *inventory, const struct plan_request *request,
		  int first_rank, int rank_count, struct plan_node *out, struct error *err);
void plan_node_free(struct plan_node *node);

/* Choose the rendezvous address. inventories has count entries in node order; inventories[0] is the
 * first node's. Return 0, or -ERR_NETWORK if none fits: err names each candidate and why it was
 * refused. */
int plan_network(const struct inventory *inventories, size_t count,
		 const struct plan_request *request, const struct plan_reach *reach,
		 struct plan_network *out, struct error *err);
void plan_network_free(struct plan_network *network);
/* A node's own address in that network, numeric; the first node's if it has none there. */
void plan_node_address(const struct inventory *inventory, const struct plan_network *network,
		       char *text, size_t size);
/* Check the text of --master-addr, --iface and --subnet before any inventory is known. Return 0, or
 * -ERR_USAGE for an invalid address. */
int plan_network_check(const struct plan_request *request, struct error *err);

/* Rank a network before its speed counts. 2: a fabric or RDMA-capable NIC; 1: Ethernet or unknown;
 * 0: a management NIC beside those. */
int plan_address_priority(const struct inventory *inventory,
			  const struct inventory_address *address);

/* Mark the GPUs that other runs of the job use, and the cores on a node without GPUs. claims: an
 * array as claims_read returns it (process/claims.h), or NULL; earlier marks go. Ranks get no
 * marked GPU, and those of a part no marked core. */
int plan_apply_claims(struct inventory *inventory, const json_t *claims, struct error *err);
/* The members uses and what of a claim on what a node's ranks use. A new reference, or NULL. */
json_t *plan_claim(const struct plan_node *node);
/* Do the ranks fit on what has no such marks? why: what has marks and by whom, or "". need: what
 * the ranks use, "2 GPUs". A run that waits without a number of ranks needs all of its nodes. */
struct plan_fit {
	bool fits;
	bool cores; /* it is about cores, on nodes without GPUs */
	char why[300], need[40];
};
struct plan_fit plan_fit(const struct alloc *alloc, const struct inventory *inventories,
			 size_t count, const struct plan_request *request);
/* Roles of a job share no GPUs, but may share cores. Return 0, or -ERR_USAGE if they do not fit. */
int plan_refuse_sharing(const struct plan_fit *fit, struct error *err);

/* Compute how many ranks each node gets, in node order; the sum is the world size. counts has room
 * for count entries. Return 0, or -ERR_USAGE if the request cannot be met. */
int plan_rank_counts(const struct alloc *alloc, const struct inventory *inventories, size_t count,
		     const struct plan_request *request, int *counts, struct error *err);

/* Make the whole plan. The caller frees *out with plan_free. */
int plan_make(const struct alloc *alloc, const struct inventory *inventories, size_t count,
	      const struct plan_request *request, const struct plan_reach *reach,
	      const struct env *env, struct plan *out, struct error *err);
void plan_free(struct plan *plan);
/* If a node shows none of the GPUs that the scheduler granted there, because the driver is not
 * loaded, write a warning and return true: the job would silently run on the CPU. */
bool plan_unseen_gpus(const struct alloc *alloc, const struct inventory *inventories, char *text,
		      size_t size);

/* The vendor whose list of visible devices selects a node's GPUs: NVIDIA, else AMD, else Intel. */
struct plan_gpu_vendor {
	uint16_t id;	    /* PCI */
	const char *list;   /* the variable */
	const char *device; /* PyTorch's name of its devices */
};
const struct plan_gpu_vendor *plan_gpu_vendor(const struct inventory *inventory);

/* The changes that berth makes in the environment of one rank, each with provenance and reason: all
 * but the variables of the PMIx server and the secret of the store, which only the agent knows. A
 * variable that the user set stays; it is in the result as ENV_FROM_USER with the reason. env is
 * the environment the job was started in. The caller frees *out with env_free. Return 0, or
 * -ERR_UNAVAILABLE if memory is out. */
int plan_environment(const struct plan *plan, const struct inventory *inventory, size_t node_index,
		     size_t local_rank, const struct plan_request *request, const struct env *env,
		     struct env **out, struct error *err);

/* What is known about a kind of fabric, for people. fabric.c also holds its settings. */
struct plan_fabric {
	enum nic_kind kind;
	const char *title;     /* "InfiniBand" */
	const char *driven_by; /* what carries NCCL's data on it */
	const char *settings;  /* what berth sets, and why nothing else */
	const char *source;
};
const struct plan_fabric *plan_fabric(enum nic_kind kind); /* never NULL */

/* Sentences about variables in env that do not do what the user meant: an interface that
 * no node has, a value that the network does not suit... A JSON array of strings. */
json_t *plan_lint(const struct env *env, const struct inventory *inventories, size_t count);

/* berth.plan/1 of one node; the network of the whole plan. New references; NULL if memory is out.
 */
json_t *plan_node_to_json(const struct plan_node *node);
json_t *plan_network_to_json(const struct plan_network *network);

/* The content of BERTH_PLAN_FILE, what one node's processes need of the plan. It is the node's
 * berth.plan/1 with the member "job": {job_id, world_size, attempt, port, end_time, node_count,
 * node_index, network}, which counts only nodes with ranks. plan_file_from_json leaves the other
 * nodes of *out empty (no name, no ranks). The caller frees *out with plan_free. */
json_t *plan_file_to_json(const struct plan *plan, size_t node_index);
int plan_file_from_json(const json_t *json, struct plan *out, size_t *node_index,
			struct error *err);

#endif
