# SPDX-License-Identifier: BSD-3-Clause
"""DeepSpeed, ZeRO stage 0, over gloo."""
import deepspeed
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common import data, report

deepspeed.init_distributed('gloo')
model = torch.nn.Linear(8, 1)
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    config={'train_micro_batch_size_per_gpu': 16, 'zero_optimization': {'stage': 0}})
dataset = TensorDataset(*data(torch))
losses = []
for _ in range(20):
    for x, y in DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset)):
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
report(dist.get_rank(), dist.get_world_size(), losses[0], losses[-1])
