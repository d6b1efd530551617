# SPDX-License-Identifier: BSD-3-Clause
"""Runs the parts of tests/gpu/run.sh one after another, each within its limit, and writes their results to two files."""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

import right
import speed
from here import ROOT, Fail, Here, Skip, pack

BENCHES = {  # model, batch, precision, steps; times PyTorch eager and compile that are aimed at
    'resnet50-bf16': (('resnet50', 256, 'bf16', 100), 1.3, 1.1),
    'resnet50-fp16': (('resnet50', 256, 'fp16', 100), 1.3, 1.1),
    'resnet18-128': (('resnet18-cifar', 128, 'bf16', 1000), 3, None),
    'resnet18-512': (('resnet18-cifar', 512, 'bf16', 400), 2, 1.2),
}
# name: (function, limit in seconds, minimum of seconds to start it, what it tests), in order of importance for a machine
# that is there for half an hour. Each limit fits into a command of 10 minutes.
PARTS = {
    'machine': (speed.machine, 540, 10, 'GPUs, driver, PyTorch, libraries; makes the build if none is given'),
    'smoke': (speed.smoke, 120, 15, 'a small network learns in each precision'),
    **{f'own-{name}': (speed.alone(*what), 400, 60, 'berth alone') for name, (what, _, _) in BENCHES.items()},
    **{f'eager-{name}': (speed.beside('eager', goal, *what), 300, 60, 'in turns with PyTorch eager')
       for name, (what, goal, _) in BENCHES.items()},
    'conformance': (right.conformance, 300, 30, 'every op in fp32 against float64'),
    'conformance-16bit': (right.conformance_16bit, 300, 30, 'every op in fp16 and bf16 against float64'),
    'steps': (right.steps, 400, 30, 'whole steps in fp32, bf16, fp16, with a graph and without'),
    'ddp': (right.ddp, 400, 60, 'two ranks on one GPU: whole and partial batches, resumed on one and two'),
    'layer-types': (speed.layer_types, 400, 60, 'where the time of a step goes'),
    'fifty-steps': (right.fifty_steps, 500, 60, 'fp32, bf16, fp16 and PyTorch, both compared with float64'),
    'checkpoints': (right.checkpoints, 400, 40, 'CPU to GPU and back, --deterministic'),
    'one-step': (right.one_step, 540, 60, 'gradients and update of a step against float64'),
    'sanitizer': (right.sanitizer, 540, 60, 'memory errors, races, uninitialized memory'),
    'nccl-shared-gpu': (speed.nccl_shared_gpu, 230, 60, 'two ranks on one GPU with NCCL_HOSTID'),
    'cudnn-fusions': (speed.cudnn('cudnn-fusions'), 120, 20, 'which fused batch norms work, and their time'),
    'conv-layers': (speed.conv_layers, 200, 30, 'each convolution compared with its floor'),
    'cudnn-engines': (speed.cudnn('cudnn-engines'), 240, 40,
                      'which engines of the graph API can be built, and their time'),
    **{f'compile-{name}': (speed.beside('compile', goal, *what), 580, 300, 'in turns with PyTorch compile')
       for name, (what, _, goal) in BENCHES.items() if goal},
}
# Groups of parts, for --only.
GROUPS = {
    'experiments': ['nccl-shared-gpu', 'cudnn-fusions', 'conv-layers', 'cudnn-engines'],
    'right': ['conformance', 'conformance-16bit', 'steps', 'ddp', 'fifty-steps', 'checkpoints', 'sanitizer', 'one-step'],
    'speed': [name for name in PARTS if name.startswith(('own-', 'eager-', 'compile-'))] + ['layer-types'],
}


class Found(dict):
    """What a part has found; saved with each figure, as the run may be ended at any moment."""

    def __init__(self, save):
        super().__init__()
        self.save = save

    def __setitem__(self, name, value):
        super().__setitem__(name, value)
        self.save(self)


class Over(BaseException):
    """A part exceeded its limit. A BaseException, so that no part handles it by mistake."""


def attempt(here, name, left_s, save=lambda found: None):
    function, limit_s, least_s, _ = PARTS[name]
    limit_s = int(min(limit_s, left_s))
    if limit_s < least_s:
        return {'result': 'skipped', 'reason': f'no time was left: it needs at least {least_s} s, but only {limit_s} s are left',
                'seconds': 0.0}
    begin, found = time.monotonic(), Found(save)

    def over(*_):
        raise Over

    signal.signal(signal.SIGALRM, over)
    signal.alarm(limit_s)
    here.until = begin + limit_s
    try:
        function(here, found)
        result = {'result': 'passed'}
    except Over:
        result = {'result': 'failed', 'reason': f'exceeded its limit of {limit_s} s'}
    except Skip as why:
        result = {'result': 'skipped', 'reason': str(why)}
    except (Fail, OSError, ValueError, KeyError, IndexError, TypeError, ZeroDivisionError,
            subprocess.SubprocessError) as why:
        result = {'result': 'failed', 'reason': f'{"" if isinstance(why, Fail) else type(why).__name__ + ": "}{why}'}
    finally:
        signal.alarm(0)
        here.until = None
    result['seconds'] = round(time.monotonic() - begin, 1)
    result['at'] = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
    if found:
        result['found'] = found
    return result


