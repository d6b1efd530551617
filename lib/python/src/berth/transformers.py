# SPDX-License-Identifier: BSD-3-Clause
"""berth for the Trainer of Hugging Face transformers: Trainer(callbacks=[berth.transformers.SaveAndStop()])."""
import os
from typing import Any

import transformers

import berth
import berth.torch

__all__ = ['SaveAndStop']


class SaveAndStop(transformers.TrainerCallback):
    """Report each step to berth. When the job should stop, save a checkpoint, and end the program with exit code
    75. Resume with train(resume_from_checkpoint=True). arguments: of berth.torch.StopInTime."""

    def __init__(self, **arguments: Any) -> None:
        self._stop = berth.torch.StopInTime(**arguments)
        self._stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """A hook of the Trainer."""
        berth.heartbeat(state.global_step)
        if not self._stopped and self._stop():
            self._stopped = True
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A hook of the Trainer."""
        if self._stopped:
            berth.report(saved=os.path.join(args.output_dir, f'checkpoint-{state.global_step}'),
                         next='start the same command again')
            berth.torch.exit_stopped()
