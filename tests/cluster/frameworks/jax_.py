# SPDX-License-Identifier: BSD-3-Clause
"""JAX: one program over the devices of all ranks."""
import os

import jax
import numpy
from jax.experimental import multihost_utils

from common import report

jax.config.update('jax_cpu_collectives_implementation', 'gloo')
jax.distributed.initialize(
    coordinator_address=os.environ['JAX_COORDINATOR_ADDRESS'],
    num_processes=int(os.environ['JAX_NUM_PROCESSES']),
    process_id=int(os.environ['JAX_PROCESS_ID']))
rank, world_size = jax.process_index(), jax.process_count()
assert jax.device_count() == world_size * jax.local_device_count(), jax.devices()
mesh = jax.sharding.Mesh(jax.devices(), ('data',))
rows = jax.sharding.PartitionSpec('data')
x = numpy.random.default_rng(rank).normal(size=(64, 8)).astype('float32')
y = x @ numpy.arange(8, dtype='float32')
x, y = multihost_utils.host_local_array_to_global_array((x, y), mesh, rows)


@jax.jit
def step(w, x, y):
    loss, gradient = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)
    return w - 0.1 * gradient, loss


w, losses = numpy.zeros(8, 'float32'), []
for _ in range(20):
    w, loss = step(w, x, y)
    losses.append(float(loss))
report(rank, world_size, losses[0], losses[-1])
