/* SPDX-License-Identifier: BSD-3-Clause */
/* PBS Pro, OpenPBS and Torque: what PBS reports besides the allocation itself (alloc.h). */
#ifndef BERTH_ALLOC_PBS_H
#define BERTH_ALLOC_PBS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/alloc.h"
#include "base/env.h"
#include "base/error.h"

/* Parse a PBS duration: "90", "10:00", "168:00:00", or Torque's "7:00:00:00". A fraction of a
 * second is dropped. Return 0 or -ERR_DATA. */
int pbs_duration(const char *name, const char *text, int64_t *seconds, struct error *err);

/* What qstat reports about a running job; a member that it leaves out is NULL. pbs_job_info_free
 * frees the strings. */
struct pbs_job_info {
	char *walltime;	  /* as requested, "01:00:00" */
	char *start;	  /* as ctime(3) writes it, in local time */
	char *remaining;  /* Torque: seconds */
	char *run_count;  /* 1 the first time */
	char *exec_host;  /* "n1/0*4+n2/0*4" */
	char *exec_vnode; /* "(n1:ncpus=4:ngpus=2)+(n2:ncpus=4:ngpus=2)" */
	char *select;	  /* as requested, "1:ncpus=4:ngpus=2+2:ncpus=8" */
	char *queue;
};
/* Read the output of `qstat -f -F json` or `qstat -f` for one job. Return -ERR_DATA if the text is
 * in neither format or describes another job, -ERR_UNAVAILABLE if memory is out. Pure. */
int pbs_job_info_read(const char *text, const char *job_id, struct pbs_job_info *out,
		      struct error *err);
void pbs_job_info_free(struct pbs_job_info *answer);

/* Copy what berth understands of the answer into alloc: end_time, end_reason, restarts, the nodes'
 * GPUs, and the part of select that each node's first chunk is for, as its group. An end time that
 * the user has given stays. A part that it does not understand changes nothing, and end_reason
 * names that part. Reads the time zone. */
void pbs_job_info_apply(const struct pbs_job_info *answer, struct alloc *alloc);

/* The attributes of the job in the output of `qstat -f -F json`: a new reference, or NULL and the
 * reason in why. Replaces bytes of text that are not UTF-8. Torque's qstat cannot print JSON. */
json_t *pbs_attributes(char *text, const char *job_id, char *why, size_t size);

/* Find a PBS tool in PATH, else in the bin directory of PBS_EXEC from /etc/pbs.conf (or
 * PBS_CONF_FILE). The second place matters for `qsub -- PROGRAM` and for tasks of pbsdsh, whose
 * PATH lacks it. Return 0, or -1 if there is none. */
int pbs_find_tool(const struct env *env, const char *name, char *path, size_t size);

/* Read the path that NAME=/PATH sets in PBS's configuration (PBS_CONF_FILE, /etc/pbs.conf). Return
 * 0 or -1. */
int pbs_conf(const struct env *env, const char *name, char *out, size_t size);

/* PBS's own node file of the job, in which PBS_NODENUM and pbs_tmrsh count lines. PBS_NODEFILE may
 * name a file that the user has written. Return 0, or -1 if it is not on this machine. */
int pbs_node_file(const struct env *env, char *path, size_t size);

#endif
