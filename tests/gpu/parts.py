# SPDX-License-Identifier: BSD-3-Clause
"""The parts of tests/gpu/run.sh: what each needs, runs and finds. Python's own library alone; what
needs PyTorch is a script of its own."""
import argparse
import array
import glob
import importlib.util
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

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, 'tests', 'gpu')
TAIL = 1500  # characters of a failed program's output that are kept


class Skip(Exception):
    """Why a part cannot be run here."""


class Fail(Exception):
    """What a part found wrong."""


# ---- running ----

def run(command, limit_s, env=None, fails=True):
    """-> (exit code, output). Past limit_s the program and its children are ended."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors='replace', env=env, cwd=ROOT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit_s)
    except BaseException as why:  # the part's own limit, too
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(why, subprocess.TimeoutExpired):
            raise
        raise Fail(f'{os.path.basename(command[0])} did not end within {limit_s:.0f} s: {output[-TAIL:]}') from None
    if process.returncode == 77:
        raise Skip(output.strip().splitlines()[-1] if output.strip() else f'{command[0]} says so')
    if process.returncode and fails:
        raise Fail(f'{" ".join(command[:3])}... ended with {process.returncode}: {output[-TAIL:]}')
    return process.returncode, output


def script(here, name, *arguments, limit_s):
    """A script with PyTorch; its last line is one JSON object."""
    _, output = run([sys.executable, os.path.join(HERE, name), *arguments], limit_s, here.env())
    return json.loads(output.strip().splitlines()[-1])


# ---- what is here ----

class Here:
    """The machine and the build; each question is asked once, its answer or its Skip kept."""

    def __init__(self, options):
        self.options = options
        self.answers = {}

    def ask(self, name, question):
        if name not in self.answers:
            try:
                self.answers[name] = question()
            except (Skip, Fail) as why:
                self.answers[name] = why
        if isinstance(self.answers[name], Exception):
            raise self.answers[name]
        return self.answers[name]

    def gpu(self):
        return self.ask('gpu', self._gpu)

    def _gpu(self):
        smi = shutil.which('nvidia-smi')
        if not smi:
            raise Skip('no GPU: nvidia-smi is not there')
        done = subprocess.run([smi, '--query-gpu=name,uuid,driver_version,memory.total', '--format=csv,noheader'],
                              capture_output=True, text=True, timeout=60, check=False)
        gpus = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if done.returncode or not gpus:
            raise Skip(f'no GPU: nvidia-smi says {(done.stdout + done.stderr).strip()[:200]}')
        return gpus

    def torch(self):
        return self.ask('torch', self._torch)

    def _torch(self):
        self.gpu()
        done = subprocess.run(
            [sys.executable, '-c', 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())'],
            capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise Skip(f'no PyTorch in {sys.executable}: {done.stderr.strip().splitlines()[-1][:200]}')
        if not done.stdout.strip().endswith('True'):
            raise Skip(f'PyTorch {done.stdout.split()[0]} sees no GPU')
        return done.stdout.strip()

    def wheels(self):
        """Folders of NVIDIA's libraries inside Python packages: {'cudnn': DIR, 'nccl': DIR}."""
        out = {}
        found = importlib.util.find_spec('nvidia')
        for place in found.submodule_search_locations if found else []:
            for name in ('cudnn', 'nccl'):
                if os.path.isdir(os.path.join(place, name, 'include')):
                    out[name] = os.path.join(place, name)
        return out

    def env(self, **more):
        libraries = [os.path.join(folder, 'lib') for folder in self.wheels().values()]
        env = dict(os.environ, LD_LIBRARY_PATH=':'.join(
            libraries + [p for p in [os.environ.get('LD_LIBRARY_PATH')] if p]), **more)
        if self.options.build:
            env['BERTH_MODULE_PATH'] = os.path.join(os.path.abspath(self.options.build), 'lib', 'modules')
        for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'PMIX_NAMESPACE'):
            if name not in more:
                env.pop(name, None)
        return env

    def build(self):
        return self.ask('build', self._build)

    def _linkable(self):
        """Packages have libX.so.N alone, and the linker wants libX.so: a folder of links for each."""
        out = []
        for name, folder in self.wheels().items():
            place = os.path.join(ROOT, 'build-gpu-libraries', name)
            shutil.rmtree(place, ignore_errors=True)
            os.makedirs(os.path.join(place, 'lib'))
            os.symlink(os.path.join(folder, 'include'), os.path.join(place, 'include'))
            for path in glob.glob(os.path.join(folder, 'lib', '*.so*')):
                base = os.path.basename(path)
                for link in {base, base.split('.so')[0] + '.so'}:
                    if not os.path.lexists(os.path.join(place, 'lib', link)):
                        os.symlink(path, os.path.join(place, 'lib', link))
            out.append(f'-D{name}_dir={place}')
        return out

    def _build(self):
        self.gpu()
        if not self.options.build:
            for tool in ('meson', 'ninja'):
                if not shutil.which(tool):
                    raise Skip(f'no build: {tool} is not there; install it, or bring a build with --build DIR')
            self.options.build = os.path.join(ROOT, 'build-gpu')
            again = os.path.exists(os.path.join(self.options.build, 'build.ninja'))
            run(['meson', 'setup', *(['--reconfigure'] if again else []), self.options.build, '-Dtrainer_only=true',
                 '-Dmpi=disabled', '-Dpmix=disabled', '-Dcuda=enabled', *self._linkable()], 600)
            run(['ninja', '-C', self.options.build], 1800)
        trainer = os.path.join(self.options.build, 'bin', 'berth-train')
        for path in (trainer, os.path.join(self.options.build, 'lib', 'modules', 'device-cuda.so')):
            if not os.path.exists(path):
                raise Skip(f'{path} was not built')
        return os.path.abspath(trainer)

    def program(self, *names):
        """A test program of the build, wherever it lies."""
        self.build()
        for name in names:
            found = glob.glob(os.path.join(self.options.build, '**', name), recursive=True)
            if found:
                return os.path.abspath(found[0])
        raise Skip(f'{names[0]} was not built (cmocka is missing?)')


