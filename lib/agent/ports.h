/* SPDX-License-Identifier: BSD-3-Clause */
/* A block of consecutive ports that is free on all nodes of a job (--ports). The controller draws a
 * seed, which names AGENT_PORTS_BLOCKS blocks. Each agent binds those that are free on its node and
 * reports them; it keeps the one that all have bound, and that JOB names. */
#ifndef BERTH_AGENT_PORTS_H
#define BERTH_AGENT_PORTS_H

#include <stdbool.h>

#include "launch/launcher.h"

#define AGENT_PORTS_BLOCKS 8
#define AGENT_PORTS_SEED_MAX 65535

struct agent_ports {
	int count, seed;
	int first;				       /* of the block that was kept */
	bool held;				       /* it is bound */
	int fds[AGENT_PORTS_BLOCKS][LAUNCH_PORTS_MAX]; /* bound, see socket_reserve; 0: none */
};

/* The first port of a block. Pure. */
int agent_ports_first(int count, int seed, int block);
/* The seed whose block 0 begins there. Pure. */
int agent_ports_seed(int count, int first);
/* Bind each block of count ports that is free, and fewer blocks if few files may be open. Return
 * them: bit I is block I. count 0: bind nothing, and return all. */
int agent_ports_bind(struct agent_ports *ports, int count, int seed);
/* Close all blocks but this one; unless held, this one too. */
void agent_ports_keep(struct agent_ports *ports, int block, bool held);

#endif
