/* SPDX-License-Identifier: BSD-3-Clause */
/* From the nodes' inventories to running ranks: which address, the plan, what each node is sent. */
#ifndef BERTH_CONTROLLER_JOB_START_H
#define BERTH_CONTROLLER_JOB_START_H

#include "controller/controller.h"
#include "controller/job.h"
#include "plan/plan.h"

/* Filled in by job_start.c; job.c and job_agents.c read what came of it. */
struct job_start {
	const struct job_request *request;
	const struct job_sink *sink;
	struct inventory *inventories; /* [nodes of the allocation] */
	int port;		       /* MASTER_PORT, held by node 0 */
	size_t address_count;	       /* of node 0 */
	int *reached, *shared;	       /* [address_count]: see struct plan_reach */
	size_t reach_nodes;	       /* that have answered */
	struct plan plan;	       /* zeroed before job_start_make_plan */
	bool planned;
	size_t nodes_with_ranks;
};

/* request and sink are borrowed. job_start_free it, also after a failure. */
int job_start_begin(struct job_start *start, const struct job_request *request,
		    const struct job_sink *sink, struct error *err);
void job_start_free(struct job_start *start);

/* The text of a node's INVENTORY. */
int job_start_add_inventory(struct job_start *start, size_t node, const json_t *text,
			    struct error *err);
/* All inventories are here: ask the nodes which addresses of node 0 they reach. *deadline_ms: when
 * their answers are late. */
int job_start_probe(struct job_start *start, struct controller *controller, int64_t *deadline_ms,
		    struct error *err);
/* True: all nodes have answered. */
bool job_start_handle_probed(struct job_start *start, const struct wire_message *message);

int job_start_make_plan(struct job_start *start, struct error *err);
/* The node of a rank, by the plan; -1: there is no such rank. */
long job_start_find_rank(const struct job_start *start, int64_t rank);
/* Send the plan, the environments and the program: the ranks start. */
int job_start_send(const struct job_start *start, struct controller *controller, struct error *err);
/* Call the driver's starting, if there is a driver. */
void job_start_notify_driver(const struct job_start *start, struct job *job);

/* job_check.c: what the program and the log directory make worth a note, once the plan is there. */
void job_check_world_size(const char *program, const struct env *env, int world_size,
			  const struct job_sink *sink);
void job_check_logs(const char *log_dir, int world_size, const struct job_sink *sink);

#endif
