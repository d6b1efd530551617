# SPDX-License-Identifier: BSD-3-Clause
"""berth for Lightning: Trainer(callbacks=[berth.lightning.SaveAndStop('last.ckpt')])."""
from typing import Any

import lightning.pytorch

import berth
import berth.torch

__all__ = ['SaveAndStop']


class SaveAndStop(lightning.pytorch.Callback):
    """Report each step to berth. When the job should stop, save a checkpoint to path, and end the program with
    exit code 75 after fit(). Resume with fit(ckpt_path=path). arguments: of berth.torch.StopInTime."""

    def __init__(self, path: str, **arguments: Any) -> None:
        self._path = path
        self._stop = berth.torch.StopInTime(**arguments)
        self._stopped = False

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """A Lightning hook."""
        berth.heartbeat(trainer.global_step)
        if not self._stopped and self._stop():
            self._stopped = True
            trainer.save_checkpoint(self._path)
            berth.report(saved=self._path, next='start the same command again')
            trainer.should_stop = True

    def on_fit_end(self, *_: Any) -> None:
        """A Lightning hook."""
        if self._stopped:
            berth.torch.exit_stopped()
