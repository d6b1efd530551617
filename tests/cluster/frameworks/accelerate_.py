# SPDX-License-Identifier: BSD-3-Clause
"""accelerate, with prepare() for model, optimizer and data."""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from common import data, report

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 1)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(TensorDataset(*data(torch)), batch_size=16))
losses = []
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
report(accelerator.process_index, accelerator.num_processes, losses[0], losses[-1])
accelerator.end_training()
