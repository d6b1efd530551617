# SPDX-License-Identifier: BSD-3-Clause
"""fully_shard (FSDP2): each rank holds a part of each parameter."""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from common import data, report

dist.init_process_group('gloo')
mesh = init_device_mesh('cpu', (dist.get_world_size(),))
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
for layer in model:
    if any(True for _ in layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
x, y = (part[dist.get_rank()::dist.get_world_size()] for part in data(torch))
losses = []
for _ in range(60):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(dist.get_rank(), dist.get_world_size(), losses[0], losses[-1])
dist.destroy_process_group()
