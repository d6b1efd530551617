# SPDX-License-Identifier: BSD-3-Clause
"""berth for JAX programs."""
import os
from typing import Any

import jax

import berth

__all__ = ['initialize']


def initialize(**arguments: Any) -> None:
    """jax.distributed.initialize with the job's values; further arguments are passed on. Without berth, JAX
    looks for a launcher itself; without any launcher nothing happens."""
    address = os.environ.get('JAX_COORDINATOR_ADDRESS')
    if not address:
        if berth.world_size() > 1 or 'SLURM_STEP_NUM_TASKS' in os.environ or 'OMPI_COMM_WORLD_SIZE' in os.environ:
            jax.distributed.initialize(**arguments)
        return
    entry = berth.plan()
    gpus = [gpu['ordinal'] for gpu in (entry or {}).get('gpus') or []]
    arguments.setdefault('local_device_ids', gpus or None)
    arguments.setdefault('coordinator_address', address)
    arguments.setdefault('num_processes', berth.world_size())
    arguments.setdefault('process_id', berth.rank())
    jax.distributed.initialize(**arguments)
