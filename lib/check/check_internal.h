/* SPDX-License-Identifier: BSD-3-Clause */
/* What the files of lib/check and lib/check/probes share. No other room includes it. */
#ifndef BERTH_CHECK_CHECK_INTERNAL_H
#define BERTH_CHECK_CHECK_INTERNAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "check/check.h"
#include "inventory/inventory.h"
#include "overlay/secret.h"

/* Each answer of a prober is a line of stdout with this prefix. It tells answers from what
 * libraries print. */
#define CHECK_LINE_PREFIX "berth-check "

/* ---- a node's side ---- */

/* What a probe knows on its node. */
struct prober {
	const struct env *env;
	const char *version;
	const json_t *begin; /* the first question: {node, count, names, token, checkpoint, fabric,
				container} */
	size_t node_index, node_count;
	const char *token; /* identifies this check; safe in file names */
	const char *checkpoint;
	struct secret secret; /* shared by the probers of this check only */
	int ring_fd;	      /* listens for the neighbour in the ring */
};

/* ---- the controller's side ---- */

struct check_node {
	const char *name;
	json_t *answers; /* object: probe name -> what its collect returned; "NAME?": what its run
			    returned */
	json_t *results; /* array, filled by the judges */
	bool missing;	 /* no agent, a lost agent, or a prober that does not answer */
	bool listening;	 /* the prober listens */
	int port, ring_port;
	int64_t sent_us;			 /* when the clock question was sent */
	int64_t clock_offset_us, clock_error_us; /* from the best exchange */
	double best_mbps;	  /* from the previous node in the ring, best of earlier rounds */
	int clock_exchanges_left; /* exchanges still to do */
};

struct check {
	const struct check_request *request;
	size_t count;
	struct check_node *nodes;
	struct inventory *inventories; /* taken from the job, [count]; NULL until it starts */
	bool simulated;
	struct plan plan; /* one rank per node, by the matrix */
	bool planned;
	struct error plan_error; /* why planned is false */
};

enum check_result { CHECK_OK, CHECK_NOTE, CHECK_FAULT, CHECK_SKIPPED };

/* Add a result to a node; fix NULL or "": there is nothing to fix. */
void check_add(struct check *check, size_t node, const char *probe, enum check_result result,
	       const char *fix, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* What the probe reported from the node, or NULL. Borrowed. */
const json_t *check_answer(const struct check *check, size_t node, const char *probe);
/* A string member of the answer; "" if absent. */
const char *check_text(const json_t *answer, const char *key);

/* Could other nodes use the address? It must be up, belong to a device, and be neither loopback nor
 * link-local. Simulated nodes use loopback. */
bool check_address_usable(const struct check *check, const struct inventory_address *address);
bool check_same_subnet(const struct inventory_address *a, const struct inventory_address *b);
/* An address of the node in the subnet of another; usable: only one that check_address_usable
 * accepts. NULL: none. A node without one is reported by the network probe. */
const struct inventory_address *check_address_in_subnet(const struct check *check, size_t node,
							const struct inventory_address *other,
							bool usable);
/* Is a better than b? The NIC's kind counts before its speed. Each with its node's inventory. */
bool check_better_address(const struct inventory *inventory_a, const struct inventory_address *a,
			  const struct inventory *inventory_b, const struct inventory_address *b);
/* The index of the address that the ring uses at a node: one of the plan's interface, preferably in
 * its subnet. -1: none. */
int check_chosen_address(const struct check *check, size_t node);
/* An outcome in the reachability matrix (see check_run); NULL if unknown. */
const char *check_reach_outcome(const struct check *check, size_t from, size_t to, size_t address);

/* check_plan.c: one rank per node, the first node's addresses reached as the matrix says; port:
 * MASTER_PORT. Sets planned and plan, or plan_error. */
void check_make_plan(struct check *check, int port);
/* result.c: make berth.check/1. NULL if memory is out. */
json_t *check_to_json(const struct check *check);

/* ---- probes ---- */

struct check_probe {
	const char *name;
	/* On each node at the beginning, each in a thread of its own; NULL: nothing to look at.
	 * A new reference; NULL: nothing to report. */
	json_t *(*collect)(const struct prober *prober);
	/* The same when the controller asks later. */
	json_t *(*run)(const struct prober *prober, const json_t *question);
	/* At the controller, when all possible answers have arrived; inventories are set. One of
	 * the two: for all nodes at once, or for each node with what its collect returned. */
	void (*judge)(struct check *check);
	void (*judge_node)(struct check *check, size_t node, const json_t *answer);
};
extern const struct check_probe probe_versions, probe_memlock, probe_shm, probe_checkpoint,
	probe_gpus, probe_plugin, probe_container, probe_names, probe_clock, probe_network,
	probe_reach, probe_port, probe_ring, probe_variables;
extern const struct check_probe *const check_probes[]; /* ends with NULL */

/* Add what the probe finds to the results of the nodes. */
void check_judge(struct check *check, const struct check_probe *probe);

/* Remove what the checkpoint probe's collect wrote. */
void probe_checkpoint_clean(const struct prober *prober);
/* reach and port: connect to the addresses of the question. */
json_t *probe_reach_run(const struct prober *prober, const json_t *question);
/* ring.c */
json_t *probe_ring_run(const struct prober *prober, const json_t *question);

/* What the controller asks of the tasks: a new reference; NULL: memory out. */
json_t *probe_reach_question(const struct check *check, size_t node);
json_t *probe_port_question(const struct check *check, size_t node);
json_t *probe_ring_question(const struct check *check, size_t node);
/* Can the ring include all nodes? It needs a plan, and each node must be reachable from the one
 * before it. */
bool probe_ring_possible(const struct check *check);
/* Is a link slow? Then keep the best rates so far, forget the answers and return true: the ring
 * must run once more before the link counts as slow. */
bool probe_ring_should_repeat(struct check *check);
/* How long a node may take for its row of the reachability matrix, in milliseconds. */
int probe_reach_ms(const struct check *check);
#define PROBE_RING_MS 20000

#endif
