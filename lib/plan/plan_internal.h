/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of stage plan say to each other; nobody else includes this. */
#ifndef BERTH_PLAN_PLAN_INTERNAL_H
#define BERTH_PLAN_PLAN_INTERNAL_H

#include "plan/plan.h"

/* Ranks that one node may get; more is a slip of the keyboard, not a wish. */
#define PLAN_MAX_RANKS_PER_NODE 4096

/* ---- gpus.c: GPUs of the ranks of one node ---- */

/* Which GPUs a node's ranks get, before cores and NICs are known. */
struct gpu_choice {
	size_t usable_count;
	int *usable;	  /* indices in machine.gpus: allowed and without fault, PCI order */
	int *package;	  /* [machine.gpu_count]: its package; where locality is unknown, the one
			     it is counted to so that such GPUs split evenly; -1: no package */
	int per_rank;	  /* GPUs a rank, 0 when there is no usable GPU */
	int *of_rank;	  /* [rank_count * per_rank]: indices in machine.gpus */
	bool shared;	  /* more ranks than usable GPUs */
	bool own;	  /* each rank sees its own GPUs only */
	bool own_implied; /* ... though nobody asked for it */
};

/* 0, -ERR_USAGE (more GPUs asked for than there are) or -ERR_UNAVAILABLE. */
int gpus_choose(const struct inventory *inventory, const struct plan_request *request,
		int rank_count, struct gpu_choice *out, struct error *err);
void gpu_choice_free(struct gpu_choice *choice);

/* The text that CUDA knows a GPU by: its ordinal in PCI order among the GPUs that CUDA would show
 * without a list, or its UUID where ordinals cannot name it (MIG, a faulty neighbour). */
void gpus_cuda_name(const struct inventory *inventory, size_t gpu, char *text, size_t size);
/* Is the node's list CUDA's to read (NVIDIA GPUs)? */
bool gpus_is_cuda(const struct inventory_gpu *gpu);

/* ---- cores.c ---- */

/* The cores of each rank.
 * owner: [machine.core_count], the local rank that has the core, -1: free.
 * shared_core: [rank_count], a core that the rank shares with others, -1: it has its own (more
 * ranks than cores only). away: [rank_count], true: cores of another package than its GPU's. */
struct core_choice {
	int *owner;
	int *shared_core;
	bool *away;
	int shared_count; /* ranks that share a core */
};
int cores_choose(const struct inventory *inventory, const struct plan_request *request,
		 const struct gpu_choice *gpus, int rank_count, struct core_choice *out,
		 struct error *err);
void core_choice_free(struct core_choice *choice);

/* ---- nics.c ---- */

/* What a NIC is worth for the job: a node's best class is its fabric. */
enum nic_class {
	NIC_CLASS_NONE, /* no name to use it by, or management */
	NIC_CLASS_ETHERNET,
	NIC_CLASS_ROCE,
	NIC_CLASS_FABRIC, /* InfiniBand, Slingshot, EFA, others known as a fabric */
};
/* The class of NIC number nic when it takes part in the job's traffic: the node's best class;
 * NIC_CLASS_NONE when it is out. */
enum nic_class nic_class(const struct inventory *inventory, size_t nic);
/* The best class of the node, and the kind of the NICs that have it. */
enum nic_class nic_best_class(const struct inventory *inventory, enum nic_kind *kind);

/* Fill rank->nics. ranks: all ranks of the node with GPUs and cores; shared NICs are divided. */
int nics_choose(const struct inventory *inventory, const struct gpu_choice *gpus,
		const struct core_choice *cores, struct plan_rank *ranks, size_t rank_count,
		struct error *err);

/* ---- reasons.c ---- */

/* Why each rank has what it has, and what a person should know about the node. */
int plan_explain_node(const struct inventory *inventory, const struct plan_request *request,
		      const struct gpu_choice *gpus, const struct core_choice *cores,
		      struct plan_node *node, struct error *err);

/* ---- network.c ---- */

/* The interface of a card in the chosen subnet; without one in it (routed networks) the best
 * interface of the same kind. index: of the address, or -1. true: it lies in the subnet. */
bool network_iface(const struct inventory *inventory, const struct plan_network *network,
		   int *index);
/* The numeric text of an address, bare. */
void network_format(const struct inventory_address *address, char *text, size_t size);

/* ---- fabric.c ---- */

/* One setting of a profile. when: NULL, or a test of what must hold besides. */
struct fabric_setting {
	enum nic_kind kind;
	const char *name, *value;
	bool (*when)(const struct inventory *inventory, const struct env *env);
	const char *why;    /* for people */
	const char *source; /* where the value comes from */
};
extern const struct fabric_setting fabric_settings[]; /* ends with name NULL */

/* Are there GH200 (their LL128 over Slingshot is a case of its own)? A setting's when. */
bool fabric_has_gh200(const struct inventory *inventory, const struct env *env);
/* What a fabric is called for people: "InfiniBand". */
const char *fabric_title(enum nic_kind kind);

/* ---- plan.c ---- */

/* Append a formatted sentence to a list of malloced strings. 0 or -ERR_UNAVAILABLE. */
int text_list_add(char ***list, size_t *count, struct error *err, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
void text_list_free(char **list, size_t count);

#endif
