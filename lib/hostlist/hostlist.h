/* SPDX-License-Identifier: BSD-3-Clause */
/* Host lists in Slurm's grammar, node files in PBS's, host files in Open MPI's. */
#ifndef BERTH_HOSTLIST_HOSTLIST_H
#define BERTH_HOSTLIST_HOSTLIST_H

#include <stddef.h>

#include "base/error.h"

/* Limits that no expression exceeds; past them -ERR_DATA. */
#define HOSTLIST_MAX_HOSTS 262144    /* hosts of one list */
#define HOSTLIST_MAX_NAME 255	     /* bytes of one name */
#define HOSTLIST_MAX_TEXT (16 << 20) /* bytes of an expression or a node file */
#define HOSTFILE_MAX_SLOTS 100000    /* of one host */

/* Hosts in order. slots[i]: how often host i was named (node files), 1 in a host list, what a host
 * file says of it (0: nothing).
 * Freed by hosts_free; both arrays have count entries. */
struct hosts {
	size_t count;
	char **names;
	int *slots;
};
void hosts_free(struct hosts *hosts); /* frees what it holds and clears it; NULL is fine */
/* A name that is there twice (borrowed), or NULL. -ERR_UNAVAILABLE: memory. */
int hosts_duplicate(const struct hosts *hosts, const char **out, struct error *err);

/* Expand "n[1-3,07]x[0-1],m" exactly as `scontrol show hostnames` does: the last bracket varies
 * fastest, then the others from the left (odd, but ranks follow that order); a range is padded to
 * the width of its low end; repeats are kept; items stand between commas or blanks. An empty list
 * is 0 hosts. Where we take more or less than scontrol: tests/cli/hosts.tsv.
 * 0, -ERR_DATA (err shows the place) or -ERR_UNAVAILABLE; *out untouched on failure. */
int hostlist_expand(const char *expr, struct hosts *out, struct error *err);

/* The shortest of our spellings of names (in order; ranges where numbers follow each other);
 * expands to the same names again. malloced; NULL when memory is out. */
char *hostlist_compress(const char *const *names, size_t count);

/* Read a node file's text: a host a line, repeats counted as slots at the place of the first,
 * CR, blanks around the name, blank lines and a missing last newline tolerated; '#' starts a
 * comment. size: bytes of text (may hold no NUL). -ERR_DATA with the line number. */
int nodefile_parse(const char *text, size_t size, struct hosts *out, struct error *err);
/* The same from a file: -ERR_INPUT when it cannot be read, -ERR_DATA when too large. */
int nodefile_read(const char *path, struct hosts *out, struct error *err);

/* Read a host file's text, which people write: a host a line as above, or "HOST slots=N" as Open
 * MPI has it. A host that is there twice is -ERR_DATA with both lines: Open MPI adds up its slots,
 * and a mistake would go unseen. */
int hostfile_parse(const char *text, size_t size, struct hosts *out, struct error *err);
int hostfile_read(const char *path, struct hosts *out, struct error *err); /* as nodefile_read */

#endif
