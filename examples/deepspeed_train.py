# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed, ZeRO stage 0.

Slurm    #SBATCH --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         berth run -- python examples/deepspeed_train.py
PBS      #PBS -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run -- python examples/deepspeed_train.py
alone    berth run -n 4 -- python examples/deepspeed_train.py

`berth run -- deepspeed examples/deepspeed_train.py` works, too, for scripts that read --local_rank.
"""
import argparse
import os

import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', type=int, default=-1)  # passed by the launcher deepspeed
parser.parse_args()

deepspeed.init_distributed('nccl' if torch.cuda.is_available() else 'gloo')

# A problem that a linear model solves. Replace it by your data set.
generator = torch.Generator().manual_seed(3)
x = torch.randn(256, 8, generator=generator)
y = x @ torch.arange(8.).unsqueeze(1) + 1
dataset = TensorDataset(x, y)
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={'train_micro_batch_size_per_gpu': 16, 'zero_optimization': {'stage': 0}})
sampler = DistributedSampler(dataset)
losses = []
for epoch in range(20):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(dataset, batch_size=16, sampler=sampler):
        loss = torch.nn.functional.mse_loss(engine(x.to(engine.device)), y.to(engine.device))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())

assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {dist.get_rank()} of {dist.get_world_size()} on {os.uname().nodename}: loss falls', flush=True)
