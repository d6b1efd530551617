# SPDX-License-Identifier: BSD-3-Clause
"""test_run.py RUN.SH: where there is no GPU nothing passes. A made nvidia-smi that sees none, and a PATH
without one: every part is skipped with that reason, in the table, in the JSON and by the exit code."""
import json
import os
import subprocess
import sys
import tempfile

EXPECTED = {'machine', 'torch-baselines', 'cudnn-fusions', 'cudnn-engines', 'nccl-shared-gpu', 'conv-layers',
            'conformance', 'conformance-16bit', 'steps', 'one-step',
            'fifty-steps', 'ddp', 'checkpoints', 'sanitizer', 'bench-resnet50-bf16', 'bench-resnet50-fp16',
            'bench-resnet18-512', 'bench-resnet18-128', 'layer-types'}


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


def main():
    run = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        check(run, folder, None, 'nvidia-smi is not there')
        check(run, folder, 'echo "No devices were found"; exit 6', 'nvidia-smi says No devices were found')
        # With a GPU a build is looked for: one that has no trainer is no pass, and an unknown part an error.
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
        assert done.returncode == 64 and 'there is no part nonsense' in done.stderr, done
    print('run.sh reports what it did not run')


main()
