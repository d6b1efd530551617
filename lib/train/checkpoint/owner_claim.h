/* SPDX-License-Identifier: BSD-3-Clause */
/* The content of an owner file (owner.h), and what this machine knows about the process it
 * names. */
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
	double age_s; /* by the file system's clock; negative: the file is ahead */
};

/* Read the file at path; *now is the present time of the clock that its age refers to. With now
 * NULL the age is not known. Return 1, 0
 * if there is no file, or -1 with errno if that is unknown. */
int claim_read(const char *path, const struct timespec *now, struct claim *out);

/* "job 7 of slurm, process 12 on n1" */
void claim_name(const struct claim *claim, char *text, size_t size);

/* Has its process, on this machine, ended, or does another have its pid now? */
bool claim_process_has_ended(const struct claim *claim);

/* Identifies this machine and its pid namespace; "" if unknown. */
void claim_boot(char *out, size_t size);

/* When process pid started, in the kernel's clock ticks; -1: it does not exist or is dead. */
int64_t claim_process_started(int64_t pid);

#endif
