/* SPDX-License-Identifier: BSD-3-Clause */
/* The loop in which the controller's jobs run: the only one, or one per role. */
#ifndef BERTH_ROLES_JOBS_H
#define BERTH_ROLES_JOBS_H

#include "controller/job.h"
#include "roles/decide.h"

struct jobs_entry {
	const struct job_request *request; /* request->role is role */
	const struct job_sink *sink;
	struct job_role *role; /* changed while the jobs run; NULL: the only job */
	int restarts;	       /* of a service: how often it is restarted alone */
	const size_t *nodes; /* of each of its nodes, the index in the allocation; NULL: the same */
};

struct jobs_request {
	const struct jobs_entry *entries;
	const struct role_rule *rules; /* of each; NULL for one job */
	size_t count;
	size_t node_count; /* of the allocation; used with roles */
	/* The addresses of the other jobs that job number i tries: struct job_role. Kept by the
	 * context. NULL for one job. */
	const json_t *(*others)(void *context, struct job *const *jobs, size_t i);
	/* All jobs are planned and none has started: complete their environments. Return 0 or a
	 * code. NULL for one job. */
	int (*prepared)(void *context, struct job *const *jobs, struct error *err);
	void *context;
	int *restarted; /* of each job, how often it was restarted alone so far; NULL for one */
};

/* Run the jobs. Block until everything has ended and no process is left. Meanwhile it handles
 * SIGCHLD and the signals of job_signal, and stops with this process at SIGTSTP. The result is that
 * of the job which failed first; ranks and roles are those of all. Return 0 if the jobs ran, even
 * if they failed (see out), or a negative code if one was not started. */
int jobs_run(const struct jobs_request *request, struct job_result *out, struct error *err);

#endif
