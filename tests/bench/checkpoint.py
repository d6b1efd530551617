# SPDX-License-Identifier: BSD-3-Clause
"""The cost of checkpoints for training ResNet-50 on the CPU, in one process:
    checkpoint.py BERTH [--threads 2] [--batch 4] [--seconds 30] [--rounds 3]
Runs of about --seconds without and with one checkpoint (204 MB) take turns, so that other load affects both
alike. Prints the stall relative to a step, the duration of a write in the background, and the images per second
with a checkpoint every --seconds and without."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SKIPPED = 2  # warm-up steps


def train(options, steps, save):
    """-> seconds of each step, rows of checkpoints."""
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        command = [os.path.join(os.path.dirname(os.path.abspath(options.berth)), 'berth-train'), 'resnet50', '--data',
                   f'synthetic:3x224x224,n={options.batch * 2},classes=1000', '--batch', str(options.batch), '--steps',
                   str(steps + SKIPPED), '--no-eval', '--log-every', '1', '--metrics', folder]
        if save:
            command += ['--ckpt', folder + '/c', '--save-every', str(steps // 2 + SKIPPED)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env=dict(os.environ, OMP_NUM_THREADS=str(options.threads)))
        with open(os.path.join(folder, 'metrics.jsonl'), encoding='utf-8') as file:
            rows = [json.loads(line) for line in file]
    seconds = [options.batch / row['images_per_s'] for row in rows if row['split'] == 'train'][SKIPPED:]
    return seconds, [row for row in rows if row['split'] == 'checkpoint']


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('berth')
    for name, default in (('threads', 2), ('batch', 4), ('seconds', 30), ('rounds', 3)):
        parser.add_argument('--' + name, type=int, default=default)
    parser.add_argument('--dir', default=None, help='directory for checkpoints')
    options = parser.parse_args()
    first, _ = train(options, 4, False)
    steps = max(4, round(options.seconds / statistics.median(first)))
    saved, plain, stalls, writes, one = [], [], [], [], []
    size = 0
    for number in range(options.rounds):
        # Alternate which one is first.
        for save in (False, True) if number % 2 == 0 else (True, False):
            seconds, rows = train(options, steps, save)
            one += seconds
            # The final save comes after the steps.
            middle = [row for row in rows if row['step'] < steps + SKIPPED]
            if save and len(middle) != 1:
                sys.exit(f'checkpoint.py: expected one checkpoint within {steps} steps, saw {rows}')
            (saved if save else plain).append(steps * options.batch
                                              / (sum(seconds) + sum(row['stall_ms'] for row in middle) / 1e3))
            stalls += [row['stall_ms'] for row in middle]
            writes += [row['write_ms'] for row in middle]
            size = max([size] + [row['size_bytes'] for row in rows])
    step = statistics.median(one) * 1e3
    print(f'ResNet-50, batch {options.batch}, {options.threads} threads, {options.rounds} rounds of {steps} steps, load '
          f'average {os.getloadavg()[0]:.1f}')
    print(f'a step                          {step:8.1f} ms (median)')
    print(f'stall of a checkpoint           {statistics.median(stalls):8.1f} ms (median), {max(stalls):.1f} ms (largest): '
          f'{max(stalls) / step:.3f} of a step')
    print(f'written in the background in    {statistics.median(writes):8.1f} ms (median), {size / 1e6:.1f} MB')
    print(f'without checkpoints             {statistics.median(plain):8.3f} images/s ({min(plain):.3f} to {max(plain):.3f})')
    print(f'with one in {steps * step / 1e3:4.0f} s              {statistics.median(saved):8.3f} images/s ({min(saved):.3f} to '
          f'{max(saved):.3f})')
    print(f'with / without                  {statistics.median(saved) / statistics.median(plain):8.4f}')


if __name__ == '__main__':
    main()
