# SPDX-License-Identifier: BSD-3-Clause
"""The cost of a checkpoint every 30 s in images per second, on all cores of this machine:
    ckpt_throughput.py BERTH [--model resnet18] [--stem cifar|default] [--batch N] [--every S] [--pairs N]
One training saves every 2 * --every seconds. A pair consists of the --every seconds that begin with a save (which
include stall, checksums, writing, fsync and the removal of an old checkpoint) and the following --every seconds
without one. Both are of one process, because two processes may differ by more than the effect. Steps are counted by
the time at which each is reported. Prints the median and quartiles of the pairs' ratios, and the ratio of the totals.
Needs all cores of an idle machine. If its speed varies by more than the effect, stall and write give an upper
limit."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def train(options, folder):
    """-> times at which steps were done; rows of checkpoints, each with the index of its step."""
    stem = ['--stem', options.stem] if options.model != 'convnet' else []
    process = subprocess.Popen(
        [os.path.join(os.path.dirname(os.path.abspath(options.berth)), 'berth-train'), options.model, *stem, '--data',
         'synthetic:3x32x32,n=4096,classes=10', '--batch', str(options.batch), '--steps', '1000000', '--epochs',
         '1000000', '--no-eval', '--log-every', '1', '--metrics', folder, '--ckpt', folder + '/ckpt', '--keep', '2',
         '--save-every', f'{2 * options.every}s'],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=dict(os.environ, OMP_NUM_THREADS=str(options.threads)))
    steps, words = [], []
    end = time.monotonic() + 2 * options.every * (options.pairs + 1) + 3
    for line in process.stderr:
        if line.startswith('epoch '):
            steps.append(time.monotonic())
        else:
            words.append(line)
        if time.monotonic() > end:
            process.kill()
    process.wait(60)
    try:
        with open(folder + '/metrics.jsonl', encoding='utf-8') as file:
            rows = [json.loads(line) for line in file if line.endswith('\n')]
    except FileNotFoundError:
        sys.exit('ckpt_throughput.py: the training ended: ' + ''.join(words))
    return steps, [row for row in rows if row['split'] == 'checkpoint']


def rate(steps, begin, end):
    """Steps per second from the first to the last one in that interval."""
    inside = [when for when in steps if begin <= when < end]
    if len(inside) < 5:
        sys.exit(f'ckpt_throughput.py: {len(inside)} steps in {end - begin:.0f} s: use a smaller --batch')
    return (len(inside) - 1) / (inside[-1] - inside[0])


def main(options):
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        steps, rows = train(options, folder)
    saved, plain = [], []
    for row in rows:
        begin = steps[row['step'] - 1]  # reported just before the snapshot
        if begin + 2 * options.every > steps[-1] + 1:
            continue
        saved.append(rate(steps, begin, begin + options.every))
        plain.append(rate(steps, begin + options.every, begin + 2 * options.every))
        print(f'pair {len(saved)}: {plain[-1] * options.batch:.1f} images/s without, '
              f'{saved[-1] * options.batch:.1f} with', flush=True)
    ratios = [one / other for one, other in zip(saved, plain)]
    if not ratios:
        sys.exit(f'ckpt_throughput.py: no pair; checkpoints: {rows}')
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    stall, write = (statistics.median(row[name] for row in rows) for name in ('stall_ms', 'write_ms'))
    print(f'{options.model}, stem {options.stem}, batch {options.batch}, {options.threads} threads, a checkpoint of '
          f'{rows[0]["size_bytes"] / 1e6:.0f} MB in {options.every} s: stall {stall:.0f} ms, written in {write:.0f} ms '
          f'in the background: {(stall + write) / options.every / 10:.1f} % if training stopped for both (aim: 2 %)')
    print(f'images/s with / without: {middle:.3f} (quartiles {low:.3f} and {high:.3f}, {len(ratios)} pairs; aim: at '
          f'least 0.98); of all {sum(saved) / sum(plain):.3f}')


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('berth')
parser.add_argument('--model', default='resnet18')
parser.add_argument('--stem', default='cifar')
parser.add_argument('--dir', default=None, help='directory for checkpoints')
for name, default in (('batch', 16), ('threads', len(os.sched_getaffinity(0))), ('every', 30), ('pairs', 4)):
    parser.add_argument('--' + name, type=int, default=default)
main(parser.parse_args())
