# SPDX-License-Identifier: BSD-3-Clause
"""test_build.py MESON SOURCE configure|build: the build that run.sh makes on a bare machine can be configured, here
without CUDA, which may be missing; with "build" it is also built and run, and with a CUDA toolkit the build for another
machine is packed."""
import os
import subprocess
import sys
import tempfile

OPTIONS = ['-Dtrainer_only=true', '-Dmpi=disabled', '-Dgloo=disabled', '-Dpmix=disabled', '-Dcuda=disabled',
           '-Dnccl=disabled', '-Dwerror=true']


def run(*command):
    # As on a machine of its own: without variables of the build that runs this test.
    env = {name: value for name, value in os.environ.items() if not name.startswith(('MESON', 'LD_'))}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, f'{" ".join(command[:2])} exited with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}'
    return done.stdout


def main():
    meson, source = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        said = run(meson, 'setup', folder, source, *OPTIONS)
        for line in 'Optional parts', ': no: berth train with several ranks needs gloo, or GPUs and NCCL', ': no: berth train uses CPUs':
            assert line in said, f'no {line!r} in:\n{said[-2000:]}'
        if sys.argv[3] == 'build':
            run('ninja', '-C', folder)
            said = run(os.path.join(folder, 'bin', 'berth-train'), 'linear', '--data', 'synthetic:4,n=16', '--batch', '4',
                       '--steps', '2', '--device', 'cpu-reference', '--no-eval')
            print(said[-500:])
            if os.path.exists('/usr/local/cuda/bin/nvcc'):
                run('sh', os.path.join(source, 'tests', 'gpu', 'run.sh'), '--pack', os.path.join(folder, 'packed'))
    print('the trainer builds on its own')


main()
