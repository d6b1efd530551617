# SPDX-License-Identifier: BSD-3-Clause
"""DistributedDataParallel with a DistributedSampler, as in PyTorch's tutorial of DDP with torchrun."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common import data, report

dist.init_process_group('gloo')
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = TensorDataset(*data(torch))
sampler = DistributedSampler(dataset)
losses = []
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(dataset, batch_size=16, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
report(dist.get_rank(), dist.get_world_size(), losses[0], losses[-1])
dist.destroy_process_group()
