# SPDX-License-Identifier: BSD-3-Clause
"""JAX: one program over the devices of all ranks.

Slurm    #SBATCH --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         berth run --gpus-visible own -- python examples/jax_train.py
PBS      #PBS -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run --gpus-visible own -- python examples/jax_train.py
alone    berth run -n 4 -- python examples/jax_train.py

With the Python package, berth.jax.initialize() replaces the call of jax.distributed.initialize().
"""
import os

import jax
import numpy
from jax.experimental import multihost_utils

jax.config.update('jax_cpu_collectives_implementation', 'gloo')  # without GPUs
jax.distributed.initialize(
    coordinator_address=os.environ['JAX_COORDINATOR_ADDRESS'],
    num_processes=int(os.environ['JAX_NUM_PROCESSES']),
    process_id=int(os.environ['JAX_PROCESS_ID']))
rank, world_size = jax.process_index(), jax.process_count()
assert jax.device_count() == world_size * jax.local_device_count(), jax.devices()

# Each rank makes its own rows. Replace them by its part of your data set.
x = numpy.random.default_rng(rank).normal(size=(64, 8)).astype('float32')
y = x @ numpy.arange(8, dtype='float32')
mesh = jax.sharding.Mesh(jax.devices(), ('data',))
rows = jax.sharding.PartitionSpec('data')
x, y = multihost_utils.host_local_array_to_global_array((x, y), mesh, rows)


@jax.jit
def step(w, x, y):
    loss, gradient = jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(w)
    return w - 0.1 * gradient, loss


w, losses = numpy.zeros(8, 'float32'), []
for _ in range(20):
    w, loss = step(w, x, y)
    losses.append(float(loss))

assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {rank} of {world_size} on {os.uname().nodename}: loss falls', flush=True)
