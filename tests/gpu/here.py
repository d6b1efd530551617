# SPDX-License-Identifier: BSD-3-Clause
"""Shared by run.sh's parts: running programs, the machine, the build. Uses only Python's standard library."""
import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, 'tests', 'gpu')
TAIL = 1500  # characters of a failed program's output that are kept
# Options of a build of the trainer only.
BUILD = ['-Dtrainer_only=true', '-Dmpi=disabled', '-Dgloo=disabled', '-Dpmix=disabled', '-Djpeg=disabled',
         '-Dcuda=enabled', '-Dnccl=enabled']


class Skip(Exception):
    """Why a part cannot run here."""


class Fail(Exception):
    """What a part found wrong; output: all that a program had printed by then."""
    output = ''


# ---- running ----

def run(command, limit_s, env=None, fails=True):
    """-> (exit code, output). After limit_s the program and its children are killed."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors='replace', env=env, cwd=ROOT, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit_s)
    except BaseException as why:  # includes the part's own limit
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(why, subprocess.TimeoutExpired):
            raise
        late = Fail(f'{os.path.basename(command[0])} did not end within {limit_s:.0f} s: {output[-TAIL:]}')
        late.output = output
        raise late from None
    if process.returncode == 77:
        raise Skip(output.strip().splitlines()[-1] if output.strip() else f'{command[0]} exited with code 77')
    if process.returncode and fails:
        raise Fail(f'{" ".join(command[:3])}... exited with code {process.returncode}: {output[-TAIL:]}')
    return process.returncode, output


def objects(output):
    """The JSON objects among a program's lines; libraries may print other lines anywhere."""
    out = []
    for line in output.splitlines():
        if line.startswith('{'):
            try:
                out.append(json.loads(line))
            except ValueError:
                pass
    return out


def script(here, name, *arguments, limit_s):
    """Run a script with PyTorch; return its last JSON object."""
    _, output = run([sys.executable, os.path.join(HERE, name), *arguments], limit_s, here.env())
    found = objects(output)
    if not found:
        raise Fail(f'{name} printed no result: {output[-TAIL:]}')
    return found[-1]


class Talk:
    """A script with PyTorch that answers each line with one JSON object, which repeats the line under "asked"."""

    def __init__(self, here, name, *arguments):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, name), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env=here.env(), cwd=ROOT, start_new_session=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.said, self.rest = '', ''
        self.lost = False  # it has ended, or is still busy with a request that timed out

    def _line(self, until):
        """The next complete line."""
        while '\n' not in self.rest:
            got = self.process.stdout.read()
            if got:
                self.rest += got.decode(errors='replace')
            elif got == b'':
                raise Fail(f'{self.name} exited with code {self.process.wait()}: {(self.said + self.rest)[-TAIL:]}')
            elif time.monotonic() > until:
                raise Fail(f'{self.name} did not answer in time: {(self.said + self.rest)[-TAIL:]}')
            else:
                time.sleep(0.02)
        line, self.rest = self.rest.split('\n', 1)
        self.said = (self.said + line + '\n')[-10 * TAIL:]
        return line

    def ask(self, word, limit_s):
        try:
            self.process.stdin.write(word.encode() + b'\n')
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the Fail raised below contains its output
        until = time.monotonic() + limit_s
        try:
            while True:
                for found in objects(self._line(until)):
                    if found.get('asked') == word:
                        return found
        except Fail:
            self.lost = True
            raise

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


# ---- this machine ----

