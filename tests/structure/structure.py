# SPDX-License-Identifier: BSD-3-Clause
"""What must hold for the shape of the source and of what is built.

structure.py layers ROOT              a stage includes earlier stages only
structure.py headers ROOT CC [FLAG..] each header compiles by itself
structure.py licences ROOT            an SPDX line in every source and script
structure.py environment ROOT         the environment is read in lib/base/env*.c alone
structure.py exports ROOT FILE...     what libberth.so and the modules export
structure.py needs BERTH              what berth itself is linked with
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# What a stage (a folder of lib/) may include, beside itself: design.md section 1. Kept tighter
# than the order alone allows; a new arrow is a decision and belongs here.
LAYERS = {
    'base': [],
    'alloc': ['base'],
    'explain': ['base'],
    'machine': ['base'],
    'plan': ['base', 'alloc', 'machine'],
    'launch': ['base', 'alloc'],
    'ranks': ['base'],
    'agent': ['base', 'alloc', 'machine', 'plan', 'launch', 'ranks'],
    'check': ['base', 'alloc', 'machine', 'plan', 'launch', 'ranks', 'agent'],
    'train': ['base', 'ranks'],
    'libberth': ['base', 'ranks'],
    'modules': [],
}
# Within train: models and data (the first two) know the seams device.h and comm.h, and nothing
# behind them.
TRAIN_PARTS = ['data', 'model', 'device', 'comm']

# What berth may be linked with: it starts on a login node without MPI, PMIx or CUDA. The last
# row is the compiler's own (sanitizers, coverage).
MAY_NEED = r'''lib(hwloc|jansson|sodium|z|c|m|dl|pthread|rt)\.so.*
ld-linux.*
(libasan|libubsan|liblsan|libtsan|libgcc_s|libclang_rt.*)\.so.*'''.split('\n')

# What a module may export, by its name.
EXPORTS = {
    'ranks-pmix': r'ranks_(client|server)_pmix',
    'comm': r'comm_\w+',
    'data': r'data_\w+',
    'device': r'device_\w+',
}

# Who may change the process's own environment, for libraries that read it; everybody else hands
# a struct env to execve.
MAY_SET = {
    'lib/ranks/server_library.c',  # PMIx reads PMIX_MCA_* with getenv
    'lib/train/comm/nccl/open.c',  # NCCL_HOSTID: NCCL reads its settings with getenv
    'bin/exec_pmix.c',  # PMIx likewise, in a child process
    'bin/verb_agent.c',  # the secret must not reach what the agent starts
}

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
SOURCES = ('.c', '.h', '.cu', '.cuh', '.cc')
SCRIPTS = ('.py', '.sh', '.bats', '.in', 'meson.build', 'meson_options.txt', '.tsv')


def fail(faults, checked):
    """Say what is wrong; a test that saw nothing to check is wrong as well."""
    if not checked:
        faults = ['nothing was checked: is the first argument the source tree?']
    for fault in faults:
        print(fault, file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f'{checked} checked')


def files(root, folders, suffixes):
    for folder in folders:
        for place, inside, names in os.walk(os.path.join(root, folder)):
            inside[:] = sorted(d for d in inside
                               if not d.startswith(('build', '.git', 'corpus', '__')))
            for name in sorted(names):
                if name.endswith(suffixes):
                    path = os.path.join(place, name)
                    yield os.path.relpath(path, root), path


def text_of(path):
    with open(path, encoding='utf-8') as file:
        return file.read()


def layers(root):
    faults, checked = [], 0
    for name, path in files(root, ['lib'], SOURCES):
        parts = name.split(os.sep)
        if len(parts) < 3:
            continue  # lib/berth.h: the public header; headers() compiles it
        stage = parts[1]
        if stage not in LAYERS:
            faults.append(f'{name}: lib/{stage} is no stage of the table in structure.py')
            continue
        for include in INCLUDE.findall(text_of(path)):
            checked += 1
            to = include.split('/')
            if include.startswith('.'):
                faults.append(f'{name}: includes "{include}"; write it from lib/ on')
            elif len(to) > 1 and to[0] in LAYERS and to[0] != stage \
                    and to[0] not in LAYERS[stage]:
                faults.append(f'{name}: includes "{include}"; {stage} may include '
                              f'{", ".join(LAYERS[stage]) or "nothing"} beside itself')
            elif len(to) == 1 and not os.path.exists(os.path.join(os.path.dirname(path), include)) \
                    and include != 'berth.h':
                faults.append(f'{name}: includes "{include}", which is not beside it')
            elif stage == 'train' and parts[2] in TRAIN_PARTS[:2] and len(to) > 2 \
                    and to[1] in TRAIN_PARTS[2:] and to[2:] != [to[1] + '.h']:
                faults.append(f'{name}: includes "{include}"; {parts[2]} knows the seam '
                              f'train/{to[1]}/{to[1]}.h alone')
    fail(faults, checked)


def with_inner(root, path):
    """A header's text with the texts of those headers of the CUDA device that it includes."""
    text = text_of(path)
    return text + ''.join(with_inner(root, os.path.join(root, 'lib', inner)) for inner in
                          re.findall(r'#\s*include\s*"(train/device/cuda/\w+\.h)"', text))


