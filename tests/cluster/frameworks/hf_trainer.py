# SPDX-License-Identifier: BSD-3-Clause
"""The Trainer of Hugging Face transformers."""
import tempfile

import torch
from transformers import Trainer, TrainingArguments

from common import data, report


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {'loss': torch.nn.functional.mse_loss(out, labels), 'logits': out}


rows = [{'x': x, 'labels': y} for x, y in zip(*data(torch))]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(output_dir=folder, use_cpu=True, num_train_epochs=3, learning_rate=0.3, report_to=[],
                                  per_device_train_batch_size=16, logging_steps=1, save_strategy='no', disable_tqdm=True)
    trainer = Trainer(Model(), arguments, train_dataset=rows)
    trainer.train()
    losses = [entry['loss'] for entry in trainer.state.log_history if 'loss' in entry]
    report(arguments.process_index, arguments.world_size, float(losses[0]), float(losses[-1]))
