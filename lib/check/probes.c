/* SPDX-License-Identifier: BSD-3-Clause */
#include "check/check_internal.h"

const struct check_probe *const check_probes[] = {
	&probe_versions, &probe_memlock,   &probe_shm,	 &probe_checkpoint, &probe_gpus,
	&probe_plugin,	 &probe_container, &probe_names, &probe_clock,	    &probe_network,
	&probe_reach,	 &probe_port,	   &probe_ring,	 &probe_variables,  NULL,
};
