/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/ports.h"

#include <unistd.h>

#include "overlay/socket.h"

/* Below the ports that Linux gives to programs which ask for any, so that no client's connection
 * takes one in the moment between an agent that lets go and the program that binds it. */
#define LOWEST 20000
#define HIGHEST 32000
/* Blocks of one seed are apart, so that one busy server does not take two. */
#define STRIDE 7

int agent_ports_first(int count, int seed, int block)
{
	return LOWEST + (seed + block * STRIDE) % ((HIGHEST - LOWEST) / count) * count;
}

int agent_ports_seed(int count, int first)
{
	return (first - LOWEST) / count;
}

static void close_block(struct agent_ports *ports, int block)
{
	for (int i = 0; i < ports->count; i++) {
		if (ports->fds[block][i])
			close(ports->fds[block][i]);
		ports->fds[block][i] = 0;
	}
}

static int bind_block(struct agent_ports *ports, int block)
{
	int first = agent_ports_first(ports->count, ports->seed, block), actual;

	for (int i = 0; i < ports->count; i++)
		if (socket_reserve(first + i, &ports->fds[block][i], &actual, NULL)) {
			ports->fds[block][i] = 0;
			close_block(ports, block);
			return 0;
		}
	return 1 << block;
}

int agent_ports_bind(struct agent_ports *ports, int count, int seed)
{
	/* The agent needs descriptors for much else: half of what it may open, but one block. */
	long room = sysconf(_SC_OPEN_MAX) / 2;
	int bound = 0;

	ports->count = count;
	ports->seed = seed;
	if (!count)
		return (1 << AGENT_PORTS_BLOCKS) - 1;
	for (int block = 0; block < AGENT_PORTS_BLOCKS; block++, room -= count)
		if (!block || room >= count)
			bound |= bind_block(ports, block);
	return bound;
}

void agent_ports_keep(struct agent_ports *ports, int block, bool held)
{
	ports->first = ports->count ? agent_ports_first(ports->count, ports->seed, block) : 0;
	ports->held = held;
	for (int other = 0; other < AGENT_PORTS_BLOCKS; other++)
		if (other != block || !held)
			close_block(ports, other);
}
