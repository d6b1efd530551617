/* SPDX-License-Identifier: BSD-3-Clause */
/* Shared by the files of stage plan; no other stage includes this. */
#ifndef BERTH_PLAN_PLAN_INTERNAL_H
#define BERTH_PLAN_PLAN_INTERNAL_H

#include "plan/plan.h"

/* The most ranks on one node. A larger number is a typing error, not a request. */
#define PLAN_MAX_RANKS_PER_NODE 4096

/* ---- scratch.c ---- */

/* Working memory of one call, freed at once. failed remembers that memory was out, so that a caller
 * that asks for several arrays checks once. */
struct scratch {
	struct scratch_block *blocks;
	bool failed;
};
/* A zeroed array, or NULL if memory is out. */
void *scratch_array(struct scratch *scratch, size_t count, size_t size);
void scratch_free(struct scratch *scratch);

/* A list of warnings in the making. rc keeps the first failure, so that what warns reads as a
 * list. */
struct warnings {
	char ***list;
	size_t *count;
	struct error *err;
	int rc;
};
void text_list_free(char **list, size_t count);
void warn(struct warnings *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- gpus.c: GPUs of the ranks of one node ---- */

/* Which GPUs the ranks of a node get, chosen before cores and NICs. */
struct gpu_choice {
	size_t usable_count;
	int *usable; /* indices in inventory.gpus: allowed and without fault, in PCI order */
	/* [inventory.gpu_count]: the GPU's package; -1: none. GPUs of unknown locality are assigned
	 * to packages so that they split evenly. */
	int *package;
	int per_rank;	  /* GPUs per rank; 0 if no GPU is usable */
	int *of_rank;	  /* [rank_count * per_rank]: indices in inventory.gpus */
	bool none;	  /* the ranks are to have none */
	bool shared;	  /* more ranks than usable GPUs */
	bool own;	  /* each rank sees only its own GPUs */
	bool own_implied; /* own is set although the user did not request it */
	bool used_only;	  /* no rank sees an unused GPU: other runs will use those */
};

/* Return 0, -ERR_USAGE (more GPUs requested than exist) or -ERR_UNAVAILABLE. The arrays of *out are
 * scratch's. */
int gpus_choose(const struct inventory *inventory, const struct plan_request *request,
		int rank_count, struct scratch *scratch, struct gpu_choice *out, struct error *err);

/* The text by which a list of visible devices names a GPU: the ordinal in PCI order among the GPUs
 * that the library shows without a list, or the UUID if ordinals cannot name the GPU (MIG, a faulty
 * neighbour, GPUs that a container hides). Return false for another vendor's GPU. */
bool gpus_list_name(const struct inventory *inventory, size_t gpu, char *text, size_t size);

/* ---- claims.c ---- */

/* Allowed, without fault, and not used by another run. */
bool gpu_usable(const struct inventory_gpu *gpu);
/* It would be usable, but another run uses it. */
bool gpu_claimed(const struct inventory_gpu *gpu);

/* ---- counts.c: what a node has for the ranks, and how much of it other runs leave ---- */

/* GPUs; cores if the node has none and the run waits. */
struct room {
	bool cores;
	int all, left, per_rank;
	const char *by; /* who uses some of it, or NULL */
};
struct room room_of(const struct alloc_node *node, const struct inventory *inventory,
		    const struct plan_request *request);
/* How many of the GPUs are usable. */
int usable_gpus(const struct inventory *inventory);

/* ---- cores.c ---- */

/* The owner of a core that none of the ranks has. */
enum {
	CORE_FREE = -1,
	CORE_LEFT = -2, /* to other runs */
};

/* The cores of each rank.
 * - owner [inventory.core_count]: the local rank that has the core, or CORE_*.
 * - shared_core [rank_count]: a core that the rank shares with others (only if there are more
 *   ranks than cores); -1: it has its own.
 * - away [rank_count]: its cores belong to another package than its GPU's.
 * The arrays are scratch's. */
struct core_choice {
	int *owner;
	int *shared_core;
	bool *away;
	int shared_count; /* ranks that share a core */
};
int cores_choose(const struct inventory *inventory, const struct plan_request *request,
		 const struct gpu_choice *gpus, int rank_count, struct scratch *scratch,
		 struct core_choice *out, struct error *err);

/* ---- nics.c ---- */

/* The value of a NIC for the job. The best class on a node is its fabric. */
enum nic_class {
	NIC_CLASS_NONE, /* no name to address it by, or management */
	NIC_CLASS_ETHERNET,
	NIC_CLASS_ROCE,
	NIC_CLASS_FABRIC, /* InfiniBand, Slingshot, EFA, or another known fabric */
};
/* The class of NIC number nic if it carries the job's traffic, which then is the node's best class;
 * else NIC_CLASS_NONE. */
enum nic_class nic_class(const struct inventory *inventory, size_t nic);
/* The best class on the node, and the kind of the NICs that have it. */
enum nic_class nic_best_class(const struct inventory *inventory, enum nic_kind *kind);

/* Fill each rank's nics. node holds all its ranks with GPUs and cores; NICs that several ranks
 * could use are divided among them. */
int nics_choose(const struct inventory *inventory, const struct gpu_choice *gpus,
		const struct core_choice *cores, struct plan_node *node, struct scratch *scratch,
		struct error *err);

/* ---- reasons.c ---- */

/* Explain why each rank has what it has, and add the warnings for the node. */
int plan_explain_node(const struct inventory *inventory, const struct gpu_choice *gpus,
		      const struct core_choice *cores, struct plan_node *node, struct error *err);

/* ---- network.c ---- */

/* Find a node's interface in the chosen subnet. If it has none (routed networks), take its best
 * interface of the same kind. *index is the address, or -1. Return true if the address lies in the
 * subnet. */
bool network_iface(const struct inventory *inventory, const struct plan_network *network,
		   int *index);

/* ---- fabric.c ---- */

/* One setting of a profile. when is NULL, or a further condition. */
struct fabric_setting {
	enum nic_kind kind;
	const char *name, *value;
	bool (*when)(const struct inventory *inventory, const struct env *env);
	const char *why;    /* for people */
	const char *source; /* where the value comes from */
};
extern const struct fabric_setting fabric_settings[]; /* ends with name NULL */

/* Does the node have GH200? Their LL128 over Slingshot is a special case. A setting's when. */
bool fabric_has_gh200(const struct inventory *inventory, const struct env *env);
/* The fabric's name for people: "InfiniBand". */
const char *fabric_title(enum nic_kind kind);

#endif
