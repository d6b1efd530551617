# SPDX-License-Identifier: BSD-3-Clause
"""Parts of run.sh that measure this GPU, its libraries and berth's speed. Each takes a Here and a dict for its findings,
which are kept if it fails."""
import csv
import os
import resource
import shutil
import statistics
import tempfile

from here import TAIL, Fail, Skip, Talk, objects, run, script
from right import rows, train

# ---- first device experiments ----


def machine(here, found):
    found['gpus'] = here.gpu()
    for name, question in (('torch', here.torch), ('build', here.build)):
        try:
            found[name] = question()
        except (Skip, Fail) as why:
            found[name] = str(why)
    found['libraries'] = here.libraries()


def smoke(here, found):
    """Does it train at all? Each row is there as soon as it was measured."""
    for amp in ('off', 'bf16', 'fp16'):
        with tempfile.TemporaryDirectory() as folder:
            train(here, 'convnet', '--device', 'cuda', '--amp', amp, '--data', 'synthetic:3x32x32,n=1000,classes=10', '--batch',
                  '128', '--epochs', '4', '--lr', '0.01', '--no-eval', '--log-every', '8', '--metrics', folder, limit_s=60)
            losses = [row['loss'] for row in rows(folder)]
        found[f'losses, {amp}'] = losses
        if not losses[-1] < losses[0]:
            raise Fail(f'with --amp {amp} the loss does not fall: {losses}')


def cudnn(program):
    def part(here, found):
        here.gpu()
        # Line-buffered, so that measurements are kept if the program does not finish.
        lines = ['stdbuf', '-oL'] if shutil.which('stdbuf') else []
        try:
            _, output = run([*lines, here.program(program)], here.left_s(), here.env())
        except Fail as why:
            found['plans'] = objects(why.output)
            raise
        found['plans'] = objects(output)
        if not found['plans']:
            raise Fail('it printed no result: ' + output[-TAIL:])
    return part


def nccl_shared_gpu(here, found):
    here.torch()
    found.update(script(here, 'torch_shared_gpu.py', limit_s=here.left_s()))


def conv_layers(here, found):
    here.torch()
    found.update(script(here, 'torch_bench.py', 'layers', limit_s=here.left_s()))


# ---- berth compared with PyTorch ----

def cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def own(here, model, batch, amp, steps, limit_s):
    """One run of berth: its rows from the third on, and the CPU seconds it used."""
    options, shape = (['resnet50'], '3x224x224') if model == 'resnet50' else (['resnet18', '--stem', 'cifar'], '3x32x32')
    with tempfile.TemporaryDirectory() as folder:
        before = cpu_s()
        train(here, *options, '--device', 'cuda', '--amp', amp, '--data', f'synthetic:{shape},n={batch * 8},classes=1000',
              '--batch', str(batch), '--steps', str(steps), '--no-eval', '--log-every', '10', '--metrics', folder,
              limit_s=limit_s)
        return rows(folder)[2:], cpu_s() - before


def rate(some):
    return statistics.median(row['images_per_s'] for row in some)


def alone(model, batch, amp, steps):
    """berth's own speed, which needs no PyTorch, while all GPU memory in use is berth's."""
    def part(here, found):
        here.build()
        some, began_cpu_s = own(here, model, batch, amp, steps, 300)  # it also tunes the layers
        found['images_per_s'] = rate(some)
        found['memory_bytes'], found['data_wait_ms'] = some[-1].get('gpu_memory_bytes'), some[-1]['data_wait_ms']
        some, began_cpu_s = own(here, model, batch, amp, steps, 120)
        more, used = own(here, model, batch, amp, 3 * steps, 120)
        found['images_per_s'] = statistics.median([rate(some), rate(more)])
        found['host share of a step, by its thread'] = (
            statistics.median(row['host_ms'] for row in more) / 1e3 / (batch / rate(more)))
        # Of two thirds of its steps, without start and end of a run.
        found['host CPU share of a step'] = (used - began_cpu_s) / (2 * steps) / (batch / found['images_per_s'])
    return part


