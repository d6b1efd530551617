/* SPDX-License-Identifier: BSD-3-Clause */
/* Which rank somebody else made this process: mpirun, torchrun, srun, PALS, or RANK by hand. */
#ifndef BERTH_BIN_EXEC_EXEC_PLACE_H
#define BERTH_BIN_EXEC_EXEC_PLACE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/env.h"
#include "base/error.h"

struct exec_place {
	const char *started_by;	 /* for people: "mpirun" */
	const char *detected_by; /* the variable by which it was known */
	bool binds;		 /* it binds each rank, to cores that need not be the plan's */
	int rank, size, local_rank, local_size;
	int node_rank; /* -1: nobody said, and there are several nodes */
	char job[256]; /* the same for all ranks of the job and no other, or "" */
};

/* Pure: looks at env only.
 * 0; -ERR_USAGE: nobody's rank; -ERR_DATA: variables missing or contradicting each other, named. */
int exec_place_find(const struct env *env, struct exec_place *out, struct error *err);

/* Is it a launcher's that tells a rank its place by PMIx alone, as prterun does? Then exec_pmix.h
 * asks. Pure. */
bool exec_place_asks_pmix(const struct env *env);

/* The process that started the ranks of this node: the nearest ancestor that was not started with
 * place's mark in its environment, so that shells between it and us make no difference; 0 when it
 * cannot be found (another PID namespace, no /proc). The same for all ranks of one node. Looks at
 * /proc. */
pid_t exec_place_launcher_pid(const struct exec_place *place);

/* A port that all ranks of a job on one node work out alike, without asking each other: from 10000
 * to 29999, below the ports that Linux gives away. salt tells jobs without a name apart (the
 * launcher's process id). Nobody has tried it: it may be taken. */
int exec_place_port(const struct exec_place *place, long salt);

/* How many tasks node has in Slurm's "2(x3),1". node >= 0. -ERR_DATA. */
int exec_place_tasks(const char *text, int node, int *out, struct error *err);

#endif
