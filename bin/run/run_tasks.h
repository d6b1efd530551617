/* SPDX-License-Identifier: BSD-3-Clause */
/* Ranks as tasks of the cluster's own step: engines with start_tasks. */
#ifndef BERTH_BIN_RUN_RUN_TASKS_H
#define BERTH_BIN_RUN_RUN_TASKS_H

#include "controller/job.h"
#include "run/run.h"

struct run_tasks {
	struct job_driver driver; /* for job_request */
	const char **argv;	  /* what the agents start instead of the program */
	/* the rest is run_tasks.c's */
	const struct run_setup *setup;
	struct job *job;
	int *counts; /* ranks a node */
	struct launcher_process process;
	int pidfd;
	bool started;
	int64_t ended_ms;
	char *failure;
};

/* Fill tasks (zeroed) for argv; adds the token to setup->env. run_tasks_end it in any case. */
int run_tasks_prepare(struct run_tasks *tasks, struct run_setup *setup, const char *const *argv,
		      struct error *err);
/* To be called when the plan is made. */
void run_tasks_planned(struct run_tasks *tasks, const struct plan *plan);
/* End the step's tool, and where the step was what failed, say so in result (may be NULL). */
void run_tasks_end(struct run_tasks *tasks, struct job_result *result);

#endif
