#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Trains with random settings on several fake GPUs over the stand-in for NCCL: nccl_settings.py BERTH BUILD
[--settings N] [--seed S]

A setting is a data set, a batch size, accumulation, precision, evaluation, and for each rank how much memory cuDNN
wants and whether its GPU can capture; and often a stop in the middle, after which another number of ranks resumes.
Each runs twice, with CUDA graphs and with --no-graph. Both must end with the same bits. The stand-in ends the ranks
if not all of them run the same capture of a collective; a run that takes LIMIT_S hangs.
"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile

LIMIT_S = 120 * int(os.environ.get('BERTH_TEST_SLOW', 1))
RANKS = 8
# As rank wrapper: a GPU of its own, and a memory limit and ability of its own.
RANK = '''#!/bin/sh
export FAKE_CUDA_GPU=$((RANK + 1))
eval "export FAKE_CUDNN_FAST_MIB=\\$MIB_$RANK"
[ -n "$FAKE_CUDNN_FAST_MIB" ] || unset FAKE_CUDNN_FAST_MIB
[ "$RANK" != "$NO_GRAPHS_ON" ] || export FAKE_CUDA_NO_GRAPHS=1
exec "$@"
'''


class Setting:
    def __init__(self, chance):
        self.ranks = [chance.choice([2, 2, 3, 3, 4, 5, 6, 8])]
        if chance.random() < 0.4:
            self.ranks.append(chance.randint(1, RANKS))
        self.batch = chance.randint(1, 5)
        self.accumulate = chance.choice([1, 1, 1, 2, 3])
        updates = chance.uniform(0.3, 4)  # per epoch
        self.samples = max(2, round(updates * self.batch * self.accumulate * max(self.ranks)))
        self.epochs = chance.randint(2, 3)
        steps = -(-self.samples // (self.batch * self.accumulate * self.ranks[0])) * self.epochs
        self.stop = chance.randint(1, max(1, steps - 1))
        self.precision = chance.choice(['off', 'off', 'bf16', 'fp16'])
        self.evaluate = chance.random() < 0.3
        self.memory = [chance.choice(['', '', '16', '48', '96']) for _ in range(RANKS)]
        self.no_graphs_on = chance.randrange(RANKS) if chance.random() < 0.15 else -1

    def __str__(self):
        return ' '.join(f'{name}={value}' for name, value in vars(self).items())

    def options(self):
        out = ['convnet', f'--data=synthetic:1x16x16,n={self.samples},classes=3', f'--batch={self.batch}',
               f'--accumulate={self.accumulate}', f'--epochs={self.epochs}', '--lr=0.01', '--device=cuda',
               f'--amp={self.precision}']
        return out if self.evaluate else out + ['--no-eval']

    def environment(self):
        own = dict(os.environ, FAKE_CUDA_THREADS='1', NO_GRAPHS_ON=str(self.no_graphs_on), MALLOC_PERTURB_='0')
        own.update({f'MIB_{rank}': mib for rank, mib in enumerate(self.memory)})
        return own


def train(options, setting, more, folder):
    """The weights after the setting's runs; exits with the output of one that fails."""
    ckpt = os.path.join(folder, 'ck' + ''.join(more))
    for number, ranks in enumerate(setting.ranks):
        argv = [options.berth, 'run', '-n', str(ranks), '--', os.path.join(folder, 'rank'),
                os.path.join(options.build, 'bin', 'berth-train'), *setting.options(), f'--ckpt={ckpt}', *more]
        if number < len(setting.ranks) - 1:
            argv.append(f'--steps={setting.stop}')
        try:
            run = subprocess.run(argv, env=setting.environment(), cwd=folder, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False)
            said, code = run.stdout, run.returncode
        except subprocess.TimeoutExpired as late:
            said, code = late.stdout or '', 'none: it hangs'
            said = said.decode() if isinstance(said, bytes) else said
        if code:
            sys.exit(f'{said}\n{" ".join(argv)}\nexit code {code}')
    with open(os.path.join(ckpt, 'model.safetensors'), 'rb') as file:
        return file.read()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('berth')
    parser.add_argument('build')
    parser.add_argument('--settings', type=int, default=20)
    parser.add_argument('--seed', type=int)
    options = parser.parse_args()
    options.berth, options.build = map(os.path.abspath, (options.berth, options.build))
    seed = options.seed if options.seed is not None else random.randrange(1 << 30)
    print(f'seed {seed}', flush=True)
    for number in range(options.settings):
        setting = Setting(random.Random(seed + number))
        folder = tempfile.mkdtemp(prefix='berth-settings-')
        try:
            rank = os.path.join(folder, 'rank')
            with open(rank, 'w', encoding='utf-8') as file:
                file.write(RANK)
            os.chmod(rank, 0o755)
            print(f'{number}: {setting}', flush=True)
            if train(options, setting, [], folder) != train(options, setting, ['--no-graph'], folder):
                sys.exit('other bits than with --no-graph')
        finally:
            shutil.rmtree(folder)
    print(f'{options.settings} settings')


main()
