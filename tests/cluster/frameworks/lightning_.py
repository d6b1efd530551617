# SPDX-License-Identifier: BSD-3-Clause
"""Lightning: Trainer() with neither devices nor num_nodes."""
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

from common import data, report


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


model = Model()
trainer = lightning.Trainer(accelerator='cpu', max_epochs=3, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(model, DataLoader(TensorDataset(*data(torch)), batch_size=16))
report(trainer.global_rank, trainer.world_size, model.losses[0], model.losses[-1])
