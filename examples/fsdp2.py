# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch fully_shard (FSDP2): each rank holds a part of each parameter. Needs PyTorch 2.6 or newer.

Slurm    #SBATCH --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         berth run -- python examples/fsdp2.py
PBS      #PBS -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run -- python examples/fsdp2.py
alone    berth run -n 4 -- python examples/fsdp2.py
"""
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

gpu = torch.cuda.is_available()
device = torch.device(f'cuda:{os.environ["LOCAL_RANK"]}' if gpu else 'cpu')
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group('nccl' if gpu else 'gloo')
rank, world_size = dist.get_rank(), dist.get_world_size()

mesh = init_device_mesh(device.type, (world_size,))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
for layer in model[0], model[2]:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)

# A problem that a linear model solves. Replace it by your data set.
generator = torch.Generator().manual_seed(3)
x = torch.randn(256, 8, generator=generator)
y = x @ torch.arange(8.).unsqueeze(1) + 1
x, y = x[rank::world_size].to(device), y[rank::world_size].to(device)
losses = []
for _ in range(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {rank} of {world_size} on {os.uname().nodename}: loss falls', flush=True)
dist.destroy_process_group()
