/* SPDX-License-Identifier: BSD-3-Clause */
/* The loop in which the controller's jobs run: one per role. */
#ifndef BERTH_ROLES_JOBS_H
#define BERTH_ROLES_JOBS_H

#include "controller/job.h"

/* Run the job. Block until everything has ended and no process is left. Meanwhile it handles
 * SIGCHLD and the signals of job_signal, and stops with this process at SIGTSTP. Return 0 if the
 * job ran, even if it failed (see out), or a negative code if it was not started. */
int jobs_run(const struct job_request *request, const struct job_sink *sink, struct job_result *out,
	     struct error *err);

#endif