def train(here, *arguments, limit_s=600, **env):
    return run([here.build(), *arguments], limit_s, here.env(**env))[1]


def rows(folder):
    with open(os.path.join(folder, 'metrics.jsonl'), encoding='utf-8') as file:
        return [json.loads(line) for line in file]


def tensors(path):
    """F32 tensors of a safetensors file; berth's own entries left out."""
    with open(path, 'rb') as file:
        size = struct.unpack('<Q', file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    return {name: array.array('f', data[e['data_offsets'][0]:e['data_offsets'][1]])
            for name, e in header.items() if name != '__metadata__' and e['dtype'] == 'F32'
            and not name.startswith('berth.')}


def apart(one, other):
    """Normwise, relative to other, over all tensors."""
    if one.keys() != other.keys():
        raise Fail(f'other tensors: {sorted(one.keys() ^ other.keys())[:5]}')
    difference = size = 0.0
    for name, values in one.items():
        difference += sum((a - b) ** 2 for a, b in zip(values, other[name]))
        size += sum(b * b for b in other[name])
    return (difference / size) ** 0.5


def within(found, what, value, bound):
    found[what] = value
    found[what + ' at most'] = bound
    if not value <= bound:
        raise Fail(f'{what} is {value:.3g}, at most {bound:.3g} was expected; {json.dumps(found)}')


# ---- parts: first device experiments ----

def machine(here):
    found = {'gpus': here.gpu()}
    try:
        found['torch'] = here.torch()
    except Skip as why:
        found['torch'] = str(why)
    found['packages'] = here.wheels()
    return found


def torch_baselines(here):
    here.torch()
    return script(here, 'torch_bench.py', 'baselines', limit_s=1700)


def cudnn_fusions(here):
    here.gpu()
    _, output = run([here.program('cudnn-fusions')], 300, here.env())
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{')]
    if not lines:
        raise Fail('it says nothing: ' + output[-TAIL:])
    return {'plans': lines}


def cudnn_engines(here):
    """What of cuDNN's graphs the trainer could take: convolutions, and those with a batch norm's sums. Not probed:
    scale-bias-ReLU before a convolution, ConvBNwgrad, dgrad-dReLU-BNBwdWeight, which the trainer does not use."""
    here.gpu()
    _, output = run([here.program('cudnn-engines')], 1700, here.env())
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{')]
    if not lines:
        raise Fail('it says nothing: ' + output[-TAIL:])
    return {'engines': lines}


def nccl_shared_gpu(here):
    here.torch()
    return script(here, 'torch_shared_gpu.py', limit_s=300)


def conv_layers(here):
    here.torch()
    return script(here, 'torch_bench.py', 'layers', limit_s=600)


# ---- parts: is it right? ----

def conformance(here):
    found = {}
    for name in ('losses', 'ops', 'ops_norm'):
        program = here.program(f'test_train_{name}')
        _, output = run([program, 'cuda'], 600, here.env())
        found[name] = output.strip().splitlines()[-1]
    return found


def conformance_16bit(here):
    """Each op alone in fp16 and bf16 (sixteen/): the largest error of each, as a share of what is allowed."""
    program, found, wrong = here.program('ops-sixteen'), {}, []
    for kind in ('fp16', 'bf16'):
        # Algorithms are searched for, not remembered.
        code, output = run([program, kind], 300, here.env(XDG_CACHE_HOME='/dev/null/none'), fails=False)
        lines = output.strip().splitlines()
        worst = {}
        for line in lines:
            if ': off by ' in line:
                op, share = line.split(',')[0], float(line.split(': off by ')[1].split()[0])
                worst[op] = max(share, worst.get(op, 0))
        found[kind] = {'result': lines[-1] if lines else '', 'of the bound': worst}
        if code:
            wrong.append(f'{kind} ended with {code}: ' + '; '.join([line for line in lines if line.startswith('FAILED')][:8]
                                                                  or [output[-TAIL:]]))
    if wrong:
        raise Fail('; '.join(wrong))
    return found


def steps(here):
    """Whole steps in each precision, from poisoned gradients, forward and backward of every layer: beside the
    reference on the CPU, 16 bits within what rounding alone makes of them (test_step_cpu.c)."""
    program, found, wrong = here.program('test_train_step_cpu'), {}, []
    for arguments in (['f32', 'all'], ['bf16'], ['fp16'], ['bf16', 'no-graph']):
        code, output = run([program, 'cuda', *arguments], 300, here.env(), fails=False)
        name = ' '.join(arguments)
        found[name] = [line for line in output.splitlines() if ': off by ' in line]
        if code:
            wrong.append(f'{name}: {output[-TAIL:]}')
    if wrong:
        raise Fail('; '.join(wrong))
    return found


def one_step(here):
    """parity's step.py: each gradient and the update against float64, from PyTorch's own states."""
    here.torch()
    program = here.program('parity-steps')
    _, output = run([sys.executable, os.path.join(ROOT, 'tests', 'train', 'parity', 'step.py'), program, '4', 'cuda'],
                    1200, here.env())
    return {'last lines': output.strip().splitlines()[-6:]}


def fifty_steps(here):
    here.torch()
    found, wrong = {}, []
    for amp in ('off', 'bf16', 'fp16'):
        found[amp] = script(here, 'torch_compare.py', here.build(), 'cuda', amp, limit_s=900)
        if not found[amp]['good']:
            wrong.append(amp)
    if wrong:
        raise Fail(f'further from float64 than PyTorch allows, with {", ".join(wrong)}: {json.dumps(found)}')
    return found


def free_port():
    with socket.socket() as one:
        one.bind(('127.0.0.1', 0))
        return one.getsockname()[1]


def ranks(here, count, arguments, limit_s, allow):
    """Ranks on GPU 0 each; -> outputs. The first that fails ends the others."""
    port = free_port()
    processes = []
    for rank in range(count):
        # Each as if alone on a node: its device is number 0.
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
        raise Fail(f'{count} ranks on one GPU did not end within {limit_s} s') from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return outputs


def ddp(here):
    """Two ranks on one GPU train what one rank with the whole batch trains."""
    here.build()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        def arguments(batch, name):
            return ['convnet', '--device', 'cuda', '--data', 'synthetic:1x28x28,n=512,classes=10', '--batch', str(batch),
                    '--steps', '20', '--lr', '0.01', '--no-eval', '--log-every', '1', '--ckpt',
                    os.path.join(folder, name), '--metrics', os.path.join(folder, 'm' + name), '--comm-timeout', '60s']

        refused = ranks(here, 2, arguments(16, 'refused'), 120, False)
        if any(not code for _, code in refused) or '--allow-shared-gpu' not in refused[0][0]:
            raise Fail(f'two ranks on one GPU were not refused: {refused}')
        found['refused'] = refused[0][0].strip().splitlines()[-1]
        train(here, *arguments(32, 'one'), limit_s=300)
        both = ranks(here, 2, arguments(16, 'two'), 400, True)
        for output, code in both:
            if code:
                raise Fail(f'a rank ended with {code}: {output[-TAIL:]}')
        within(found, 'weights apart', apart(tensors(os.path.join(folder, 'two', 'model.safetensors')),
                                             tensors(os.path.join(folder, 'one', 'model.safetensors'))), 1e-4)
        last = [row for row in rows(os.path.join(folder, 'mtwo')) if 'comm_hidden' in row]
        found['comm rows'] = len(last)
        if last:
            found['comm_ms'] = statistics.median(row['comm_ms'] for row in last)
            found['comm_hidden'] = statistics.median(row['comm_hidden'] for row in last)
    return found


def checkpoints(here):
    """CPU to GPU and back in the middle of a run, and a run that never moved."""
    here.build()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        def go(name, device, steps):
            train(here, 'resnet18', '--stem', 'cifar', '--data', 'synthetic:3x32x32,n=256,classes=10', '--batch', '16',
                  '--lr', '0.01', '--no-eval', '--device', device, '--steps', str(steps), '--ckpt',
                  os.path.join(folder, name), *(['--cpu-conv', 'direct'] if device == 'cpu' else []), limit_s=600)
            return tensors(os.path.join(folder, name, 'model.safetensors'))

        go('moved', 'cpu', 3)
        go('moved', 'cuda', 6)
        moved = go('moved', 'cpu', 9)
        stayed = go('stayed', 'cpu', 9)
        within(found, 'weights apart', apart(moved, stayed), 1e-3)
        there = go('back', 'cuda', 6)
        again = go('split', 'cuda', 3) and go('split', 'cuda', 6)
        within(found, 'stopped and resumed on the GPU', apart(again, there), 1e-4)
        for name in ('one', 'other'):
            train(here, 'resnet18', '--stem', 'cifar', '--data', 'synthetic:3x32x32,n=256,classes=10', '--batch', '16',
                  '--lr', '0.01', '--no-eval', '--device', 'cuda', '--deterministic', '--steps', '5', '--ckpt',
                  os.path.join(folder, name), limit_s=600)
        same = tensors(os.path.join(folder, 'one', 'model.safetensors')) == tensors(
            os.path.join(folder, 'other', 'model.safetensors'))
        found['--deterministic: the same bits twice'] = same
        if not same:
            raise Fail('--deterministic gave other bits the second time')
    return found


def sanitizer(here):
    here.build()
    tool = shutil.which('compute-sanitizer') or '/usr/local/cuda/bin/compute-sanitizer'
    if not os.path.exists(tool):
        raise Skip('compute-sanitizer is not there')
    found = {}
    arguments = [here.build(), 'resnet18', '--stem', 'cifar', '--device', 'cuda', '--data',
                 'synthetic:3x32x32,n=64,classes=10', '--batch', '8', '--steps', '3', '--no-eval']
    for check in ('memcheck', 'racecheck', 'initcheck'):
        code, output = run([tool, '--tool', check, '--error-exitcode', '9', *arguments], 600, here.env(), fails=False)
        if 'not supported' in output or 'Device not supported' in output or 'permission' in output.lower():
            raise Skip(f'compute-sanitizer is not allowed here: {output.strip().splitlines()[-1][:200]}')
        found[check] = [line for line in output.splitlines() if 'ERROR SUMMARY' in line or 'RACECHECK SUMMARY' in line]
        if code:
            raise Fail(f'{check}: {output[-TAIL:]}')
    return found


# ---- parts: is it fast? ----

def median_rate(folder, skip):
    return statistics.median(row['images_per_s'] for row in rows(folder)[skip:])


def bench(here, model, options, shape, batch, amp, torch_key, steps, goals):
    """berth and PyTorch take turns, so that both see the same machine."""
    here.torch()
    here.build()
    own, other = [], {}
    found = {}
    for turn in range(3):
        with tempfile.TemporaryDirectory() as folder:
            before = os.times()
            train(here, model, *options, '--device', 'cuda', '--amp', amp, '--data',
                  f'synthetic:{shape},n={batch * 8},classes=1000', '--batch', str(batch), '--steps', str(steps),
                  '--no-eval', '--log-every', '10', '--metrics', folder, limit_s=400)
            after = os.times()
            own.append(median_rate(folder, 2))
            last = rows(folder)[-1]
            found['memory_bytes'] = last.get('gpu_memory_bytes')
            found['data_wait_ms'] = last['data_wait_ms']
            found['cpu seconds a step (all threads, start included)'] = (
                after.children_user + after.children_system - before.children_user - before.children_system) / steps
        result = script(here, 'torch_bench.py', 'one', torch_key, str(batch), amp, limit_s=900)
        for name in ('eager', 'compile'):
            other.setdefault(name, []).append(result[name])
        found['torch memory_bytes'] = result['memory_bytes']
    found['images_per_s'] = statistics.median(own)
    missed = []
    for name, goal in goals.items():
        found[f'PyTorch {name} images_per_s'] = statistics.median(other[name])
        found[f'times {name}'] = found['images_per_s'] / found[f'PyTorch {name} images_per_s']
        found[f'times {name}, goal'] = goal
        if found[f'times {name}'] < goal:
            missed.append(f'{found[f"times {name}"]:.2f} times {name}, the goal is {goal}')
    # Speed is reported, and judged by who reads the table: a goal that is missed is no failure.
    found['goals missed'] = missed
    return found


def bench_resnet50(amp):
    return lambda here: bench(here, 'resnet50', [], '3x224x224', 256, amp, 'resnet50', 100,
                              {'eager': 1.3, 'compile': 1.1})


def bench_resnet18(batch, goals):
    return lambda here: bench(here, 'resnet18', ['--stem', 'cifar'], '3x32x32', batch, 'bf16', 'resnet18-cifar', 400,
                              goals)


def layer_types(here):
    """Each node by our own events (layer_times.c); the kernels by their names where nsys is there."""
    found = {}
    for name, arguments in (('resnet50 256 bf16', ('resnet50', '224', '256', 'bf16')),
                            ('resnet50 256 fp16', ('resnet50', '224', '256', 'fp16')),
                            ('resnet18 512 bf16', ('resnet18', '32', '512', 'bf16'))):
        _, output = run([here.program('layer-times'), *arguments], 300, here.env())
        lines = [json.loads(line) for line in output.splitlines() if line.startswith('{')]
        found[name] = {'all': lines[-1], 'types': [line for line in lines if 'type' in line],
                       'nodes, largest gap first': sorted((line for line in lines if 'node' in line),
                                                          key=lambda line: line['floor_ms'] - line['ms'])[:20]}
    tool = shutil.which('nsys')
    if not tool:
        found['kernels'] = 'nsys is not there'
        return found
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, 'report')
        run([tool, 'profile', '-o', report, '--cuda-graph-trace=node', here.build(), 'resnet50', '--device', 'cuda',
             '--amp', 'bf16', '--data', 'synthetic:3x224x224,n=512,classes=1000', '--batch', '256', '--steps', '20',
             '--no-eval'], 500, here.env())
        _, output = run([tool, 'stats', '--report', 'cuda_gpu_kern_sum', '--format', 'csv', report + '.nsys-rep'], 300)
    found['kernels'] = [line for line in output.splitlines() if ',' in line][:41]
    return found


# name: (function, limit in seconds, what it answers)
PARTS = {
    'machine': (machine, 120, 'GPUs, driver, PyTorch, packages'),
    'torch-baselines': (torch_baselines, 1800, 'experiment i: eager and compile, bf16 and fp16, batches'),
    'cudnn-fusions': (cudnn_fusions, 400, 'experiment ii: which fused plans are there, and their time'),
    'cudnn-engines': (cudnn_engines, 1800, 'experiment ii: which engines of the graph API can be made, and their time'),
    'nccl-shared-gpu': (nccl_shared_gpu, 320, 'experiment iii: two ranks on one GPU by NCCL_HOSTID'),
    'conv-layers': (conv_layers, 620, 'experiment iv: each convolution beside its floor'),
    'conformance': (conformance, 1900, 'every op in fp32 against float64'),
    'conformance-16bit': (conformance_16bit, 620, 'every op in fp16 and bf16 against float64'),
    'steps': (steps, 1300, 'whole steps in fp32, bf16, fp16, with a graph and without'),
    'one-step': (one_step, 1300, 'gradients and update of a step against float64'),
    'fifty-steps': (fifty_steps, 2800, 'fp32, bf16, fp16 beside PyTorch, both from float64'),
    'ddp': (ddp, 900, 'two ranks on one GPU'),
    'checkpoints': (checkpoints, 3000, 'CPU to GPU and back, --deterministic'),
    'sanitizer': (sanitizer, 1900, 'memory, races, uninitialised memory'),
    'bench-resnet50-bf16': (bench_resnet50('bf16'), 4200, '224x224, batch 256'),
    'bench-resnet50-fp16': (bench_resnet50('fp16'), 4200, '224x224, batch 256'),
    'bench-resnet18-512': (bench_resnet18(512, {'eager': 2, 'compile': 1.2}), 4200, '--stem cifar, batch 512'),
    'bench-resnet18-128': (bench_resnet18(128, {'eager': 3}), 4200, '--stem cifar, batch 128'),
    'layer-types': (layer_types, 1800, 'where the time of a step goes'),
}


def attempt(here, name):
    function, limit_s, _ = PARTS[name]
    begin = time.monotonic()

    def over(*_):
        raise Fail(f'past its limit of {limit_s} s')

    signal.signal(signal.SIGALRM, over)
    signal.alarm(limit_s)
    try:
        result = {'result': 'passed', 'found': function(here)}
    except Skip as why:
        result = {'result': 'skipped', 'reason': str(why)}
    except (Fail, OSError, ValueError, KeyError, IndexError, subprocess.SubprocessError) as why:
        result = {'result': 'failed', 'reason': f'{"" if isinstance(why, Fail) else type(why).__name__ + ": "}{why}'}
    finally:
        signal.alarm(0)
    result['seconds'] = round(time.monotonic() - begin, 1)
    return result


def write(folder, results):
    """Both files after each part: whatever ends the run later, what was found stays."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, 'results.json'), 'w', encoding='utf-8') as file:
        json.dump({'schema': 'berth.gpu/1', 'parts': results}, file, indent=1)
        file.write('\n')
    wide = max(len(name) for name in PARTS)
    with open(os.path.join(folder, 'table.txt'), 'w', encoding='utf-8') as file:
        for name, result in results.items():
            said = result.get('reason') or json.dumps(result['found'])
            file.write(f'{name:{wide}}  {result["result"]:7}  {result["seconds"]:8.1f} s  {said}\n')


def main():
    parser = argparse.ArgumentParser(prog='tests/gpu/run.sh')
    parser.add_argument('--build')
    parser.add_argument('--out', default=os.path.join(ROOT, 'gpu-results'))
    parser.add_argument('--only', type=lambda text: text.split(','))
    parser.add_argument('--list', action='store_true')
    options = parser.parse_args()
    if options.list:
        for name, (_, limit_s, what) in PARTS.items():
            print(f'{name:20} {limit_s:5} s  {what}')
        return 0
    unknown = sorted(set(options.only or []) - PARTS.keys())
    if unknown:
        print(f'there is no part {unknown[0]}; there are: {", ".join(PARTS)}', file=sys.stderr)
        return 64
    here, results = Here(options), {}
    for name in options.only or PARTS:
        print(f'{name} ...', file=sys.stderr, flush=True)
        results[name] = attempt(here, name)
        write(options.out, results)
        said = results[name].get('reason', '')
        print(f'{name}: {results[name]["result"]} ({results[name]["seconds"]} s) {said}', flush=True)
    count = {kind: sum(r['result'] == kind for r in results.values()) for kind in ('passed', 'failed', 'skipped')}
    print(f'{count["passed"]} passed, {count["failed"]} failed, {count["skipped"]} skipped; '
          f'{os.path.join(options.out, "table.txt")}, results.json')
    return 1 if count['failed'] else 0 if count['passed'] else 77


if __name__ == '__main__':
    sys.exit(main())
