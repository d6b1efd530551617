# SPDX-License-Identifier: BSD-3-Clause
"""Training on 2 ranks of 1 thread, side by side in one run:
    ddp.py BERTH [--model MODEL] [--stem cifar|default] [--batch N] [--steps N] [--turns N] [--device NAME] [--job]
berth train on 1 rank and on 2, over MPI and over gloo, and PyTorch's DistributedDataParallel (gloo) on 2, with dense
and with channels-last memory, also under berth run; all with one thread per rank, on images of 3x32x32 in memory.
With --job the 2 ranks are those of the job in which it runs, such as one on each of two nodes. The kinds
take turns. images/s are those of all ranks, from the median step of each run without the first steps; the result is
the median over the turns. Needs an idle machine."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

JOB = ['--ranks-per-node', 1]
SKIPPED = 3  # warm-up steps; DDP rebuilds its buckets after the first


def pytorch(options):
    """One rank; rank 0 writes the seconds of each step."""
    import torch
    import torchvision
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group('gloo')
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    module = getattr(torchvision.models, options.model)(num_classes=10)
    if options.stem == 'cifar':
        module.conv1, module.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    model = DistributedDataParallel(module.to(memory_format=layout))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    x = torch.randn(options.batch, 3, 32, 32).to(memory_format=layout)
    target, seconds = torch.randint(0, 10, (options.batch,)), []
    for _ in range(options.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    if torch.distributed.get_rank() == 0:
        with open(options.torch, 'w', encoding='utf-8') as file:
            json.dump([torch.__version__, seconds], file)


def run(*command):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=1800, env=dict(os.environ, OMP_NUM_THREADS='1'), check=False)
    if done.returncode:
        sys.exit(f'ddp.py: {done.args} exited with code {done.returncode}:\n{done.stdout}')


def ours(options, ranks, folder, comm='auto'):
    out = tempfile.mkdtemp(dir=folder)
    run(options.berth, 'train', options.model, *(['--stem', options.stem] if options.model != 'convnet' else []),
        '--comm', comm, *(['--nodes', 1, '-n', 1] if ranks == 1 else JOB if options.job else ['-n', ranks]),
        '--env', 'OMP_NUM_THREADS=1', '--data',
        f'synthetic:3x32x32,n={options.batch * ranks * options.steps},classes=10', '--batch', options.batch,
        '--steps', options.steps, '--lr', 0.01, '--momentum', 0.9, '--weight-decay', 1e-4, '--no-eval',
        '--log-every', 1, '--metrics', out, '--device', options.device)
    with open(f'{out}/metrics.jsonl', encoding='utf-8') as file:
        return statistics.median([json.loads(line)['images_per_s'] for line in file][SKIPPED:])


def theirs(options, layout, folder):
    path = os.path.join(folder, 'torch.json')
    run(options.berth, 'run', *(JOB if options.job else ['-n', 2]), '--env', 'OMP_NUM_THREADS=1', '--',
        options.python, __file__, options.berth, '--torch', path, '--model', options.model, '--stem', options.stem,
        '--batch', options.batch, '--steps', options.steps, *layout)
    with open(path, encoding='utf-8') as file:
        options.version, seconds = json.load(file)
    return 2 * options.batch / statistics.median(seconds[SKIPPED:])


def main(options):
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        kinds = {
            'berth, 1 rank': lambda: ours(options, 1, folder),
            'berth, 2 ranks, MPI': lambda: ours(options, 2, folder, 'mpi'),
            'berth, 2 ranks, gloo': lambda: ours(options, 2, folder, 'gloo'),
            'PyTorch DDP, 2 ranks': lambda: theirs(options, [], folder),
            'PyTorch DDP, 2 ranks, channels last': lambda: theirs(options, ['--channels-last'], folder),
        }
        rates = {name: [] for name in kinds}
        for _ in range(options.turns):
            for name, measure in kinds.items():
                rates[name].append(measure())
    middle = {name: statistics.median(values) for name, values in rates.items()}
    print(f'{options.model}, stem {options.stem}, batch {options.batch} per rank, 1 thread per rank, device '
          f'{options.device}; PyTorch {options.version}, gloo')
    for name, values in rates.items():
        print(f'{name:38} {middle[name]:8.1f} images/s  (slowest {min(values):.1f}, fastest {max(values):.1f}, '
              f'{len(values)} runs)')
    one, mpi, gloo, *torch = middle.values()
    print(f'2 ranks over MPI: {mpi / (2 * one):.2f} of twice one rank (aim: 0.95), and {mpi / max(torch):.2f} times '
          f'the faster DDP (aim: 1)')
    pairs = [theirs / ours for ours, theirs in zip(rates['berth, 2 ranks, gloo'], rates['berth, 2 ranks, MPI'])]
    print(f'2 ranks over gloo: {gloo / max(torch):.2f} times the faster DDP (aim: 1); its step takes '
          f'{statistics.median(pairs):.3f} of that over MPI (median of pairs; aim: at most 1.05)')


parser = argparse.ArgumentParser()
parser.add_argument('berth')
parser.add_argument('--model', default='resnet18')
parser.add_argument('--stem', default='cifar')
parser.add_argument('--batch', type=int, default=32)
parser.add_argument('--steps', type=int, default=12)
parser.add_argument('--turns', type=int, default=5)
parser.add_argument('--device', default='auto')
parser.add_argument('--python', default='/usr/bin/python3')
parser.add_argument('--torch', help='run as a rank of PyTorch and write to this file')
parser.add_argument('--channels-last', action='store_true')
parser.add_argument('--job', action='store_true')
parser.add_argument('--folder', help='a directory that all nodes share')
chosen = parser.parse_args()
if chosen.torch:
    pytorch(chosen)
else:
    main(chosen)
