# SPDX-License-Identifier: BSD-3-Clause
"""Lightning. Trainer() gets neither devices nor num_nodes: berth sets their defaults.

Slurm    #SBATCH --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         berth run -- python examples/lightning_trainer.py
PBS      #PBS -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run -- python examples/lightning_trainer.py
alone    berth run -n 4 -- python examples/lightning_trainer.py

To save and stop in time, see docs/guides/pytorch.md#the-python-package.
"""
import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
        self.losses = []

    def training_step(self, batch):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


# A problem that a linear model solves. Replace it by your data set.
generator = torch.Generator().manual_seed(3)
x = torch.randn(256, 8, generator=generator)
y = x @ torch.arange(8.).unsqueeze(1) + 1
model = Model()
trainer = lightning.Trainer(max_epochs=3, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                            enable_model_summary=False)
trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=16))

losses = model.losses
assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {trainer.global_rank} of {trainer.world_size} on {os.uname().nodename}: loss falls', flush=True)
