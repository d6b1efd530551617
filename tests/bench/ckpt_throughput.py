# SPDX-License-Identifier: BSD-3-Clause
"""What a checkpoint every 30 s costs a training in images a second, on all cores of this machine:
    ckpt_throughput.py BERTH [--model resnet18] [--stem cifar|default] [--batch N] [--every S] [--pairs N]
Two trainings, one with --save-every and one without, take turns, stopped and continued by signals, each
for --every seconds of clock. While one is stopped its clock goes on, so its turn begins with a save, and
the next would come when the turn is over: a turn has exactly one checkpoint, stall, checksums, writing,
fsync and the removal of an old one included (that is looked at, not assumed). Counted are the steps between
the first and the last word of a turn that one is done, by the clock that these words come at. A pair is a turn of each, side by side; who is first changes from pair to
pair, so that a host which gets slower or faster counts for both. Told are the median of the pairs'
ratios with its quartiles, and the ratio of all steps. Needs all cores and nothing else going on."""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time


class Training:
    """One process of berth-train that is either going on or stopped."""

    def __init__(self, options, folder, save):
        os.mkdir(folder)
        self.metrics = folder + '/metrics.jsonl'
        self.steps = []  # when each was said to be done
        self.words = []  # whatever else it said
        stem = ['--stem', options.stem] if options.model != 'convnet' else []
        saving = ['--ckpt', folder + '/ckpt', '--keep', '2', '--save-every', f'{options.every}s'] if save else []
        self.process = subprocess.Popen(
            [os.path.join(os.path.dirname(os.path.abspath(options.berth)), 'berth-train'), options.model, *stem,
             '--data', 'synthetic:3x32x32,n=4096,classes=10', '--batch', str(options.batch), '--steps', '1000000',
             '--epochs', '1000000', '--no-eval', '--log-every', '1', '--metrics', folder, *saving],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, OMP_NUM_THREADS=str(options.threads)))
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            if line.startswith('epoch '):
                self.steps.append(time.monotonic())
            else:
                self.words.append(line)

    def checkpoints(self):
        try:
            with open(self.metrics, encoding='utf-8') as file:
                rows = [json.loads(line) for line in file if line.endswith('\n')]
        except FileNotFoundError:
            return []
        return [row for row in rows if row['split'] == 'checkpoint']

    def warm(self, steps):
        while len(self.steps) < steps:
            if self.process.poll() is not None:
                sys.exit('ckpt_throughput.py: the training ended: ' + ''.join(self.words))
            time.sleep(0.1)
        self.process.send_signal(signal.SIGSTOP)

    def turn(self, seconds):
        """-> steps a second, rows of the checkpoints of this turn."""
        before, saved = len(self.steps), self.checkpoints()
        self.process.send_signal(signal.SIGCONT)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        steps = self.steps[before:]
        if len(steps) < 10:
            sys.exit(f'ckpt_throughput.py: {len(steps)} steps in {seconds} s: ' + ''.join(self.words))
        return (len(steps) - 1) / (steps[-1] - steps[0]), self.checkpoints()[len(saved):]

    def end(self):
        self.process.kill()
        self.process.wait(60)
        self.reader.join()


def main(options):
    plain, saved, rows = [], [], []
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        trainings = []
        try:
            for save in (False, True):
                trainings.append(Training(options, f'{folder}/{save}', save))
                trainings[-1].warm(5)
            without, with_one = trainings
            time.sleep(options.every)  # the first turn, too, begins with a save
            for number in range(options.pairs):
                for training in (without, with_one) if number % 2 else (with_one, without):
                    rate, new = training.turn(options.every)
                    (plain if training is without else saved).append(rate)
                    if len(new) != (training is with_one):
                        sys.exit(f'ckpt_throughput.py: expected {int(training is with_one)} checkpoint in a turn, '
                                 f'saw {new}')
                    rows += new
                print(f'pair {number + 1}: {plain[-1] * options.batch:.1f} images/s without, '
                      f'{saved[-1] * options.batch:.1f} with', flush=True)
        finally:
            for training in trainings:
                training.end()
    ratios = [one / other for one, other in zip(saved, plain)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    print(f'{options.model}, stem {options.stem}, batch {options.batch}, {options.threads} threads, a checkpoint of '
          f'{rows[0]["size_bytes"] / 1e6:.0f} MB every {options.every} s: stall '
          f'{statistics.median(row["stall_ms"] for row in rows):.0f} ms, written in '
          f'{statistics.median(row["write_ms"] for row in rows):.0f} ms beside the training')
    print(f'images/s with / without: {statistics.median(ratios):.3f} (quartiles {low:.3f} and {high:.3f}, '
          f'{len(ratios)} pairs; aim: at least 0.98); of all turns {sum(saved) / sum(plain):.3f}')


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('berth')
parser.add_argument('--model', default='resnet18')
parser.add_argument('--stem', default='cifar')
parser.add_argument('--dir', default=None, help='where checkpoints are written')
for name, default in (('batch', 16), ('threads', len(os.sched_getaffinity(0))), ('every', 30), ('pairs', 4)):
    parser.add_argument('--' + name, type=int, default=default)
main(parser.parse_args())