def before(folder):
    """The results of earlier calls."""
    try:
        with open(os.path.join(folder, 'results.json'), encoding='utf-8') as file:
            return {name: part for name, part in json.load(file)['parts'].items() if name in PARTS}
    except (OSError, ValueError, KeyError):
        return {}


def write(folder, results):
    """Write both files, so that figures survive whatever ends the run later."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, 'results.json')
    with open(path + '.new', 'w', encoding='utf-8') as file:
        json.dump({'schema': 'berth.gpu/1', 'parts': results}, file, indent=1)
        file.write('\n')
    os.replace(path + '.new', path)
    wide = max(len(name) for name in PARTS)
    with open(os.path.join(folder, 'table.txt'), 'w', encoding='utf-8') as file:
        for name in PARTS:
            if name in results:
                result = results[name]
                said = '; '.join(text for text in (result.get('reason', '').replace('\n', ' | '), json.dumps(
                    result['found']) if 'found' in result else '') if text)
                file.write(f'{name:{wide}}  {result["result"]:7}  {result["seconds"]:8.1f} s  {said}\n')


def options_of(arguments):
    parser = argparse.ArgumentParser(prog='tests/gpu/run.sh', description='see the comment in run.sh')
    parser.add_argument('--build')
    parser.add_argument('--out', default=os.path.join(ROOT, 'gpu-results'))
    parser.add_argument('--only', type=lambda text: text.split(','))
    parser.add_argument('--resume', action='store_true')
    parser.add_argument('--time', type=int, default=10**9)
    parser.add_argument('--list', action='store_true')
    parser.add_argument('--pack')
    options = parser.parse_args(arguments)
    for name in ('build', 'out', 'pack'):
        if getattr(options, name):
            setattr(options, name, os.path.join(os.environ.get('BERTH_GPU_FROM', ROOT), getattr(options, name)))
    return options


def chosen(only):
    """The names of the chosen parts; None if one of them is unknown."""
    names = [part for name in only or PARTS for part in GROUPS.get(name, [name])]
    unknown = sorted(set(names) - PARTS.keys())
    if not unknown:
        return list(dict.fromkeys(names))
    print(f'unknown part {unknown[0]}; expected one of: {", ".join(PARTS)}; or a group: {", ".join(GROUPS)}',
          file=sys.stderr)
    return None


def perform(options, names):
    here, now, end = Here(options.build, options.out), {}, time.monotonic() + options.time
    results = before(options.out)
    for name in names:
        if options.resume and results.get(name, {}).get('result') == 'passed':
            print(f'{name}: passed before', flush=True)
            continue
        print(f'{name} ...', file=sys.stderr, flush=True)
        began = time.monotonic()

        def save(found, name=name, began=began):
            write(options.out, {**results, name: {'result': 'failed', 'reason': 'was ended', 'found': found,
                                                  'seconds': round(time.monotonic() - began, 1)}})

        now[name] = attempt(here, name, end - time.monotonic() - 10, save)
        # Keep an earlier result if this call had no time for the part.
        if 'at' in now[name] or name not in results:
            results[name] = now[name]
        write(options.out, results)
        print(f'{name}: {now[name]["result"]} ({now[name]["seconds"]} s) {now[name].get("reason", "")}', flush=True)
    return now


def main():
    options = options_of(sys.argv[1:])
    if options.list:
        for name, (_, limit_s, _, what) in PARTS.items():
            print(f'{name:20} {limit_s:5} s  {what}')
        return 0
    if options.pack:
        try:
            print(f'{options.pack}: {pack(options.pack) >> 20} MiB')
        except (Skip, Fail) as why:
            print(f'cannot make {options.pack}: {why}', file=sys.stderr)
            return 69
        return 0
    names = chosen(options.only)
    if not names:
        return 64
    now = perform(options, names)
    count = {kind: sum(r['result'] == kind for r in now.values()) for kind in ('passed', 'failed', 'skipped')}
    print(f'{count["passed"]} passed, {count["failed"]} failed, {count["skipped"]} skipped; '
          f'{os.path.join(options.out, "table.txt")}, results.json')
    return 1 if count['failed'] else 0 if count['passed'] or not now else 77


if __name__ == '__main__':
    sys.exit(main())
