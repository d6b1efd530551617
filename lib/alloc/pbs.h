/* SPDX-License-Identifier: BSD-3-Clause */
/* What PBS says (PBS Pro, OpenPBS, Torque), beside the allocation itself (alloc.h). */
#ifndef BERTH_ALLOC_PBS_H
#define BERTH_ALLOC_PBS_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"

/* A duration of PBS's: "90", "10:00", "168:00:00", Torque's "7:00:00:00"; a fraction of a second
 * is dropped. -ERR_DATA. */
int pbs_duration(const char *name, const char *text, int64_t *seconds, struct error *err);

/* What qstat says of a running job; NULL where it does not. Owned; pbs_job_info_free. */
struct pbs_job_info {
	char *walltime;	  /* as asked for, "01:00:00" */
	char *start;	  /* as ctime(3) writes it, in local time */
	char *remaining;  /* Torque: seconds */
	char *run_count;  /* 1 the first time */
	char *exec_host;  /* "n1/0*4+n2/0*4" */
	char *exec_vnode; /* "(n1:ncpus=4:ngpus=2)+(n2:ncpus=4:ngpus=2)" */
};
/* Read `qstat -f -F json` or `qstat -f` of one job. -ERR_DATA when it is neither, or of another
 * job; -ERR_UNAVAILABLE: memory. Pure. */
int pbs_job_info_read(const char *text, const char *job_id, struct pbs_job_info *out,
		      struct error *err);
void pbs_job_info_free(struct pbs_job_info *answer);

/* Put what is understood of an answer into alloc: end_time, end_reason, restarts, the nodes' GPUs.
 * What is not understood is left alone, and end_reason says what that was. Reads the time zone. */
void pbs_job_info_apply(const struct pbs_job_info *answer, struct alloc *alloc);

/* For an allocation of PBS's: ask qstat, at most timeout_ms in all, and use its answer. Where that
 * fails end_time stays 0 (or is PBS_WALLTIME after the node file was written, Torque's) and
 * end_reason says why: never an error. Starts processes; SIGCHLD is the caller's to bear. Other
 * allocations are left alone. */
#define PBS_QUERY_MS 10000
void pbs_query(const struct env *env, int timeout_ms, struct alloc *alloc);

/* A tool of PBS's: in PATH, else in the bin of PBS_EXEC as /etc/pbs.conf (or PBS_CONF_FILE) has
 * it: `qsub -- PROGRAM` and tasks of pbsdsh get a PATH without it. 0, or -1: there is none. */
int pbs_find_tool(const struct env *env, const char *name, char *path, size_t size);

/* The path that NAME=/PATH says in PBS's configuration (PBS_CONF_FILE, /etc/pbs.conf). 0 or -1. */
int pbs_conf(const struct env *env, const char *name, char *out, size_t size);

#endif
