# SPDX-License-Identifier: BSD-3-Clause
"""A training program asks for its berth: its rank, its device, and when to stop.

Every function works without berth, too: under torchrun, or alone as rank 0 of 1. Variables that
contradict each other raise Error. Nothing here imports a framework; see berth.torch, berth.jax,
berth.lightning and berth.transformers.
"""
from __future__ import annotations  # for Python 3.9

import importlib.metadata
import json
import os
import tempfile
import warnings
from typing import Any

__all__ = ['EXIT_STOPPED', 'Error', 'device', 'end_time', 'heartbeat', 'local_rank', 'local_world_size', 'node_rank',
           'plan', 'rank', 'report', 'should_stop', 'world_size']

EXIT_STOPPED = 75
"""The exit code of a program that has saved its work and can be started again."""

_PLAN_MAX = 64 << 20


class Error(ValueError):
    """A variable or file from berth that cannot be right."""


def _number(name: str, default: int, low: int = 0, high: int = 1 << 62) -> int:
    text = os.environ.get(name, '')
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise Error(f'{name} is {text[:40]!r}, not a number from {low} to {high}')
    return int(text)


def world_size() -> int:
    """The number of ranks in the job; 1 without a launcher."""
    size = _number('WORLD_SIZE', 1, 1)
    if 'RANK' in os.environ and 'WORLD_SIZE' not in os.environ:
        raise Error('RANK is set, but WORLD_SIZE is not')
    return size


def rank() -> int:
    """This process's number, from 0 to world_size() - 1."""
    size = world_size()
    if size > 1 and not os.environ.get('RANK'):
        raise Error(f'WORLD_SIZE is {size}, but RANK is not set')
    return _number('RANK', 0, 0, size - 1)


def local_world_size() -> int:
    """The number of ranks on this node."""
    return _number('LOCAL_WORLD_SIZE', 1, 1, world_size())


def local_rank() -> int:
    """This process's number on its node, from 0."""
    return _number('LOCAL_RANK', 0, 0, local_world_size() - 1)


def node_rank() -> int:
    """This node's number in the job, from 0."""
    return _number('BERTH_NODE_RANK', _number('GROUP_RANK', 0))


def plan() -> dict[str, Any] | None:
    """This rank's part of the plan (an entry of ranks[] in berth.plan/1); None without berth."""
    path = os.environ.get('BERTH_PLAN_FILE')
    if not path:
        return None
    try:
        with open(path, encoding='utf-8') as file:
            text = file.read(_PLAN_MAX)
        ranks = json.loads(text)['ranks']
        return next(dict(entry) for entry in ranks if entry['local_rank'] == local_rank())
    except OSError as error:
        raise Error(f'BERTH_PLAN_FILE {path}: {error.strerror}') from error
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise Error(f'BERTH_PLAN_FILE {path} is no plan with local rank {local_rank()}') from error


def device() -> str:
    """This rank's device as PyTorch names it: 'cuda:1' (also on AMD GPUs), 'xpu:1' or 'cpu'."""
    kind = 'xpu' if os.environ.get('ZE_AFFINITY_MASK') else 'cuda'
    entry = plan()
    if entry is not None:
        gpus = entry.get('gpus') or []
        return f'{kind}:{gpus[0]["ordinal"]}' if gpus else 'cpu'
    names = ('CUDA_VISIBLE_DEVICES', 'ROCR_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES', 'ZE_AFFINITY_MASK')
    return f'{kind}:{local_rank()}' if any(os.environ.get(name) for name in names) else 'cpu'


def end_time() -> int | None:
    """When the scheduler will end the job, in Unix seconds; None if unknown."""
    try:
        with open(os.environ.get('BERTH_END_TIME_FILE', ''), encoding='ascii') as file:
            return int(file.read(64))
    except (OSError, ValueError):
        return _number('BERTH_END_TIME', 0) or None


def should_stop() -> bool:
    """Has berth asked this rank to save and to exit with EXIT_STOPPED? Other ranks may learn it a moment
    later: ranks that have to agree use berth.torch.StopInTime."""
    path = os.environ.get('BERTH_STOP_FILE')
    return path is not None and os.path.exists(path)


def heartbeat(step: float, text: str = '') -> None:
    """Tell berth which step this rank has completed, for --hang-timeout and --max-restarts."""
    path = os.environ.get('BERTH_HEARTBEAT_FILE')
    if path:
        with open(path, 'w', encoding='utf-8') as file:
            file.write(f'{step} {" ".join(text.split())}'.rstrip() + '\n')


def report(saved: str | None = None, next: str | None = None) -> None:  # pylint: disable=redefined-builtin
    """Tell berth what was saved and what to do next; it shows both at the job's end and in --report."""
    path = os.environ.get('BERTH_REPORT')
    if not path:
        return
    content = {key: str(value) for key, value in (('saved', saved), ('next', next)) if value is not None}
    handle, name = tempfile.mkstemp(dir=os.path.dirname(path) or '.', prefix='.report-')
    try:
        with os.fdopen(handle, 'w', encoding='utf-8') as file:
            json.dump(content, file)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _warn_about_namesake() -> None:
    try:
        importlib.metadata.distribution('berth')
    except importlib.metadata.PackageNotFoundError:
        return
    warnings.warn("the packages 'berth' and 'berth-hpc' are both installed and overwrite each other's files: "
                  "uninstall both, then install the one that you need", ImportWarning, stacklevel=3)


_warn_about_namesake()