def beside(kind, goal, model, batch, amp, steps):
    """berth and PyTorch (eager or compile) take turns, so that both run under the same conditions. PyTorch's process stays,
    to compile once: max-autotune compiles for 412 s on an H200. A missed goal is reported, and is not a failure."""
    def part(here, found):
        here.torch()
        here.build()
        talk = Talk(here, 'torch_bench.py', 'serve')
        ours, theirs = [], []
        try:
            while len(ours) < 3 and (not ours or here.left_s() > 30):
                answer = talk.ask(f'{model} {batch} {amp} {kind}', max(1, here.left_s() - 30))
                if 'error' in answer:
                    raise Fail(f'PyTorch {kind}: {answer["error"]}')
                theirs.append(answer['images_per_s'])
                found[f'PyTorch {kind} images_per_s'] = statistics.median(theirs)
                found[f'PyTorch {kind} memory_bytes'] = answer['memory_bytes']
                ours.append(rate(own(here, model, batch, amp, steps, 200)[0]))
                found['images_per_s'] = statistics.median(ours)
                found[f'times {kind}'] = found['images_per_s'] / found[f'PyTorch {kind} images_per_s']
                found['goal'] = goal
        finally:
            talk.end()
    return part


# ---- where the time goes ----

PROFILED = ['resnet50', '--device', 'cuda', '--amp', 'bf16', '--data', 'synthetic:3x224x224,n=512,classes=1000', '--batch',
            '256', '--no-eval']


def layer_types(here, found):
    """Time each node with our own events (layer_times.c), then the kernels by name if a profiler is installed."""
    program = here.program('layer-times')
    for name in ('resnet50 224 256 bf16', 'resnet18 32 512 bf16', 'resnet50 224 256 fp16'):
        _, output = run([program, *name.split()], here.left_s(200), here.env())
        lines = objects(output)
        if not lines:
            raise Fail('it printed no result: ' + output[-TAIL:])
        found[name] = {'all': lines[-1], 'types': [line for line in lines if 'type' in line],
                       'nodes, largest gap first': sorted((line for line in lines if 'node' in line),
                                                          key=lambda line: line['floor_ms'] - line['ms'])[:20]}
    kernels(here, found)


def kernels(here, found):
    """With ncu, else with nsys; failures are only reported. Algorithms are chosen by now, so only steps are profiled."""
    why = []
    for name, read in (('ncu', by_ncu), ('nsys', by_nsys)):
        tool = shutil.which(name)
        if not tool:
            why.append(f'{name} is missing')
            continue
        try:
            found['kernels, ms and launches'], found['kernels by'] = read(here, tool), name
            return
        except (Fail, Skip) as one:
            why.append(f'{name}: {one}')
    found['kernels'] = '; '.join(why)


def table_of(times_ns):
    """{name: [total ms, launches]} of the 40 kernels with the most time."""
    most = sorted(times_ns.items(), key=lambda item: -sum(item[1]))[:40]
    return {name[:160]: [round(sum(times) / 1e6, 3), len(times)] for name, times in most}


def by_ncu(here, tool):
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, 'log')
        run([tool, '--clock-control', 'none', '--metrics', 'gpu__time_duration.sum', '--csv', '--page', 'raw', '--print-units',
             'base', '--log-file', log, here.build(), *PROFILED, '--steps', '3', '--no-graph'], here.left_s(400), here.env())
        with open(log, encoding='utf-8', errors='replace') as file:
            lines = [line for line in file if line.startswith('"')]
    times = {}
    for row in csv.DictReader(lines):
        try:  # the row after the names has their units
            times.setdefault(row['Kernel Name'], []).append(float(row['gpu__time_duration.sum'].replace(',', '')))
        except (KeyError, TypeError, ValueError):
            pass
    if not times:
        raise Fail('it lists no kernel: ' + ''.join(lines)[:TAIL])
    return table_of(times)


def by_nsys(here, tool):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, 'report')
        run([tool, 'profile', '-o', report, '--cuda-graph-trace=node', here.build(), *PROFILED, '--steps', '10'],
            here.left_s(300), here.env())
        _, output = run([tool, 'stats', '--report', 'cuda_gpu_trace', '--format', 'csv', report + '.nsys-rep'],
                        here.left_s(200))
    times = {}
    lines = output.splitlines()
    heads = [at for at, line in enumerate(lines) if 'Duration (ns)' in line]
    for row in csv.DictReader(lines[heads[0]:] if heads else []):
        try:
            times.setdefault(row['Name'], []).append(float(row['Duration (ns)']))
        except (KeyError, TypeError, ValueError):
            pass
    if not times:
        raise Fail('it lists no kernel: ' + output[-TAIL:])
    return table_of(times)
