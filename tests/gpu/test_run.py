# SPDX-License-Identifier: BSD-3-Clause
"""test_run.py RUN.SH: without a GPU nothing passes. With a fake nvidia-smi that sees no GPU, and with none in
PATH, every part is skipped with that reason, in the table, in the JSON and by the exit code."""
import json
import os
import re
import subprocess
import sys
import tempfile

from here import PROGRAMS

BENCHES = ['resnet50-bf16', 'resnet50-fp16', 'resnet18-128', 'resnet18-512']
EXPECTED = {'machine', 'smoke', 'cudnn-fusions', 'cudnn-engines', 'nccl-shared-gpu', 'conv-layers', 'conformance',
            'conformance-16bit', 'steps', 'one-step', 'fifty-steps', 'ddp', 'checkpoints', 'sanitizer', 'layer-types',
            *(f'{kind}-{name}' for kind in ('own', 'eager', 'compile') for name in BENCHES)} - {'compile-resnet18-128'}


def programs():
    """Each program that a part asks for by name is packed for another machine."""
    here = os.path.dirname(os.path.abspath(__file__))
    for name in ('right.py', 'speed.py', 'parts.py'):
        with open(os.path.join(here, name), encoding='utf-8') as file:
            asked = set(re.findall(r"here\.program\('([^']+)'\)", file.read()))
        assert asked <= set(PROGRAMS), (name, asked - set(PROGRAMS))


