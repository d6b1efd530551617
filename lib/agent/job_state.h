/* SPDX-License-Identifier: BSD-3-Clause */
/* JOB: what the controller sends to all agents before the ranks start. */
#ifndef BERTH_AGENT_JOB_STATE_H
#define BERTH_AGENT_JOB_STATE_H

#include <jansson.h>
#include <stdbool.h>

#include "base/bytes.h"
#include "base/env.h"
#include "base/error.h"
#include "container/container.h"
#include "overlay/messages.h"
#include "pmix/server_process.h"
#include "process/rlimits.h"

enum agent_job_stdin {
	AGENT_JOB_STDIN_NONE,
	AGENT_JOB_STDIN_INHERIT,  /* rank 0 gets the agent's own */
	AGENT_JOB_STDIN_FIRST,	  /* rank 0 gets the controller's */
	AGENT_JOB_STDIN_TERMINAL, /* likewise, and people type it: prompts must not wait */
	AGENT_JOB_STDIN_PTY,	  /* likewise, and rank 0 gets a terminal of its own */
	AGENT_JOB_STDIN_ALL,	  /* the controller writes to all ranks */
};

struct agent_job {
	const char *id, *host; /* the job's id, and this node's name in the allocation; borrowed */
	uint32_t attempt;
	struct ranks_job layout;   /* nodes and ranks; name, cpus and dir are not set */
	json_t *document;	   /* of JOB; strings are borrowed from it; NULL: not read yet */
	struct bytes data;	   /* the data of JOB; argv, base and cwd are borrowed from it */
	const char **argv, **base; /* the program's arguments; its environment, "NAME=VALUE" */
	const char **cwd;
	size_t base_count;
	const char *log_dir, *stop_file; /* or NULL; borrowed from document */
	bool pmix_disabled, pmix_required, hold_port;
	enum agent_job_stdin input;
	struct limits limits; /* for the ranks */
	bool service;	      /* see supervise_rank */
	bool placeholders;    /* process/placeholders.h, in argv */
	struct container container;
};

/* Read JOB into *job. The caller has set id, host, layout.node_index and layout.node_count; all
 * else is zero. Call agent_job_free even on failure. -ERR_DATA, -ERR_UNAVAILABLE. */
int agent_job_read(const struct message *message, struct agent_job *job, struct error *err);
void agent_job_free(struct agent_job *job);

size_t agent_job_rank_count(const struct agent_job *job); /* of this node */
int agent_job_rank(const struct agent_job *job, size_t local_rank);
/* The environment that all ranks share; env_free it. -ERR_UNAVAILABLE. */
int agent_job_environment(const struct agent_job *job, struct env **out, struct error *err);

#endif
