# SPDX-License-Identifier: BSD-3-Clause
"""The trainer before and after a change that must change nothing, from two build directories:
    old_and_new.py OLD NEW [--pairs 20] [--only bits,memory,launches,speed]
bits      both resume from a checkpoint of OLD, on cpu and cpu-reference, and must end with the same model
memory    the blocks of 64 KiB or more that a run allocates on the cpu device: their sum may not be larger
launches  what the fake GPU (tests/support/fake-cuda) is asked for must be the same; prints the difference
speed     a step on the cpu device, OLD and NEW in turns, and OLD and OLD for comparison
Exit code: 0 if all is equal (speed is only reported), else 1."""
import argparse
import difflib
import os
import statistics
import subprocess
import sys
import tempfile

CIFAR = ['--stem', 'cifar', '--data', 'synthetic:3x16x16,n=64,classes=7', '--batch', '6']
MODELS = {
    'linear': ['linear', '--data', 'synthetic:3x8x8,n=64,classes=7', '--batch', '6'],
    'convnet': ['convnet', '--data', 'synthetic:3x16x16,n=64,classes=7', '--batch', '6'],
    **{f'resnet{depth}': [f'resnet{depth}', *CIFAR] for depth in (18, 34, 50, 101, 152)},
    'resnet18, its own stem': ['resnet18', '--data', 'synthetic:3x48x48,n=64,classes=7', '--batch', '6'],
    'resnet18, two batches per update': ['resnet18', *CIFAR, '--accumulate', '2'],
}
PRELOADED = r'''
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static size_t sum;
__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t size)
{
	void *(*real)(size_t, size_t) = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
	if (size >= 65536)
		__atomic_add_fetch(&sum, size, __ATOMIC_RELAXED);
	return real(alignment, size);
}
__attribute__((destructor)) static void tell(void)
{
	FILE *file = fopen(getenv("ALLOCATED"), "w");
	if (file)
		fprintf(file, "%zu\n", sum);
}
'''


def train(build, *arguments, **more):
    """-> its output. Modules of the build, no cache of algorithms."""
    env = dict(os.environ, XDG_CACHE_HOME='/dev/null/none', OMP_NUM_THREADS='1', MALLOC_PERTURB_='0', **more)
    done = subprocess.run([os.path.join(build, 'bin', 'berth-train'), *arguments, '--no-eval'], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1200, check=False)
    if done.returncode:
        sys.exit(f'old_and_new.py: {build}: {arguments} exited with code {done.returncode}: {done.stdout[-2000:]}')
    return done.stdout


def read(path):
    with open(path, 'rb') as file:
        return file.read()


def bits(old, new, folder, _):
    wrong = 0
    for device in 'cpu', 'cpu-reference':
        for name, model in MODELS.items():
            if device == 'cpu-reference' and name in ('resnet101', 'resnet152'):
                continue  # minutes each, and nothing that resnet50 lacks
            first = os.path.join(folder, 'first')
            train(old, *model, '--device', device, '--steps', '2', '--ckpt', first)
            models = []
            for who, build in ('old', old), ('new', new):
                place = os.path.join(folder, who)
                subprocess.run(['cp', '-r', first, place], check=True)
                train(build, *model, '--device', device, '--steps', '4', '--ckpt', place)
                models.append(read(os.path.join(place, 'model.safetensors')))
                subprocess.run(['rm', '-r', place], check=True)
            subprocess.run(['rm', '-r', first], check=True)
            same = models[0] == models[1]
            wrong += not same
            print(f'bits: {name} on {device}: {"the same" if same else "DIFFERENT"}', flush=True)
    return wrong


def memory(old, new, folder, _):
    source, library, wrong = os.path.join(folder, 'preloaded.c'), os.path.join(folder, 'preloaded.so'), 0
    with open(source, 'w', encoding='utf-8') as file:
        file.write(PRELOADED)
    subprocess.run(['cc', '-shared', '-fPIC', '-o', library, source, '-ldl'], check=True)
    for name, model in MODELS.items():
        sums = []
        for build in old, new:
            told = os.path.join(folder, 'allocated')
            train(build, *model, '--device', 'cpu', '--steps', '1', LD_PRELOAD=library, ALLOCATED=told)
            sums.append(int(read(told)))
        wrong += sums[1] > sums[0]
        print(f'memory: {name}: {sums[0]} and {sums[1]} bytes{" LARGER" if sums[1] > sums[0] else ""}', flush=True)
    return wrong


def launches(old, new, folder, _):
    wrong = 0
    for name, model in MODELS.items():
        if name in ('resnet101', 'resnet152'):
            continue
        for amp in 'off', 'bf16', 'fp16':
            traces = []
            for build in old, new:
                path = os.path.join(folder, 'trace')
                # Small: the fake computes one product after another.
                train(build, *model, '--batch', '2', '--device', 'cuda', '--steps', '2', '--amp', amp,
                      FAKE_CUDA_TRACE=path, FAKE_CUDA_STRICT='1',
                      BERTH_MODULE_PATH=os.path.join(build, 'tests', 'train', 'fake-cuda') + ':' + os.path.join(
                          build, 'lib', 'modules'))
                traces.append(read(path).decode().splitlines())
            lines = list(difflib.unified_diff(*traces, 'old', 'new', lineterm='', n=1))
            wrong += bool(lines)
            print(f'launches: {name}, {amp}: {len(traces[0])} lines, {"DIFFERENT" if lines else "the same"}', flush=True)
            print('\n'.join(lines[:60]), end='\n' if lines else '')
    return wrong


def step_s(build, model, folder):
    """The median of the steps of one run."""
    place = os.path.join(folder, 'metrics')
    train(build, *model, '--device', 'cpu', '--steps', '8', '--log-every', '1', '--metrics', place)
    rates = [float(line.split('"images_per_s":')[1].split(',')[0].strip(' }'))
             for line in read(os.path.join(place, 'metrics.jsonl')).decode().splitlines() if '"images_per_s"' in line]
    subprocess.run(['rm', '-r', place], check=True)
    return 1 / statistics.median(rates[2:])


def speed(old, new, folder, pairs):
    for name in 'resnet18', 'resnet50':
        model = [*MODELS[name], '--batch', '16']
        for what, other in ('old / old', old), ('new / old', new):
            ratios = []
            for turn in range(pairs):
                both = {}
                for build in (0, 1) if turn % 2 else (1, 0):
                    both[build] = step_s((old, other)[build], model, folder)
                ratios.append(both[1] / both[0])
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f'speed: {name}, time of a step, {what}: {middle:.3f} (quartiles {low:.3f} and {high:.3f}, '
                  f'{pairs} pairs)', flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('old')
    parser.add_argument('new')
    parser.add_argument('--pairs', type=int, default=20)
    parser.add_argument('--only', default='bits,memory,launches,speed')
    options = parser.parse_args()
    parts = {part.__name__: part for part in (bits, memory, launches, speed)}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(','):
            wrong += parts[name](os.path.abspath(options.old), os.path.abspath(options.new), folder, options.pairs)
    print('all is equal' if not wrong else f'{wrong} differences')
    return 1 if wrong else 0


sys.exit(main())
