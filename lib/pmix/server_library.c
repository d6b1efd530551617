/* SPDX-License-Identifier: BSD-3-Clause */
/* PMIx's server library, started once per process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pmix/server.h"

static char *started; /* the node it was started for; NULL: not yet */
static hwloc_topology_t the_topology;

/* PMIx would load its own topology with all I/O devices, which takes longer than the rest of its
 * start. NULL if hwloc finds nothing: PMIx then tries by itself. */
static hwloc_topology_t load_topology(void)
{
	hwloc_topology_t topology;

	if (hwloc_topology_init(&topology))
		return NULL;
	/* It binds this thread to each CPU in turn, and waits there for whatever runs. */
	hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
	if (hwloc_topology_load(topology)) {
		hwloc_topology_destroy(topology);
		return NULL;
	}
	return topology;
}

static int init(const char *dir, const char *node, int node_index, struct error *err)
{
	pmix_info_t info[8];
	size_t count = 0;
	char source[] = "hwloc", name[PMIX_MAX_NSLEN + 1];
	pmix_topology_t topology = {.source = source, .topology = the_topology};
	pmix_rank_t rank = (pmix_rank_t)node_index;
	bool yes = true;

	snprintf(name, sizeof name, "berth-agent-%ld", (long)getpid());
	PMIX_INFO_LOAD(&info[count++], PMIX_SERVER_TMPDIR, dir, PMIX_STRING);
	PMIX_INFO_LOAD(&info[count++], PMIX_SYSTEM_TMPDIR, dir, PMIX_STRING);
	PMIX_INFO_LOAD(&info[count++], PMIX_SERVER_NSPACE, name, PMIX_STRING);
	PMIX_INFO_LOAD(&info[count++], PMIX_SERVER_RANK, &rank, PMIX_PROC_RANK);
	PMIX_INFO_LOAD(&info[count++], PMIX_HOSTNAME, node, PMIX_STRING);
	size_t own = count;

	if (the_topology) {
		PMIX_INFO_LOAD(&info[count++], PMIX_SERVER_SHARE_TOPOLOGY, &yes, PMIX_BOOL);
		own = count;
		/* Constructed, not loaded: destructing a loaded info would destroy the topology,
		 * which is only lent. */
		PMIX_INFO_CONSTRUCT(&info[count]);
		PMIX_LOAD_KEY(info[count].key, PMIX_TOPOLOGY2);
		info[count].value.type = PMIX_TOPO;
		info[count].value.data.topo = &topology;
		count++;
	}
	pmix_status_t status = PMIx_server_init(&server_module, info, count);

	for (size_t i = 0; i < own; i++)
		PMIX_INFO_DESTRUCT(&info[i]);
	if (status != PMIX_SUCCESS)
		return error_set(err, ERR_UNAVAILABLE,
				 "cannot start the PMIx server in directory %s: %s", dir,
				 PMIx_Error_string(status));
	server_socket_set_timeout();
	return 0;
}

hwloc_topology_t server_library_topology(void)
{
	return the_topology;
}

int server_library_start(const char *dir, const char *node, int node_index, struct error *err)
{
	if (started && !strcmp(started, node))
		return 0;
	if (started)
		return error_set(err, ERR_INTERNAL,
				 "PMIx was started for node %s and cannot serve node %s", started,
				 node);
	/* What only the environment can change.
	 * - gds=hash: job data in messages, not in shared files. A client may then finalize and
	 * exec an Open MPI program, and nothing is left in /dev/shm or /tmp.
	 * - psec=native: munge would need a daemon that most machines lack.
	 * - HWLOC_PLUGINS_PATH: hwloc's plugins open X11 and OpenCL, and so a context on each GPU.
	 * - HOME: PMIx looks for settings there, which may hang, and so would this start. */
	struct env_override overrides[] = {
		{.name = "PMIX_MCA_gds", .value = "hash", .keep = true},
		{.name = "PMIX_MCA_psec", .value = "native", .keep = true},
		{.name = "HWLOC_PLUGINS_PATH", .value = "/nonexistent", .keep = true},
		{.name = "HOME", .value = "/nonexistent"},
	};
	size_t count = sizeof overrides / sizeof *overrides;
	char *name = strdup(node);

	if (!name)
		return error_memory(err, "the PMIx server");
	env_override(overrides, count);
	if (!the_topology)
		the_topology = load_topology();
	int rc = init(dir, node, node_index, err);

	env_restore(overrides, count);
	if (rc)
		free(name);
	else
		started = name;
	return rc;
}
