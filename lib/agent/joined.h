/* SPDX-License-Identifier: BSD-3-Clause */
/* Which ranks of this node have met the others: they listen on MASTER_PORT, or are connected to it.
 * The states of JOINED: JOINED_YES, JOINED_NO (it has loaded PyTorch or JAX, and no MPI, so it
 * should meet the others there), JOINED_LOCAL (the same, and it is connected to itself over a
 * loopback address, as rank 0 is if MASTER_ADDR is localhost), JOINED_ALONE (it has loaded MPICH or
 * a relative of it without PMIx, which cannot learn its place from berth) or JOINED_UNKNOWN. */
#ifndef BERTH_AGENT_JOINED_H
#define BERTH_AGENT_JOINED_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define JOINED_YES 'y'
#define JOINED_NO 'n'
#define JOINED_LOCAL 'l'
#define JOINED_ALONE 'a'
#define JOINED_UNKNOWN '-'

/* Set states[i] for the processes of group groups[i], descendants of this process. States that are
 * JOINED_YES stay, and those of ranks that have ended. */
void joined_read(const pid_t *groups, size_t count, int port, char *states);

/* Has a rank that has ended met others, between two looks? Connections leave a trace for a minute.
 */
bool joined_before(int port);

#endif
