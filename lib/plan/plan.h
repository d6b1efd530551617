/* SPDX-License-Identifier: BSD-3-Clause */
/* Stage plan: from the allocation and every node's card to what each rank gets. Pure: no I/O,
 * no clock, no environment but the one passed in; the same input gives the same plan.
 *
 *   plan.c     how many ranks a node gets; the parts below in order, for all nodes
 *   gpus.c     which GPUs a rank gets; the ranks of one node put together
 *   core_domains.c   which package's cores; cores.c: which of them
 *   nics.c     which NICs
 *   reasons.c  the reasons and warnings, in words
 *   network.c  head address, each node's interface
 *   fabric.c   what each kind of fabric wants set, as a table with sources
 *   environment.c  the environment of a rank, and who wins; environment_network.c: of the network
 *   lint.c     variables that will not do what their author meant
 *   plan_write.c, plan_read.c  the plan as JSON and back */
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
	char net[16], rdma[64], pci[20]; /* "" where none */
	int port;
	enum nic_kind kind;
	enum path_class path; /* to the rank's first GPU; without a GPU to its cores */
	enum nic_state state;
};

struct plan_rank {
	int rank, local_rank;
	size_t gpu_count, nic_count;
	struct plan_gpu *gpus;
	struct plan_nic *nics;
	struct idset *cpus_os; /* whole cores; disjoint between the ranks of a node unless
				  there are more ranks than cores (said in warnings) */
	struct idset *numa_os;
	int threads; /* cores of the rank: OMP_NUM_THREADS */
	char *why;
};

struct plan_node {
	char *node;
	size_t rank_count;
	struct plan_rank *ranks;
	char *visible_devices; /* CUDA_VISIBLE_DEVICES of all its ranks; NULL: not to be set */
	char iface[16];	       /* the interface in the chosen subnet; "" when none is needed */
	size_t warning_count;
	char **warnings;
	struct idset *free_cpus_os; /* left free on purpose, reported */
};

struct plan_request {
	int ranks; /* of all nodes; 0: by default one a GPU, else one a slot, at most the cores */
	int ranks_per_node;	 /* 0: not said */
	int gpus_per_rank;	 /* 0: not said */
	bool gpus_visible_own;	 /* --gpus-visible own */
	bool all_cores;		 /* deal out the cores that would stay free */
	bool per_node;		 /* one process a node with PET_* (--per-node) */
	const char *iface;	 /* --iface, or NULL */
	const char *subnet;	 /* --subnet, or NULL */
	const char *master_addr; /* --master-addr: a numeric address, or NULL */
	bool single_host; /* all nodes are pretended ones of this machine: where none of those three
			     is given, loopback is the address that certainly serves */
	int port;	  /* MASTER_PORT chosen by rank 0's agent, 0: not yet known */
	int attempt;
	size_t spares;				    /* the last nodes, which get no ranks */
	const char *stop_file, *plan_file, *report; /* for BERTH_*; NULL: absent */
};

/* The head's addresses that nodes reached: what the exchange found out.
 * reached[i]: how many nodes, the head among them, got the head's answer on
 * cards[0].addresses[i]; shared[i]: a node that owns the same address itself, or -1. NULL reach:
 * one node, nothing to try. */
struct plan_reach {
	size_t address_count;
	const int *reached;
	const int *shared;
};

struct plan_network {
	bool single_node;
	char address[64]; /* numeric, bare: MASTER_ADDR */
	char subnet[64];  /* CIDR of the chosen address, "" on one node */
	char iface[16];	  /* on the head */
	enum nic_kind kind;
	char *why;     /* for people, with the refused ones */
	char *warning; /* a faster network that could not be taken, and why; or NULL */
};

struct plan {
	char *job_id;
	int world_size;
	int attempt;
	int port;
	int64_t end_time;
	size_t node_count;
	struct plan_node *nodes;
	struct plan_network network;
	size_t warning_count;
	char **warnings;
	/* The nodes with ranks and their counts as Slurm writes them, "n[1-2]" and "4(x2)"; NULL in
	 * a plan read back. */
	char *node_list, *tasks_list;
};

/* GPUs, cores and NICs of rank_count ranks on one node; ranks are numbered from first_rank.
 * 0; -ERR_USAGE: rank_count < 1 or more GPUs a rank than there are; -ERR_UNAVAILABLE: memory. */
int plan_map_node(const struct inventory *inventory, const struct plan_request *request,
		  int first_rank, int rank_count, struct plan_node *out, struct error *err);
void plan_node_free(struct plan_node *node);

/* The head's address. cards: count of them in node order, cards[0] the head's.
 * -ERR_NETWORK when none fits: err names each candidate and why it was refused. */
int plan_network(const struct inventory *inventories, size_t count,
		 const struct plan_request *request, const struct plan_reach *reach,
		 struct plan_network *out, struct error *err);
void plan_network_free(struct plan_network *network);
/* --master-addr, --iface and --subnet as words, before any card is there. -ERR_USAGE: what is no
 * address. */
int plan_network_check(const struct plan_request *request, struct error *err);

/* What a network is worth before its speed counts: 2: a fabric's or RDMA-capable NIC, 1: Ethernet
 * or unknown, 0: management beside those. */
int plan_address_priority(const struct inventory *inventory,
			  const struct inventory_address *address);

/* How many ranks each node gets, in node order; the sum is the world size.
 * counts: room for card count. -ERR_USAGE when the request cannot be met. */
int plan_rank_counts(const struct alloc *alloc, const struct inventory *inventories, size_t count,
		     const struct plan_request *request, int *counts, struct error *err);

/* The whole plan. */
int plan_make(const struct alloc *alloc, const struct inventory *inventories, size_t count,
	      const struct plan_request *request, const struct plan_reach *reach,
	      const struct env *env, struct plan *out, struct error *err);
void plan_free(struct plan *plan);

/* What berth changes in the environment of one rank, each with provenance and reason; what the
 * user has set himself stays and is in the result with ENV_FROM_USER and the reason.
 * env: the environment the job was started in. -ERR_UNAVAILABLE: memory. *out: env_free it. */
int plan_environment(const struct plan *plan, const struct inventory *inventory, size_t node_index,
		     size_t local_rank, const struct plan_request *request, const struct env *env,
		     struct env **out, struct error *err);

/* What is known of a kind of fabric, for people; fabric.c has its settings. */
struct plan_fabric {
	enum nic_kind kind;
	const char *title;     /* "InfiniBand" */
	const char *driven_by; /* what carries NCCL's data there */
	const char *settings;  /* what is set, and why that is all */
	const char *source;
};
const struct plan_fabric *plan_fabric(enum nic_kind kind); /* never NULL */

/* Sentences about variables in env that will not do what their author meant (a misspelt
 * NCCL_SOCKET_IFRAME, an interface that no card has...). A JSON array of strings. */
json_t *plan_lint(const struct env *env, const struct inventory *inventories, size_t count);

/* berth.plan/1 of one node; the whole plan (for the wire). */
json_t *plan_node_to_json(const struct plan_node *node);
json_t *plan_to_json(const struct plan *plan);
int plan_from_json(const json_t *json, struct plan *out, struct error *err);

/* What one node's processes need of the plan, BERTH_PLAN_FILE: its berth.plan/1 with the member
 * "job": {job_id, world_size, attempt, port, end_time, node_count, node_index, network}.
 * Read back, the other nodes of *out are empty (no name, no ranks). *out: plan_free it. */
json_t *plan_file_to_json(const struct plan *plan, size_t node_index);
int plan_file_from_json(const json_t *json, struct plan *out, size_t *node_index,
			struct error *err);

#endif
