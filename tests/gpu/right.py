# SPDX-License-Identifier: BSD-3-Clause
"""Parts of run.sh that test correctness. Each takes a Here and a dict for its findings, which are kept if it fails."""
import array
import glob
import json
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from here import ROOT, TAIL, Fail, Skip, run, script

# Search for algorithms instead of using the cache.
SEARCH = {'XDG_CACHE_HOME': '/dev/null/none'}


def train(here, *arguments, limit_s=300, **env):
    return run([here.build(), *arguments], here.left_s(limit_s), here.env(**env))[1]


def rows(folder):
    with open(os.path.join(folder, 'metrics.jsonl'), encoding='utf-8') as file:
        return [row for row in map(json.loads, file) if row.get('split') == 'train']


def tensors(path):
    """F32 tensors of a safetensors file; without berth's own entries."""
    with open(path, 'rb') as file:
        size = struct.unpack('<Q', file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    return {name: array.array('f', data[e['data_offsets'][0]:e['data_offsets'][1]])
            for name, e in header.items() if name != '__metadata__' and e['dtype'] == 'F32'
            and not name.startswith('berth.')}


def apart(one, other):
    """The distance over all tensors, relative to the norm of other."""
    if one.keys() != other.keys():
        raise Fail(f'the sets of tensors differ: {sorted(one.keys() ^ other.keys())[:5]}')
    difference = size = 0.0
    for name, values in one.items():
        difference += sum((a - b) ** 2 for a, b in zip(values, other[name]))
        size += sum(b * b for b in other[name])
    return (difference / size) ** 0.5


def within(found, what, value, bound):
    found[what] = value
    found[what + ' at most'] = bound
    if not value <= bound:
        raise Fail(f'{what} is {value:.3g}, expected at most {bound:.3g}; {json.dumps(found)}')


def conformance(here, found):
    for name in ('losses', 'ops', 'ops_norm'):
        program = here.program(f'test_train_{name}_cuda')
        _, output = run([program], here.left_s(), here.env())
        found[name] = output.strip().splitlines()[-1]


def conformance_16bit(here, found):
    """Each op on its own in fp16 and bf16 (sixteen/): the largest error of each, relative to its bound."""
    program, wrong = here.program('ops-sixteen'), []
    for kind in ('fp16', 'bf16'):
        code, output = run([program, kind], here.left_s(300), here.env(**SEARCH), fails=False)
        lines = output.strip().splitlines()
        worst = {}
        for line in lines:
            if ': off by ' in line:
                op, share = line.split(',')[0], float(line.split(': off by ')[1].split()[0])
                worst[op] = max(share, worst.get(op, 0))
        found[kind] = {'result': lines[-1] if lines else '', 'of the bound': worst}
        if code:
            wrong.append(f'{kind} exited with code {code}: ' + '; '.join([line for line in lines if line.startswith('FAILED')][:8]
                                                                  or [output[-TAIL:]]))
    if wrong:
        raise Fail('; '.join(wrong))


def steps(here, found):
    """Whole steps in each precision, starting with NaNs as gradients, compared with the reference on the CPU. In 16 bits
    the bound is the effect of rounding alone (test_step.c)."""
    program, wrong = here.program('test_train_step'), []
    for arguments in (['f32'], ['bf16'], ['fp16'], ['bf16', 'no-graph'], ['f32', 'all']):
        code, output = run([program, 'cuda', *arguments], here.left_s(200), here.env(), fails=False)
        name = ' '.join(arguments)
        found[name] = [line for line in output.splitlines() if ': off by ' in line]
        if code:
            wrong.append(f'{name}: {output[-TAIL:]}')
    if wrong:
        raise Fail('; '.join(wrong))


def one_step(here, found):
    """parity's step.py: each gradient and the update against float64, from PyTorch's own states."""
    here.torch()
    program = here.program('parity-steps')
    _, output = run([sys.executable, os.path.join(ROOT, 'tests', 'train', 'parity', 'step.py'), program,
                     str(os.cpu_count() or 4), '0,10,20,30,40', 'cuda'], here.left_s(), here.env())
    found['last lines'] = output.strip().splitlines()[-6:]


def fifty_steps(here, found):
    here.torch()
    wrong = []
    for amp in ('bf16', 'fp16', 'off'):
        found[amp] = script(here, 'torch_compare.py', here.build(), 'cuda', amp, limit_s=here.left_s(300))
        if not found[amp]['good']:
            wrong.append(amp)
    if wrong:
        raise Fail(f'further from float64 than the bound from PyTorch allows, with {", ".join(wrong)}')


def free_port():
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


def ranks(here, count, arguments, limit_s, allow):
    """Run ranks that all use GPU 0; return their outputs."""
    port = free_port()
    processes = []
    for rank in range(count):
        # Each rank seems to be alone on a node, with device 0.
        env = here.env(RANK=str(rank), WORLD_SIZE=str(count), LOCAL_RANK='0', LOCAL_WORLD_SIZE='1',
                       MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), CUDA_VISIBLE_DEVICES='0')
        processes.append(subprocess.Popen(
            [here.build(), *arguments, '--comm', 'nccl', *(['--allow-shared-gpu'] if allow else [])],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
            cwd=ROOT, start_new_session=True))
    until = time.monotonic() + limit_s
    outputs = []
    try:
        for process in processes:
            outputs.append((process.communicate(timeout=max(1, until - time.monotonic()))[0], process.returncode))
    except subprocess.TimeoutExpired:
        raise Fail(f'{count} ranks on one GPU did not end within {limit_s:.0f} s') from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return outputs


