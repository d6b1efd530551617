# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch DistributedDataParallel with a DistributedSampler. The script runs under torchrun, too.

Slurm    #SBATCH --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         berth run -- python examples/ddp.py
PBS      #PBS -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run -- python examples/ddp.py
alone    berth run -n 4 -- python examples/ddp.py

--lr sets the learning rate; examples/sweep.sh uses it.
"""
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument('--lr', type=float, default=0.1)
lr = parser.parse_args().lr

gpu = torch.cuda.is_available()
device = torch.device(f'cuda:{os.environ["LOCAL_RANK"]}' if gpu else 'cpu')
if gpu:
    torch.cuda.set_device(device)
dist.init_process_group('nccl' if gpu else 'gloo')

# A problem that a linear model solves. Replace it by your data set.
generator = torch.Generator().manual_seed(3)
x = torch.randn(256, 8, generator=generator)
y = x @ torch.arange(8.).unsqueeze(1) + 1
dataset = TensorDataset(x, y)
sampler = DistributedSampler(dataset)
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(dataset, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {dist.get_rank()} of {dist.get_world_size()} on {os.uname().nodename}: loss falls', flush=True)
dist.destroy_process_group()
