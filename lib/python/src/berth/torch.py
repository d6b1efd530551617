# SPDX-License-Identifier: BSD-3-Clause
"""berth for PyTorch programs: start, stop together in time, and an order of samples that survives a resume."""
from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sized
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

import berth

__all__ = ['ResumableSampler', 'StopInTime', 'exit_stopped', 'init']


def init(backend: str | None = None, **arguments: Any) -> torch.device:
    """Choose this rank's device and call init_process_group with the backend that fits it ('nccl' for
    GPUs, 'gloo' for CPUs). Return the device. Without a launcher there is no process group."""
    device = torch.device(berth.device())
    if device.type != 'cpu':  # Slurm may set the device lists of all vendors
        usable = [kind for kind in (device.type, 'cuda', 'xpu') if hasattr(torch, kind) and getattr(torch, kind).is_available()]
        device = torch.device(usable[0], device.index) if usable else torch.device('cpu')
    if device.type == 'cuda':
        torch.cuda.set_device(device)
    if berth.world_size() > 1:
        dist.init_process_group(backend or {'cuda': 'nccl', 'xpu': 'xccl'}.get(device.type, 'gloo'), **arguments)
    return device


class StopInTime:
    """Call it after each step, on every rank. It returns True on all ranks after the same step, once one of
    them should save and stop: berth asked for it, a stop signal arrived, or the job's end is near.

    save_seconds: how long saving takes. The longest step so far is added to it. every: ask the other ranks
    only after every so many calls. signals: received instead of ending the program.
    """

    def __init__(self, save_seconds: float = 60, every: int = 1,
                 signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGUSR1)) -> None:
        if every < 1:
            raise ValueError(f'every is {every}, not at least 1')
        self._save_seconds = save_seconds
        self._every = every
        self._calls = 0
        self._longest = 0.
        self._called = time.monotonic()
        self._stop = False
        # The clock of the day may be set; the time that is left is measured once.
        end = berth.end_time()
        self._deadline = None if end is None else time.monotonic() + end - time.time()
        if threading.current_thread() is threading.main_thread():
            for number in signals:
                signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: Any) -> None:
        self._stop = True

    def __call__(self) -> bool:
        now = time.monotonic()
        self._longest = max(self._longest, now - self._called)
        self._called = now
        self._calls += 1
        if self._calls % self._every:
            return False
        reserve = self._save_seconds + self._every * self._longest
        stop = self._stop or berth.should_stop() or (self._deadline is not None and now + reserve > self._deadline)
        if dist.is_available() and dist.is_initialized():
            device = {'nccl': 'cuda', 'xccl': 'xpu'}.get(str(dist.get_backend()), 'cpu')
            flag = torch.tensor([int(stop)], device=device)
            dist.all_reduce(flag, dist.ReduceOp.MAX)
            stop = bool(flag.item())
        self._stop = self._stop or stop
        return stop


def exit_stopped() -> NoReturn:
    """sys.exit(berth.EXIT_STOPPED) that PyTorch cannot turn into an abort. Within Lightning and the Hugging Face
    Trainer, PyTorch 2.15 often ends with SIGABRT after the interpreter, and the job would not be requeued.
    Clean-up code and functions of atexit run as usual; an exception that ends the program keeps its exit code, but
    another SystemExit does not."""
    atexit.register(_leave)
    raise SystemExit(berth.EXIT_STOPPED)


def _leave() -> None:
    """Registered last, so it runs first: the other functions of atexit, then the end."""
    atexit.unregister(_leave)
    if getattr(sys, 'last_value', None) is not None:
        return  # the clean-up code has failed
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(berth.EXIT_STOPPED)


class ResumableSampler(Sampler[int]):
    """This rank's share of a dataset. After a resume, also with another number of ranks, an epoch goes on with
    the samples that no rank has seen.

        sampler = ResumableSampler(dataset)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for batch in DataLoader(dataset, batch_size, sampler=sampler):
                ...
                sampler.advance(batch_size)     # then save sampler.state_dict() with the model

    Ranks get the same number of samples: at the end of an epoch up to world_size - 1 samples are repeated.
    All ranks need the same batch size.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self._size = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self.epoch = 0
        self._seen = 0  # by all ranks together, in this epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch; if it is the current one, continue it."""
        if epoch != self.epoch:
            self.epoch, self._seen = epoch, 0

    def advance(self, samples: int) -> None:
        """Each rank has trained on so many further samples. Counted here and not in the iterator, since a
        DataLoader reads ahead."""
        self._seen = min(self._size, self._seen + samples * berth.world_size())

    def _left(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._seen, self._size))
        generator = torch.Generator().manual_seed(self._seed + self.epoch)
        order: list[int] = torch.randperm(self._size, generator=generator).tolist()
        return order[self._seen:]

    def __len__(self) -> int:
        return -(-(self._size - self._seen) // berth.world_size())

    def __iter__(self) -> Iterator[int]:
        left = self._left()
        missing = len(self) * berth.world_size() - len(left)
        left += (left * berth.world_size())[:missing]
        return iter(left[berth.rank()::berth.world_size()])

    def state_dict(self) -> dict[str, int]:
        """The same on all ranks."""
        return {'epoch': self.epoch, 'seen': self._seen, 'seed': self._seed, 'size': self._size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where state_dict() was called. ValueError if it is of a dataset of another size."""
        if state['size'] != self._size:
            raise ValueError(f'the checkpoint is of a dataset of {state["size"]} samples, not {self._size}')
        self.epoch, self._seen, self._seed = state['epoch'], state['seen'], state['seed']
