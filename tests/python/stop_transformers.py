# SPDX-License-Identifier: BSD-3-Clause
"""The Hugging Face Trainer with berth.transformers.SaveAndStop."""
import gc
import os
import signal
import sys

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import berth
import berth.transformers

folder = sys.argv[1]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        out = self.layer(x)
        return {'loss': (out - labels).square().mean(), 'logits': out}


class Signal(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if os.environ.get('SIGNAL_AT') == str(state.global_step) and berth.rank() == 1:
            os.kill(os.getpid(), signal.SIGUSR1)


rows = [{'x': torch.randn(2), 'labels': torch.zeros(1)} for _ in range(64)]
arguments = TrainingArguments(output_dir=folder, use_cpu=True, num_train_epochs=2, per_device_train_batch_size=4,
                              report_to=[], save_strategy='no', disable_tqdm=True)
trainer = Trainer(Model(), arguments, train_dataset=rows,
                  callbacks=[Signal(), berth.transformers.SaveAndStop(save_seconds=0)])
saved = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
if saved:
    print('resumed after step', saved[-1], flush=True)
trainer.train(resume_from_checkpoint=True if saved else None)
# Otherwise PyTorch 2.15 sometimes aborts as the interpreter ends ("terminate called without an active exception"), also
# under torchrun.
del trainer
gc.collect()
torch.distributed.destroy_process_group()
