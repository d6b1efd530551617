/* SPDX-License-Identifier: BSD-3-Clause */
/* The state of a job at the controller, shared by job.c and job_agents.c alone. */
#ifndef BERTH_CONTROLLER_JOB_INTERNAL_H
#define BERTH_CONTROLLER_JOB_INTERNAL_H

#include "base/loop.h"
#include "controller/controller.h"
#include "controller/end.h"
#include "controller/hang.h"
#include "controller/job.h"
#include "controller/job_start.h"
#include "controller/job_time.h"
#include "overlay/gather.h"

enum job_phase {
	JOB_PHASE_LAUNCH, /* agents are on their way */
	JOB_PHASE_INVENTORIES,
	JOB_PHASE_PROBE,
	JOB_PHASE_RUN, /* START is sent */
	JOB_PHASE_END, /* STOP is sent */
	JOB_PHASE_OVER,
};

struct job_node {
	bool inventory_received, started, done;
};

struct job {
	const struct job_request *request;
	const struct job_sink *sink;
	struct job_result *result;
	struct loop *loop;
	struct controller *controller;
	struct loop_source signals, drained;
	enum job_phase phase;
	int64_t deadline_ms; /* of the phase; 0: none */
	size_t node_count, inventory_received, started;
	struct job_node *nodes;
	struct job_start start;
	struct job_end end;
	struct job_hang hang;
	struct job_time time;
	struct gathers gathers;
	int64_t woke_ms, tick_ms;
	int64_t start_sent_ms; /* START was sent; 0 */
	struct {
		int signal;
		int64_t at_ms;
	} last_signal;
	int interrupts;
};

/* job_agents.c: what the agents report. */
struct controller_events job_controller_events(struct job *job);

/* job.c, the chain */
void job_begin_probes(struct job *job); /* JOB_PHASE_INVENTORIES -> JOB_PHASE_PROBE */
void job_begin_ranks(struct job *job);	/* -> JOB_PHASE_RUN, or the job fails */
/* An agent was sent that signal: pass it on to all ranks, unless it is the one that was passed on
 * just now. */
void job_handle_signal(struct job *job, int number);
/* The job fails of this, unless it has failed before; see job_end_fail. */
bool job_fail(struct job *job, int code, long node, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
/* End the ranks once the first cause is settled. */
void job_settle(struct job *job, int64_t now_ms);

#endif
