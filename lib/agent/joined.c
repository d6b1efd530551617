/* SPDX-License-Identifier: BSD-3-Clause */
#include "agent/joined.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/listeners.h"
#include "process/process_tree.h"
#include "rendezvous/sock_diag.h"

/* state, changed if the process has loaded PyTorch or JAX: JOINED_NO, or JOINED_UNKNOWN with MPI,
 * which has its own way to meet; or only an MPI without PMIx. Open MPI's PMIx may be part of it.
 * MPICH, Intel's and Cray's MPI have one ABI, version 12. */
static char look_for_framework(pid_t pid, char state)
{
	char path[64], *line = NULL;
	bool framework = false, mpi = false, mpich = false, pmix = false;
	size_t room = 0;
	FILE *maps;

	snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	while (maps && getline(&line, &room, maps) > 0) {
		framework |= strstr(line, "/libtorch_cpu.so") || strstr(line, "/jaxlib/");
		mpi |= strstr(line, "/libmpi.so") || strstr(line, "/libmpi_");
		mpich |= strstr(line, "/libmpi.so.12") || strstr(line, "/libmpich.so.12") ||
			 strstr(line, "/libmpi_cray.so.12");
		pmix |= strstr(line, "/libpmix.so") != NULL;
	}
	if (maps)
		fclose(maps);
	free(line);
	if (!framework)
		return mpich && !pmix ? JOINED_ALONE : state;
	return mpi || mpich ? JOINED_UNKNOWN : JOINED_NO;
}

/* Is the process connected to itself over a loopback address? */
static bool serves_itself(pid_t pid, const struct sock_diag_inodes *loopback)
{
	size_t i = 0;

	/* Most processes have none, so one look is enough for them. */
	if (listeners_process_has(pid, loopback->list, loopback->count) <= 0)
		return false;
	while (i < loopback->count && (listeners_process_has(pid, &loopback->list[i], 1) <= 0 ||
				       listeners_process_has(pid, &loopback->list[i + 1], 1) <= 0))
		i += 2;
	return i < loopback->count;
}

void joined_read(const pid_t *groups, size_t count, int port, char *states)
{
	struct sock_diag_inodes inodes, loopback;
	struct process_tree list = {0};
	bool looked = false;

	if (sock_diag_port(port, &inodes) || process_tree_read(NULL, 0, &list))
		return;
	process_tree_adopt(&list, groups, count);
	for (size_t i = 0; i < count; i++)
		if (!states[i])
			states[i] = JOINED_UNKNOWN;
	for (size_t p = 0; p < list.count; p++) {
		const struct process_tree_entry *process = &list.items[p];
		size_t i = 0;

		while (i < count && groups[i] != process->group)
			i++;
		if (i == count || !process->alive || states[i] == JOINED_YES)
			continue;
		if (listeners_process_has(process->pid, inodes.list, inodes.count) > 0)
			states[i] = JOINED_YES;
		else if (states[i] != JOINED_LOCAL)
			states[i] = look_for_framework(process->pid, states[i]);
		if (states[i] != JOINED_NO || (!looked && sock_diag_loopback(&loopback)))
			continue;
		looked = true;
		if (serves_itself(process->pid, &loopback))
			states[i] = JOINED_LOCAL;
	}
	process_tree_free(&list);
}

bool joined_before(int port)
{
	struct sock_diag_inodes inodes;

	return !sock_diag_port(port, &inodes) && inodes.closed;
}