def check(run, folder, smi, reason):
    tools = os.path.join(folder, 'tools')
    os.makedirs(tools, exist_ok=True)
    for tool in ('sh', 'dirname', 'python3'):
        if not os.path.lexists(os.path.join(tools, tool)):
            os.symlink(next(os.path.join(p, tool) for p in os.environ['PATH'].split(':')
                            if os.path.exists(os.path.join(p, tool))), os.path.join(tools, tool))
    if smi:
        with open(os.path.join(tools, 'nvidia-smi'), 'w', encoding='utf-8') as file:
            file.write(f'#!/bin/sh\n{smi}\n')
        os.chmod(os.path.join(tools, 'nvidia-smi'), 0o755)
    out = os.path.join(folder, 'out')
    done = subprocess.run(['sh', run, '--out', out], env=dict(os.environ, PATH=tools, PYTHON=sys.executable),
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 77, (done.returncode, done.stdout, done.stderr)
    with open(os.path.join(out, 'results.json'), encoding='utf-8') as file:
        parts = json.load(file)['parts']
    assert parts.keys() == EXPECTED, parts.keys() ^ EXPECTED
    for name, part in parts.items():
        assert part['result'] == 'skipped' and reason in part['reason'], (name, part)
        assert 'found' not in part, (name, part)
    with open(os.path.join(out, 'table.txt'), encoding='utf-8') as file:
        table = file.read().splitlines()
    assert len(table) == len(EXPECTED) and all(' skipped ' in line and reason in line for line in table), table
    assert f'0 passed, 0 failed, {len(EXPECTED)} skipped' in done.stdout, done.stdout


def several_calls(run, env, out, folder):
    """Several calls share one table; with --resume passed parts do not run again, and a call without time removes no
    result."""
    def call(*more):
        done = subprocess.run(['sh', run, '--out', out, '--build', folder, *more], env=env, capture_output=True, text=True,
                              timeout=100, check=False)
        with open(os.path.join(out, 'results.json'), encoding='utf-8') as file:
            return done, json.load(file)['parts']

    _, parts = call('--only', 'machine,ddp')
    at = parts['machine']['at']
    done, parts = call('--only', 'machine,steps', '--resume', '--time', '60')
    assert done.returncode == 77 and 'machine: passed before' in done.stdout, done
    assert parts.keys() == {'machine', 'ddp', 'steps'} and parts['machine']['at'] == at, parts
    done, parts = call('--only', 'experiments', '--time', '12')
    assert 'no time was left' in parts['conv-layers']['reason'] and parts['machine']['result'] == 'passed', parts
    with open(os.path.join(out, 'table.txt'), encoding='utf-8') as file:
        assert [line.split()[0] for line in file][:2] == ['machine', 'steps']


def touch(*path):
    os.makedirs(os.path.join(*path[:-1]), exist_ok=True)
    with open(os.path.join(*path), 'w', encoding='utf-8'):
        pass


def python_packages(here, folder):
    """cuDNN, NCCL and cuBLASLt in Python packages without libX.so, and a toolkit with only nvcc and the runtime."""
    site, toolkit = os.path.join(folder, 'site'), os.path.join(folder, 'cuda')
    for path in ('cudnn/lib/libcudnn.so.9', 'cudnn/lib/libcudnn_graph.so.9', 'cudnn/include/cudnn.h',
                 'nccl/lib/libnccl.so.2', 'nccl/include/nccl.h', 'cu13/lib/libcublasLt.so.13', 'cu13/lib/libcudart.so.13',
                 'cu13/include/cublasLt.h', 'cu13/include/cuda_runtime_api.h', 'nvtx/lib/libother.so.1'):
        touch(site, 'nvidia', *path.split('/'))
    touch(toolkit, 'bin', 'nvcc')
    os.chmod(os.path.join(toolkit, 'bin', 'nvcc'), 0o755)
    touch(toolkit, 'include', 'cuda_runtime_api.h')
    found = subprocess.run(
        [sys.executable, '-S', '-c', 'import here, json; here.ROOT = %r; h = here.Here("carried"); '
         'print(json.dumps([h.env()["LD_LIBRARY_PATH"], here.linkable(h)]))' % folder], check=True, timeout=60,
        env=dict(os.environ, PYTHONPATH=f'{here}:{site}', PATH=f'{toolkit}/bin:{os.environ["PATH"]}', LD_LIBRARY_PATH='/old'),
        capture_output=True, text=True, cwd=folder).stdout
    path, options = json.loads(found)
    assert path.split(':') == [os.path.join(folder, 'carried', 'lib')] + [
        os.path.join(site, 'nvidia', name, 'lib') for name in ('cu13', 'cudnn', 'nccl')] + ['/old'], path
    place = os.path.join(folder, 'build-gpu-libraries')
    assert options == [f'-Dcudnn_dir={place}', f'-Dnccl_dir={place}'], options
    for name in ('libcudnn.so', 'libnccl.so', 'libcublasLt.so', 'libcudart.so', 'libcudnn_graph.so.9'):
        assert os.path.exists(os.path.join(place, 'lib', name)), name
    # The toolkit's own headers are not hidden by those of another version.
    assert sorted(os.listdir(os.path.join(place, 'include'))) == ['cublasLt.h', 'cudnn.h', 'nccl.h']


BENCH = """
import sys
for line in sys.stdin:
    kind = line.split()[-1]
    print('W0801 some output of a library', '{', flush=True)
    print('{"asked": "%s", %s}' % (line.strip(), '"error": "no compiler"' if kind == 'compile' else
                                   '"images_per_s": 500.0, "memory_bytes": 7'), flush=True)
"""


def speeds(here, folder):
    """berth alone is measured without PyTorch; each figure is saved at once; a PyTorch that cannot compile is reported."""
    with open(os.path.join(folder, 'torch_bench.py'), 'w', encoding='utf-8') as file:
        file.write(BENCH)
    said = subprocess.run(
        [sys.executable, '-S', '-c', f"""
import here, json, parts, speed
here.HERE = {folder!r}
h = here.Here('carried', 'out')
h.build = lambda: 'there'
def no_torch():
    raise here.Skip('no PyTorch')
def own(*_):
    if len(saved) and broken:
        raise here.Fail('the GPU is gone')
    return [dict(images_per_s=1000.0, gpu_memory_bytes=5, data_wait_ms=0.0, host_ms=12.8)], 1.0
speed.own, saved, broken = own, [], True
answers = []
h.torch = no_torch
answers.append(parts.attempt(h, 'own-resnet50-bf16', 400, lambda found: saved.append(dict(found))))
answers.append(saved)
broken = False
answers += [parts.attempt(h, f'{{kind}}-resnet50-bf16', 400) for kind in ('own', 'eager')]
h.torch = lambda: 'there'
answers += [parts.attempt(h, f'{{kind}}-resnet50-bf16', 400) for kind in ('eager', 'compile')]
answers.append(h.env()['XDG_CACHE_HOME'])
print(json.dumps(answers))
"""], check=True, timeout=100, env={**os.environ, 'PYTHONPATH': here, 'XDG_CACHE_HOME': ''}, capture_output=True, text=True,
        cwd=folder).stdout
    gone, saved, alone, without, eager, compiled, cache = json.loads(said)
    assert gone['result'] == 'failed' and saved[0] == {'images_per_s': 1000.0} == {
        name: gone['found'][name] for name in saved[0]}, (gone, saved)
    assert alone['result'] == 'passed' and abs(alone['found']['host share of a step, by its thread'] - 0.05) < 1e-9, alone
    assert without['result'] == 'skipped' and without['reason'] == 'no PyTorch', without
    assert eager['result'] == 'passed' and eager['found']['times eager'] == 2.0 and eager['found']['goal'] == 1.3, eager
    assert compiled['result'] == 'failed' and compiled['reason'] == 'PyTorch compile: no compiler', compiled
    assert cache.endswith('out/cache'), cache


def main():
    run = sys.argv[1]
    programs()
    with tempfile.TemporaryDirectory() as folder:
        check(run, folder, None, 'nvidia-smi is missing')
        check(run, folder, 'echo "No devices were found"; exit 6', 'nvidia-smi reports No devices were found')
        # With a GPU, a build without a trainer is a skip, and an unknown part is an error.
        tools = os.path.join(folder, 'tools')
        with open(os.path.join(tools, 'nvidia-smi'), 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\necho "A GPU, GPU-1, 1, 1 MiB"\n')
        env = dict(os.environ, PATH=tools, PYTHON=sys.executable)
        out = os.path.join(folder, 'out2')
        done = subprocess.run(['sh', run, '--out', out, '--build', folder, '--only', 'machine,ddp'], env=env,
                              capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0 and 'ddp: skipped' in done.stdout and 'was not built' in done.stdout, done
        assert '1 passed, 0 failed, 1 skipped' in done.stdout, done
        done = subprocess.run(['sh', run, '--only', 'nonsense'], env=env, capture_output=True, text=True, timeout=100,
                              check=False)
        assert done.returncode == 64 and 'unknown part nonsense' in done.stderr, done
        several_calls(run, env, out, folder)
        here = os.path.dirname(os.path.abspath(run))
        python_packages(here, folder)
        speeds(here, folder)
    print('run.sh reports what it did not run')


main()
