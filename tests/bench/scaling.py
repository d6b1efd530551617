# SPDX-License-Identifier: BSD-3-Clause
"""The speed of two ranks on one machine relative to twice that of one rank:
    scaling.py BERTH [--model MODEL] [--stem cifar|default] [--batch N] [--rounds N] [--window SECONDS]
Three trainings are started once: one of 1 rank, one of 2 ranks, and two separate ones of 1 rank side by side. They then
take turns, stopped and continued by signals, each for a window of seconds. The figures of one round are thus seconds
apart, so that a host whose speed varies over minutes affects all of them. A ratio belongs to one round; prints the
median and quartiles over the rounds. One thread per rank, images of 3x32x32 in memory. Needs 2 idle cores."""
import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time


def ranks_under(pid):
    """The berth-train processes among the descendants of pid."""
    found = []
    with open(f'/proc/{pid}/task/{pid}/children', encoding='ascii') as file:
        children = file.read().split()
    for child in children:
        with open(f'/proc/{child}/comm', encoding='utf-8') as file:
            if file.read().startswith('berth-train'):
                found.append(int(child))
        found += ranks_under(child)
    return found


class Training:
    """One run, which is either running or stopped."""

    def __init__(self, options, ranks, folder):
        self.metrics = os.path.join(tempfile.mkdtemp(dir=folder), 'm')
        stem = ['--stem', options.stem] if options.model != 'convnet' else []
        self.process = subprocess.Popen(
            [options.berth, 'train', options.model, *stem, '-n', str(ranks), '--env', 'OMP_NUM_THREADS=1', '--data',
             'synthetic:3x32x32,n=1024,classes=10', '--batch', str(options.batch), '--steps', '1000000', '--no-eval',
             '--log-every', '1', '--metrics', self.metrics, '--device', options.device, '--comm-timeout', '3600'],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not self.rows():
            if self.process.poll() is not None:
                raise SystemExit(f'scaling.py: {self.process.args} exited with code {self.process.returncode}')
            time.sleep(0.2)
        self.ranks = ranks_under(self.process.pid)
        assert len(self.ranks) == ranks, (self.ranks, ranks)
        self.signal(signal.SIGSTOP)

    def rows(self):
        try:
            with open(f'{self.metrics}/metrics.jsonl', encoding='utf-8') as file:
                return [json.loads(line)['images_per_s'] for line in file if line.endswith('\n')]
        except FileNotFoundError:
            return []

    def signal(self, which):
        for pid in self.ranks:
            os.kill(pid, which)


def window(trainings, seconds):
    """images/s of all trainings together, without the first and the incomplete step of each."""
    before = [len(training.rows()) for training in trainings]
    for training in trainings:
        training.signal(signal.SIGCONT)
    time.sleep(seconds)
    for training in trainings:
        training.signal(signal.SIGSTOP)
    return sum(statistics.harmonic_mean(training.rows()[old + 1:]) for training, old in zip(trainings, before))


def told(name, values):
    low, middle, high = statistics.quantiles(values, n=4)
    print(f'{name:44} {middle:6.3f}  (quartiles {low:.3f} and {high:.3f}, {len(values)} rounds)')


def main(options):
    with tempfile.TemporaryDirectory() as folder:
        started = []
        try:
            for ranks in (1, 1, 2):
                started.append(Training(options, ranks, folder))
            first, second, both = started
            turns = [('one', [first]), ('two', [both]), ('other', [second]), ('apart', [first, second])]
            rounds = []
            for number in range(options.rounds + 1):
                rates = {name: window(which, options.window) for name, which in
                         (turns if number % 2 else reversed(turns))}
                if number:  # the first round warms up
                    rounds.append(rates)
        finally:
            for training in started:
                training.signal(signal.SIGCONT)
                training.process.terminate()
            for training in started:
                training.process.wait(60)
    print(f'{options.model}, stem {options.stem}, batch {options.batch} per rank, 1 thread per rank, windows of '
          f'{options.window} s; one rank: {statistics.median(r["one"] for r in rounds):.1f} images/s')
    told('2 ranks / twice one rank (aim: 0.95)', [r['two'] / (r['one'] + r['other']) for r in rounds])
    told('2 separate ranks / twice one rank', [r['apart'] / (r['one'] + r['other']) for r in rounds])
    told('2 ranks / 2 separate ranks', [r['two'] / r['apart'] for r in rounds])


parser = argparse.ArgumentParser()
parser.add_argument('berth')
parser.add_argument('--model', default='resnet18')
parser.add_argument('--stem', default='cifar')
parser.add_argument('--batch', type=int, default=32)
parser.add_argument('--rounds', type=int, default=9)
parser.add_argument('--window', type=float, default=6)
parser.add_argument('--device', default='auto')
main(parser.parse_args())
