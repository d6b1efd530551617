# SPDX-License-Identifier: BSD-3-Clause
"""Hugging Face's Trainer, with a model of its own.

Slurm    #SBATCH --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         berth run -- python examples/hf_trainer.py
PBS      #PBS -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run -- python examples/hf_trainer.py
alone    berth run -n 4 -- python examples/hf_trainer.py

To save and stop in time, see docs/guides/pytorch.md#the-python-package.
"""
import os
import tempfile

import torch
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {'loss': torch.nn.functional.mse_loss(out, labels), 'logits': out}


# A problem that a linear model solves. Replace it by your data set.
generator = torch.Generator().manual_seed(3)
x = torch.randn(256, 8, generator=generator)
y = x @ torch.arange(8.).unsqueeze(1) + 1
rows = [{'x': x, 'labels': y} for x, y in zip(x, y)]
with tempfile.TemporaryDirectory() as directory:
    arguments = TrainingArguments(
        output_dir=directory, use_cpu=not torch.cuda.is_available(), num_train_epochs=3, learning_rate=0.3, report_to=[],
        per_device_train_batch_size=16, logging_steps=1, save_strategy='no', disable_tqdm=True)
    trainer = Trainer(Model(), arguments, train_dataset=rows)
    trainer.train()

losses = [float(entry['loss']) for entry in trainer.state.log_history if 'loss' in entry]
assert losses[-1] < 0.5 * losses[0], f'the loss did not fall: {losses[0]} -> {losses[-1]}'
print(f'rank {arguments.process_index} of {arguments.world_size} on {os.uname().nodename}: loss falls', flush=True)