def headers(root, compiler):
    faults, checked = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(root, ['lib', 'bin'], ('.h',)):
            text = with_inner(root, path)
            absent = [h for h in re.findall(r'#\s*include\s*<(pmix|mpi|cuda|cudnn|nccl)\w*\.h>',
                                            text)
                      if f'-DHAVE_{h.upper()}' not in compiler]
            if absent:
                print(f'{name}: left out, {absent[0]}.h is not here')
                continue
            source = os.path.join(folder, 'alone.c')
            with open(source, 'w', encoding='utf-8') as file:
                # Twice: the guard works too.
                file.write(f'#include "{os.path.abspath(path)}"\n' * 2 + 'int alone;\n')
            done = subprocess.run(
                compiler + ['-std=gnu11', '-D_GNU_SOURCE', '-Wall', '-Werror', '-fsyntax-only',
                            '-I' + os.path.join(root, 'lib'), '-I' + os.path.join(root, 'bin'),
                            source],
                capture_output=True, text=True, timeout=60, check=False)
            checked += 1
            if done.returncode:
                faults.append(f'{name} does not compile alone:\n{done.stderr[:800]}')
    # The public header serves C++ and CUDA programs too.
    public = os.path.join(root, 'lib', 'berth.h')
    if shutil.which('c++'):
        done = subprocess.run(['c++', '-x', 'c++', '-Wall', '-Werror', '-fsyntax-only', public],
                              capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            faults.append(f'lib/berth.h does not compile as C++:\n{done.stderr[:800]}')
    fail(faults, checked)


def licences(root):
    faults, checked = [], 0
    listed = list(files(root, ['lib', 'bin', 'tests', 'jobscripts', 'modulefiles', 'examples',
                               '.ci'], SOURCES + SCRIPTS))
    listed += [(name, os.path.join(root, name)) for name in ('meson.build', 'meson_options.txt')]
    ci = os.path.join(root, '.ci', 'run')
    if os.path.exists(ci):
        listed.append(('.ci/run', ci))
    for name, path in listed:
        if name.endswith('.scd.in'):
            continue  # parts of man pages
        checked += 1
        if 'SPDX-License-Identifier: BSD-3-Clause' not in '\n'.join(
                text_of(path).split('\n')[:4]):
            faults.append(f'{name}: no "SPDX-License-Identifier: BSD-3-Clause" in its first lines')
    fail(faults, checked)


def environment(root):
    """Comments may speak of getenv; code may not call it, nor read environ."""
    reads = re.compile(r'\b(?:secure_)?getenv\s*\(|\benviron\b')
    sets = re.compile(r'\b(?:setenv|putenv|unsetenv|clearenv)\s*\(')
    strip = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.S)
    faults, checked = [], 0
    for name, path in files(root, ['lib', 'bin'], SOURCES):
        checked += 1
        if re.fullmatch(r'lib/base/env(_\w+)?\.c', name):
            continue
        code = strip.sub(' ', text_of(path))
        for found in reads.findall(code) + ([] if name in MAY_SET else sets.findall(code)):
            faults.append(f'{name}: {found}; ask base/env.h')
    fail(faults, checked)


def exports(root, libraries):
    faults, checked = [], 0
    for library in libraries:
        name = os.path.basename(library)
        listed = subprocess.run(['nm', '-D', '--defined-only', library], capture_output=True,
                                text=True, timeout=60, check=True).stdout
        symbols = {line.split()[-1].split('@')[0] for line in listed.splitlines()}
        # What sanitizers and coverage add is not ours.
        symbols = {s for s in symbols
                   if not re.match(r'__(asan|ubsan|lsan|tsan|odr|sanitizer|gcov|start|stop)', s)}
        checked += 1
        if name.startswith('libberth'):
            header = re.sub(r'/\*.*?\*/', ' ', text_of(os.path.join(root, 'lib', 'berth.h')),
                            flags=re.S)
            header = re.sub(r'^\s*#.*$', ' ', header, flags=re.M)
            promised = set(re.findall(r'\b(berth_\w+)\s*\(', header))
            for symbol in sorted(symbols ^ promised):
                faults.append(f'{name}: {symbol} is ' + (
                    'exported but not in berth.h' if symbol in symbols else
                    'in berth.h but not exported'))
            continue
        stem = name.split('.')[0]
        rule = EXPORTS.get(stem) or EXPORTS.get(stem.split('-')[0])
        if not rule:
            faults.append(f'{name}: no row in EXPORTS of structure.py')
            continue
        faults += [f'{name}: exports {symbol}; expected {rule} alone'
                   for symbol in sorted(symbols) if not re.fullmatch(rule, symbol)]
        if not symbols:
            faults.append(f'{name}: exports nothing')
    fail(faults, checked)


def needs(berth):
    listed = subprocess.run(['readelf', '-d', berth], capture_output=True, text=True, timeout=60,
                            check=True).stdout
    needed = re.findall(r'\(NEEDED\).*\[(.*)\]', listed)
    fail([f'berth is linked with {library}; what a login node may lack belongs in a module'
          for library in needed if not any(re.fullmatch(rule, library) for rule in MAY_NEED)],
         len(needed))


def main():
    what, first, *rest = sys.argv[1:]
    if what in ('headers', 'exports'):
        globals()[what](first, rest)
    else:
        globals()[what](first)


main()
