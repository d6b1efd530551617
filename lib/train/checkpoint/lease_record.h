/* SPDX-License-Identifier: BSD-3-Clause */
/* The content of a lease file (lease.h), and what this machine knows about the process it names. */
#ifndef BERTH_TRAIN_CHECKPOINT_LEASE_RECORD_H
#define BERTH_TRAIN_CHECKPOINT_LEASE_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct lease_record {
	bool readable, released;
	char scheduler[32], job[256], host[128], boot[128], token[64];
	int64_t attempt, pid, started;
	struct timespec renewed; /* the file's modification time */
};

/* The position of the digit that a release sets to 0. */
#define LEASE_RECORD_HELD_AT 9
/* Return the record as the file's text, malloced; NULL if memory is out. */
char *lease_record_text(const struct lease_record *record);
/* Parse the file's text, which may hold anything. It does not contain renewed. */
void lease_record_parse(const char *text, size_t size, struct lease_record *out);

/* Read the file called name in an open directory; never waits for a FIFO. Return 1 (readable is
 * false if it holds no lease or cannot be opened), 0 if there is no file, or -1 with errno. */
int lease_record_read(int directory, const char *name, struct lease_record *out);

/* Describe the run for messages: "job 7 of slurm, process 12 on n1". */
void lease_record_name(const struct lease_record *record, char *text, size_t size);

/* Fill in host, boot (this machine and its PID namespace), pid and started of this process. */
void lease_record_set_process(struct lease_record *record);
/* Has the record's process on this machine ended, or does another process have its pid now? False
 * if /proc cannot be read. */
bool lease_record_process_has_ended(const struct lease_record *record);

#endif
