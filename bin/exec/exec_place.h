/* SPDX-License-Identifier: BSD-3-Clause */
/* This process's rank as another launcher set it: mpirun, torchrun, srun, PALS, or RANK set by
 * hand. */
#ifndef BERTH_BIN_EXEC_EXEC_PLACE_H
#define BERTH_BIN_EXEC_EXEC_PLACE_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/env.h"
#include "base/error.h"

struct exec_place {
	const char *started_by;	 /* for people: "mpirun" */
	const char *detected_by; /* the variable that identified the launcher */
	bool binds;		 /* it binds each rank, possibly to other cores than the plan's */
	int rank, size, local_rank, local_size;
	int node_rank; /* -1: unknown, and there are several nodes */
	char job[256]; /* identifies the job on all its ranks; or "" */
};

/* Find the place from env only (pure). Return 0; -ERR_USAGE if this process is no rank; -ERR_DATA
 * naming variables that are missing or contradict each other. */
int exec_place_find(const struct env *env, struct exec_place *out, struct error *err);

/* Does the launcher report a rank's place only over PMIx, as prterun does? Then exec_pmix.h finds
 * it. Pure. */
bool exec_place_asks_pmix(const struct env *env);

/* The process that started the ranks of this node: the nearest ancestor that lacks place's variable
 * in its environment. So shells in between make no difference. It is the same for all ranks of a
 * node. 0 if it cannot be found (another PID namespace, no /proc). Reads /proc. */
pid_t exec_place_launcher_pid(const struct exec_place *place);

/* Is this process one of several ranks of a launcher (torchrun, mpirun, PALS, MPICH's mpiexec,
 * berth run) that still runs as its ancestor? srun's tasks do not count, nor do variables of a job
 * that has ended. Reads /proc. true sets *out; its size is 0 if only PMIx knows it (exec_pmix.h).
 */
bool exec_place_outer(const struct env *env, struct exec_place *out);

/* A port that all ranks of a job on one node derive alike, without communication. It is between
 * 10000 and 29999, below Linux's ephemeral ports. salt (the launcher's pid) distinguishes jobs
 * without a name. The port is untested: it may be taken. */
int exec_place_port(const struct exec_place *place, long salt);

/* How many tasks node has in Slurm's "2(x3),1". node >= 0. Return 0 or -ERR_DATA. */
int exec_place_tasks(const char *text, int node, int *out, struct error *err);

#endif
