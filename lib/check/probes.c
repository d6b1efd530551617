/* SPDX-License-Identifier: BSD-3-Clause */
#include "check/check_internal.h"

const struct check_probe check_probes[] = {
	{"versions", probe_versions_collect, NULL, probe_versions_judge},
	{"memlock", probe_memlock_collect, NULL, probe_memlock_judge},
	{"shm", probe_shm_collect, NULL, probe_shm_judge},
	{"checkpoint", probe_checkpoint_collect, probe_checkpoint_run, probe_checkpoint_judge},
	{"gpus", probe_gpus_collect, NULL, probe_gpus_judge},
	{"plugin", probe_plugin_collect, NULL, probe_plugin_judge},
	{"container", probe_container_collect, NULL, probe_container_judge},
	{"names", probe_names_collect, NULL, probe_names_judge},
	{"clock", NULL, NULL, probe_clock_judge},
	{"network", NULL, NULL, probe_network_judge},
	{"reach", NULL, probe_reach_run, probe_reach_judge},
	{"port", NULL, probe_reach_run, probe_port_judge},
	{"ring", NULL, probe_ring_run, probe_ring_judge},
	{"variables", probe_variables_collect, NULL, probe_variables_judge},
	{0},
};
