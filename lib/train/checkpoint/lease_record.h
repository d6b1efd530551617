/* SPDX-License-Identifier: BSD-3-Clause */
/* The content of a lease file (lease.h), and the lock that its holder keeps on it. */
#ifndef BERTH_TRAIN_CHECKPOINT_LEASE_RECORD_H
#define BERTH_TRAIN_CHECKPOINT_LEASE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct lease_record {
	bool readable, released;
	char scheduler[32], job[256], host[128], boot[128], token[64];
	int64_t attempt, pid;
	int64_t device; /* st_dev of the file that the holder locked; 0: it has no lock */
	/* These are not part of the text. */
	struct timespec renewed; /* the file's modification time */
	enum { LEASE_LOCK_UNKNOWN, LEASE_LOCK_FREE, LEASE_LOCK_HELD } lock;
};

/* The position of the digit that a release sets to 0. */
#define LEASE_RECORD_HELD_AT 9
/* Return the record as the file's text, malloced; NULL if memory is out. */
char *lease_record_text(const struct lease_record *record);
/* Parse the file's text, which may hold anything. */
void lease_record_parse(const char *text, size_t size, struct lease_record *out);

/* Read the file called name in an open directory; never waits for a FIFO. If the holder locked it
 * under this boot id of the machine and through the same mount, find out whether the lock is still
 * held: the kernel drops it when the holder ends. boot may be "". Return 1 (readable is false if
 * the file holds no lease or cannot be opened), 0 if there is no file, or -1 with errno. */
int lease_record_read(int directory, const char *name, const char *boot, struct lease_record *out);

/* Describe the run for messages: "job 7 of slurm, process 12 on n1". */
void lease_record_name(const struct lease_record *record, char *text, size_t size);

/* Fill in host, boot (this machine until its next start) and pid of this process. */
void lease_record_set_process(struct lease_record *record);

#endif