def ddp(here, found):
    """Two ranks on one GPU get the same weights as one rank with the whole batch."""
    here.build()
    with tempfile.TemporaryDirectory() as folder:
        def arguments(batch, name):
            return ['convnet', '--device', 'cuda', '--data', 'synthetic:1x28x28,n=512,classes=10', '--batch', str(batch),
                    '--steps', '20', '--lr', '0.01', '--no-eval', '--log-every', '1', '--ckpt',
                    os.path.join(folder, name), '--metrics', os.path.join(folder, 'm' + name), '--comm-timeout', '60s']

        def partial(name):
            return ['convnet', '--device', 'cuda', '--data', 'synthetic:1x28x28,n=500,classes=10', '--batch', '16', '--epochs',
                    '2', '--lr', '0.01', '--no-eval', '--deterministic', '--ckpt', os.path.join(folder, name),
                    '--comm-timeout', '60s']

        refused = ranks(here, 2, arguments(16, 'refused'), here.left_s(100), False)
        if any(not code for _, code in refused) or '--allow-shared-gpu' not in refused[0][0]:
            raise Fail(f'two ranks on one GPU were not refused: {refused}')
        found['refused'] = refused[0][0].strip().splitlines()[-1]
        train(here, *arguments(32, 'one'), limit_s=120)
        both = ranks(here, 2, arguments(16, 'two'), here.left_s(200), True)
        for output, code in both:
            if code:
                raise Fail(f'a rank exited with code {code}: {output[-TAIL:]}')
        within(found, 'weights apart', apart(tensors(os.path.join(folder, 'two', 'model.safetensors')),
                                             tensors(os.path.join(folder, 'one', 'model.safetensors'))), 1e-4)
        # Two epochs, each with a partial batch at its end, with graphs and without, stopped in the second and resumed.
        for count in (2, 1):
            for name, more in (('graph', []), ('direct', ['--no-graph'])):
                name += str(count)
                for ranks_now, stop in ((2, ['--steps', '20']), (count, [])):
                    both = ranks(here, ranks_now, partial(name) + more + stop, here.left_s(100), True)
                    for output, code in both:
                        if code:
                            raise Fail(f'{name}: a rank exited with code {code}: {output[-TAIL:]}')
            within(found, f'resumed on {count}: graphs and none apart',
                   apart(*(tensors(os.path.join(folder, f'{kind}{count}', 'model.safetensors')) for kind in ('graph', 'direct'))),
                   1e-6)
        last = [row for row in rows(os.path.join(folder, 'mtwo')) if 'comm_hidden' in row]
        found['comm rows'] = len(last)
        if last:
            found['comm_ms'] = statistics.median(row['comm_ms'] for row in last)
            found['comm_hidden'] = statistics.median(row['comm_hidden'] for row in last)