class Here:
    """The machine and the build. Each query runs once; its result or Skip is kept."""

    def __init__(self, build=None, out=None):
        self.folder = build
        self.out = out  # what comes back from the machine: results, and the choices of layers that were tuned
        self.answers = {}
        self.until = None  # deadline of the running part, by time.monotonic()

    def left_s(self, at_most=1e9):
        """Seconds that the part has left, minus a few for its report."""
        left = at_most if self.until is None else self.until - time.monotonic() - 5
        return max(1, min(at_most, left))

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
            raise Skip('no GPU: nvidia-smi is missing')
        done = subprocess.run([smi, '--query-gpu=name,uuid,driver_version,memory.total', '--format=csv,noheader'],
                              capture_output=True, text=True, timeout=60, check=False)
        gpus = [line.strip() for line in done.stdout.splitlines() if line.strip()]
        if done.returncode or not gpus:
            raise Skip(f'no GPU: nvidia-smi reports {(done.stdout + done.stderr).strip()[:200]}')
        return gpus

    def torch(self):
        return self.ask('torch', self._torch)

    def _torch(self):
        self.gpu()
        done = subprocess.run(
            [sys.executable, '-c', 'import torch; print(torch.__version__, torch.version.cuda, '
             'torch.backends.cudnn.version(), torch.cuda.is_available())'], capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise Skip(f'no PyTorch in {sys.executable}: {(done.stderr.strip().splitlines() or ["?"])[-1][:200]}')
        if not done.stdout.strip().endswith('True'):
            raise Skip(f'PyTorch {done.stdout.split()[0]} sees no GPU')
        return done.stdout.strip()

    def packages(self):
        """The directories of NVIDIA's Python packages: cudnn, nccl, cu13 or cublas, cuda_runtime, ..."""
        found = importlib.util.find_spec('nvidia')
        places = list(found.submodule_search_locations or []) if found else []
        return sorted(path for place in places for path in glob.glob(os.path.join(place, '*')) if os.path.isdir(path))

    def libraries(self):
        """Those of their directories with libraries that berth, cuDNN and cuBLASLt load."""
        wanted = ('libcudart', 'libcublasLt', 'libcudnn', 'libnccl', 'libnvrtc', 'libnvJitLink')
        return [os.path.join(package, 'lib') for package in self.packages()
                if any(glob.glob(os.path.join(package, 'lib', name + '.so*')) for name in wanted)]

    def env(self, **more):
        env = dict(os.environ, **more)
        own = [os.path.join(os.path.abspath(self.folder), 'lib')] if self.folder else []
        env['LD_LIBRARY_PATH'] = ':'.join(own + self.libraries() + [p for p in [os.environ.get('LD_LIBRARY_PATH')] if p])
        # torch.compile and this script call ninja, which a virtual environment has next to python.
        env['PATH'] = ':'.join([os.environ.get('PATH', '/usr/bin:/bin'), os.path.dirname(sys.executable)])
        if self.out:
            env['XDG_CACHE_HOME'] = more.get('XDG_CACHE_HOME', os.path.join(os.path.abspath(self.out), 'cache'))
        if self.folder:
            env['BERTH_MODULE_PATH'] = os.path.join(os.path.abspath(self.folder), 'lib', 'modules')
        for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'PMIX_NAMESPACE'):
            if name not in more:
                env.pop(name, None)
        return env

    # ---- the build ----

    def build(self):
        """The trainer."""
        return self.ask('build', self._build)

    def _build(self):
        self.gpu()
        if not self.folder:
            self.folder = os.path.join(ROOT, 'build-gpu')
            make(self, self.folder, [f'-Dgpu_arch={self.architecture()}'])
        trainer = os.path.join(self.folder, 'bin', 'berth-train')
        for path in (trainer, os.path.join(self.folder, 'lib', 'modules', 'device-cuda.so')):
            if not os.path.exists(path):
                raise Skip(f'{path} was not built')
        return os.path.abspath(trainer)

    def architecture(self):
        done = subprocess.run(['nvidia-smi', '--query-gpu=compute_cap', '--format=csv,noheader'], capture_output=True,
                              text=True, timeout=60, check=False)
        found = re.match(r'(\d+)\.(\d)', done.stdout)
        return found.group(1) + found.group(2) if found and not done.returncode else '80,90,100'

    def program(self, name):
        """A test program of the build, in any directory."""
        self.build()
        found = [path for path in glob.glob(os.path.join(self.folder, '**', name), recursive=True)
                 if os.access(path, os.X_OK) and os.path.isfile(path)]
        if found:
            return os.path.abspath(found[0])
        raise Skip(f'{name} was not built (cmocka is missing?)')

    def cpu(self):
        """(device, options): the CPU device to compare with; the tests' own without oneDNN."""
        return self.ask('cpu', self._cpu)

    def _cpu(self):
        _, output = run([self.build(), 'linear', '--data', 'synthetic:4,n=16', '--batch', '4', '--steps', '1', '--no-eval',
                         '--device', 'cpu'], 60, self.env(), fails=False)
        return ('cpu-reference', []) if 'oneDNN (Debian' in output else ('cpu', ['--cpu-conv', 'direct'])


def meson():
    """The command, or None."""
    if shutil.which('meson'):
        return ['meson']
    return [sys.executable, '-m', 'mesonbuild.mesonmain'] if importlib.util.find_spec('mesonbuild') else None


