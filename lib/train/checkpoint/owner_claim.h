/* SPDX-License-Identifier: BSD-3-Clause */
/* What an owner's file says (owner.h), and what this machine knows of the process that it names. */
#ifndef BERTH_TRAIN_CHECKPOINT_OWNER_CLAIM_H
#define BERTH_TRAIN_CHECKPOINT_OWNER_CLAIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct claim {
	bool readable;
	char scheduler[32], job[256], host[128], boot[128], token[64];
	int64_t attempt, pid, started, renewals;
	double age_s; /* by the file system's clock; negative: it is ahead */
};

/* The file at path, its age on the clock that now is of. 1; 0: there is none; -1: whether there is
 * one cannot be told, with errno. */
int claim_read(const char *path, const struct timespec *now, struct claim *out);

/* "job 7 of slurm, process 12 on n1" */
void claim_name(const struct claim *claim, char *text, size_t size);

/* Is its process, of this machine, gone, or another by the same number? */
bool claim_process_has_ended(const struct claim *claim);

/* What tells this machine and its numbers of processes from others'; "" where it cannot be known.
 */
void claim_boot(char *out, size_t size);

/* When process pid was started, in the kernel's ticks; -1: it is not there, or dead. */
int64_t claim_process_started(int64_t pid);

#endif