def checkpoints(here, found):
    """A run that moves from CPU to GPU and back, compared with a run that stays on the CPU."""
    here.build()
    cpu, options = here.cpu()
    # The reference device needs seconds for a step of a ResNet.
    model = ['resnet18', '--stem', 'cifar'] if cpu == 'cpu' else ['convnet']
    found['of'] = f'{model[0]}, on the CPU with {cpu}'
    with tempfile.TemporaryDirectory() as folder:
        def go(name, device, count, *more):
            train(here, *model, '--data', 'synthetic:3x32x32,n=256,classes=10', '--batch', '16', '--lr', '0.01', '--no-eval',
                  '--device', device, '--steps', str(count), '--ckpt', os.path.join(folder, name), *more,
                  *(options if device == cpu else []))
            return tensors(os.path.join(folder, name, 'model.safetensors'))

        go('moved', cpu, 3)
        go('moved', 'cuda', 6)
        moved = go('moved', cpu, 9)
        stayed = go('stayed', cpu, 9)
        within(found, 'weights apart', apart(moved, stayed), 1e-3)
        there = go('back', 'cuda', 6)
        again = go('split', 'cuda', 3) and go('split', 'cuda', 6)
        within(found, 'stopped and resumed on the GPU', apart(again, there), 1e-4)
        same = go('one', 'cuda', 5, '--deterministic') == go('other', 'cuda', 5, '--deterministic')
        found['--deterministic: the same bits twice'] = same
        if not same:
            raise Fail('--deterministic gave different bits the second time')


def sanitizer(here, found):
    """memcheck of a whole run; races and uninitialized reads in the tests of berth's own kernels. --deterministic skips
    the timing of algorithms, which would take most of the time."""
    here.build()
    tool = shutil.which('compute-sanitizer')
    for path in [tool, '/usr/local/cuda/bin/compute-sanitizer', *glob.glob('/opt/nvidia/*/*/compute-sanitizer')]:
        if path and os.path.exists(path):
            tool = path
            break
    else:
        raise Skip('compute-sanitizer is missing')
    run_small = [here.build(), 'convnet', '--device', 'cuda', '--data', 'synthetic:3x32x32,n=64,classes=10', '--batch', '8',
                 '--steps', '3', '--no-eval', '--deterministic', '--amp']
    wrong = []
    for check, program in (('memcheck', [*run_small, 'off']), ('memcheck', [*run_small, 'bf16']),
                           ('racecheck', [here.program('test_train_losses_cuda')]),
                           ('racecheck', [here.program('test_train_ops_norm_cuda')]),
                           ('initcheck', [here.program('test_train_losses_cuda')])):
        name = ' '.join([check, os.path.basename(program[0]), *program[1:][-1:]])
        code, output = run([tool, '--tool', check, '--error-exitcode', '9', *program], here.left_s(180), here.env(),
                           fails=False)
        if code and ('not supported' in output or 'permission' in output.lower()):
            raise Skip(f'compute-sanitizer cannot be used here: {output.strip().splitlines()[-1][:200]}')
        found[name] = [line for line in output.splitlines() if 'SUMMARY' in line]
        if code:
            wrong.append(f'{name}: {output[-TAIL:]}')
    if wrong:
        raise Fail('; '.join(wrong))
