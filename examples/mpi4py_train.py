# SPDX-License-Identifier: BSD-3-Clause
"""mpi4py: sum gradients with Allreduce.

Slurm    #SBATCH --nodes=2 --ntasks-per-node=32 --time=1:00:00
         berth run -- python examples/mpi4py_train.py
PBS      #PBS -l select=2:ncpus=32:mpiprocs=32 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run -- python examples/mpi4py_train.py
alone    berth run -n 4 -- python examples/mpi4py_train.py
"""
import os

import numpy
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = numpy.random.default_rng(comm.rank).normal(size=(64, 8))
y = x @ numpy.arange(8.)
w, losses = numpy.zeros(8), []
for _ in range(20):
    error = x @ w - y
    local = numpy.append(2 * x.T @ error / len(y), (error ** 2).mean()) / comm.size
    total = numpy.empty_like(local)
    comm.Allreduce(local, total)
    w -= 0.1 * total[:-1]
    losses.append(total[-1])

assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {comm.rank} of {comm.size} on {os.uname().nodename}: loss falls', flush=True)
