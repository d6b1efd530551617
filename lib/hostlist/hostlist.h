/* SPDX-License-Identifier: BSD-3-Clause */
/* Host lists in Slurm's grammar, node files in PBS's format, host files in Open MPI's format. */
#ifndef BERTH_HOSTLIST_HOSTLIST_H
#define BERTH_HOSTLIST_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Limits on any expression; exceeding one is -ERR_DATA. */
#define HOSTLIST_MAX_HOSTS 262144    /* hosts in one list */
#define HOSTLIST_MAX_NAME 255	     /* bytes in one name */
#define HOSTLIST_MAX_TEXT (16 << 20) /* bytes in an expression or a node file */
#define HOSTFILE_MAX_SLOTS 100000    /* per host */

/* Hosts in order; both arrays have count entries. slots[i] is 1 in a host list, the number of
 * repeats in a node file, and the given number in a host file (0: none given). hosts_free frees
 * both. */
struct hosts {
	size_t count;
	char **names;
	int *slots;
};
void hosts_free(struct hosts *hosts); /* frees what it holds and clears it; NULL is allowed */
/* Find a name that occurs twice; *out borrows it, or is NULL. Return 0, or -ERR_UNAVAILABLE if
 * memory is out. */
int hosts_duplicate(const struct hosts *hosts, const char **out, struct error *err);

/* Is it safe to pass this name of size bytes to ssh, srun or mpirun? It must have only letters,
 * digits and . _ : @ % -, and must not begin with -. Return 0 or -ERR_DATA. */
int hostlist_check_name(const char *name, size_t size, struct error *err);

/* Expand "n[1-3,07]x[0-1],m" exactly as `scontrol show hostnames` does. The last bracket varies
 * fastest, then the others from the left; ranks follow this odd order. Ranges are padded to the
 * width of their low end, and repeats are kept. Commas or blanks separate items. An empty list has
 * 0 hosts. tests/cli/hosts.tsv lists where berth differs from scontrol. Return 0, -ERR_DATA (err
 * shows the position) or -ERR_UNAVAILABLE; *out is untouched on failure. */
int hostlist_expand(const char *expr, struct hosts *out, struct error *err);

/* Compress names into a host list that expands to the same names in the same order. Consecutive
 * numbers become ranges; among the spellings berth knows, the shortest wins. The result is
 * malloced; NULL if memory is out. */
char *hostlist_compress(const char *const *names, size_t count);

/* Parse a file with one host per line. CR, blanks around the name, blank lines and a missing last
 * newline are tolerated; '#' starts a comment. size is in bytes, and text must not contain a NUL.
 * once false: a node file, in which repeats count as slots of the first mention. once true: a host
 * file, which people write: a line may end with "slots=N" as in Open MPI, and a repeated host is
 * -ERR_DATA with both lines, because Open MPI would add up its slots, which hides a mistake. Return
 * 0, or -ERR_DATA with the line number. */
int nodefile_parse(const char *text, size_t size, bool once, struct hosts *out, struct error *err);
/* Parse such a file from disk. Return -ERR_INPUT if it cannot be read, -ERR_DATA if it is too
 * large. */
int nodefile_read(const char *path, bool once, struct hosts *out, struct error *err);

/* Do two names have the same first label? "n1" and "n1.cluster.org" are the same host. */
bool hostlist_same_host(const char *a, const char *b);

#endif