def linkable(here):
    """Python packages have only libX.so.N, and headers in a directory each, but the linker needs libX.so. Make a directory
    of links to everything that the toolkit lacks; return the build options that name it."""
    nvcc = shutil.which('nvcc') or '/usr/local/cuda/bin/nvcc'
    toolkit = os.path.dirname(os.path.dirname(nvcc))
    place = os.path.join(ROOT, 'build-gpu-libraries')
    shutil.rmtree(place, ignore_errors=True)
    for name in ('include', 'lib'):
        os.makedirs(os.path.join(place, name))

    def link(path, to):
        if not os.path.lexists(to):
            os.symlink(path, to)

    for package in here.packages():
        for path in glob.glob(os.path.join(package, 'include', '*')):
            if not os.path.exists(os.path.join(toolkit, 'include', os.path.basename(path))):
                link(path, os.path.join(place, 'include', os.path.basename(path)))
        for path in glob.glob(os.path.join(package, 'lib', '*.so*')):
            base = os.path.basename(path)
            link(path, os.path.join(place, 'lib', base))
            link(path, os.path.join(place, 'lib', base.split('.so')[0] + '.so'))
    out = []
    if glob.glob(os.path.join(place, 'lib', 'libcudnn.so')):
        out.append(f'-Dcudnn_dir={place}')
    if glob.glob(os.path.join(place, 'lib', 'libnccl.so')):
        out.append(f'-Dnccl_dir={place}')
    return out


def make(here, folder, options):
    """Build in folder. Missing tools are a Skip, errors of the compiler a Fail."""
    env, command = here.env(), meson()
    ninja = shutil.which('ninja', path=env['PATH'])
    if not command or not ninja:
        raise Skip(f'no build: {"ninja" if command else "meson"} is missing; install it, or use --build DIR with a build '
                   'from elsewhere (--pack DIR)')
    again = os.path.exists(os.path.join(folder, 'build.ninja'))
    code, output = run([*command, 'setup', *(['--reconfigure'] if again else []), folder, *BUILD, *options,
                        *linkable(here)], here.left_s(300), env, fails=False)
    if code:
        why = [line for line in output.splitlines() if 'ERROR' in line] or output.strip().splitlines() or ['?']
        raise Skip(f'no build: meson reports {why[-1][:300]}; install it, or use --build DIR with a build from '
                   'elsewhere (--pack DIR)')
    run([ninja, '-C', folder], here.left_s(1200), env)


# ---- a build for another machine ----

PROGRAMS = ('cudnn-fusions', 'cudnn-engines', 'layer-times', 'ops-sixteen', 'parity-steps', 'test_train_losses_cuda',
            'test_train_ops_cuda', 'test_train_ops_norm_cuda', 'test_train_step')
# Libraries of every system with a driver, or with PyTorch or the toolkit.
THERE = re.compile(r'(libc|libm|libdl|librt|libpthread|ld-linux[^.]*|linux-vdso|libgcc_s|libstdc\+\+|libcuda|libcudart|libcudnn\w*'
                   r'|libcublas\w*|libnccl|libnv\w*)\.so')


def needed(path):
    """The libraries that a program loads, with their paths: [(name, file or None)]."""
    done = subprocess.run(['ldd', path], capture_output=True, text=True, timeout=60, check=False)
    out = []
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) > 1 and words[1] == '=>':
            out.append((words[0], words[2] if words[2].startswith('/') else None))
    return out


def pack(folder):
    """Make a minimal build for --build on another machine: the programs that run.sh starts, and the libraries they load
    except NVIDIA's and libc's. Return its size in bytes."""
    here = Here(os.path.join(ROOT, 'build-gpu'))
    make(here, here.folder, [])
    for name in ('bin', 'lib/modules', 'tests'):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    files = {'bin': [os.path.join(here.folder, 'bin', 'berth-train')],
             'lib/modules': [os.path.join(here.folder, 'lib', 'modules', name) for name in
                             ('device-cuda.so', 'comm-nccl.so')], 'tests': []}
    for name in PROGRAMS:
        found = glob.glob(os.path.join(here.folder, 'tests', '**', name), recursive=True)
        if not found:
            raise Skip(f'{name} was not built: is cmocka missing?')
        files['tests'].append(found[0])
    libraries = {}
    for where, paths in files.items():
        for path in paths:
            shutil.copy2(path, os.path.join(folder, where, os.path.basename(path)))
            libraries.update({name: file for name, file in needed(path) if not THERE.match(name)})
    for name, file in libraries.items():
        if not file:
            raise Skip(f'{name} is missing on this machine, but the build needs it')
        shutil.copy2(os.path.realpath(file), os.path.join(folder, 'lib', name))
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)
