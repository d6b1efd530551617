# SPDX-License-Identifier: BSD-3-Clause
"""accelerate, with prepare() for model, optimizer and data.

Slurm    #SBATCH --nodes=1 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         berth run -- accelerate launch --config_file examples/accelerate.yaml examples/accelerate_train.py
PBS      #PBS -l select=1:ncpus=32:ngpus=4 -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run -- accelerate launch --config_file examples/accelerate.yaml examples/accelerate_train.py
alone    berth run -n 4 -- accelerate launch --config_file examples/accelerate.yaml examples/accelerate_train.py

For more ranks, change num_processes in the file, or add --num_processes N before the script.
Without `accelerate launch` the ranks read no file of accelerate: berth run -- python examples/accelerate_train.py
"""
import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=not torch.cuda.is_available())

# A problem that a linear model solves. Replace it by your data set.
generator = torch.Generator().manual_seed(3)
x = torch.randn(256, 8, generator=generator)
y = x @ torch.arange(8.).unsqueeze(1) + 1
model = torch.nn.Linear(8, 1)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(TensorDataset(x, y), batch_size=16))
losses = []
for _ in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())

assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {accelerator.process_index} of {accelerator.num_processes} on {os.uname().nodename}: loss falls', flush=True)
accelerator.end_training()
