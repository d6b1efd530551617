# SPDX-License-Identifier: BSD-3-Clause
"""Lightning with berth.lightning.SaveAndStop."""
import os
import signal
import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import berth.lightning

path = sys.argv[1] + '.ckpt'


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        if os.environ.get('SIGNAL_AT') == str(index) and self.global_rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


resumes = os.path.exists(path)
if resumes:
    print('resumed after step', torch.load(path, weights_only=False)['global_step'], flush=True)
trainer = lightning.Trainer(accelerator='cpu', max_epochs=2, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, callbacks=[berth.lightning.SaveAndStop(path, save_seconds=0)])
trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(64, 2)), batch_size=4), ckpt_path=path if resumes else None)
