# SPDX-License-Identifier: BSD-3-Clause
"""A sum over all processes, with berth.jax.initialize()."""
import jax

import berth
import berth.jax

jax.config.update('jax_cpu_collectives_implementation', 'gloo')
berth.jax.initialize()
if berth.world_size() > 1:
    from jax.experimental import multihost_utils
    total = multihost_utils.process_allgather(jax.numpy.array([berth.rank() + 1.])).sum()
else:
    total = jax.numpy.array(1.)
print(f'{jax.process_count()} processes, sum {float(total)}', flush=True)
