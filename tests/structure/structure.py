# SPDX-License-Identifier: BSD-3-Clause
"""What must hold for the shape of the source and of what is built.

structure.py layers ROOT              a room includes only the rooms that ROOMS allows
structure.py rooms ROOT               docs/architecture.md names each room, and no other
structure.py headers ROOT CC [FLAG..] each header compiles by itself
structure.py licences ROOT            an SPDX line in every source and script
structure.py environment ROOT         the environment is read in lib/base/env*.c alone
structure.py calls ROOT LIBRARY...    a room calls only the rooms that ROOMS allows; files of a room, in
                                      no circle; a part of the job, no other part
structure.py exports ROOT FILE...     what libberth.so and the modules export
structure.py needs BERTH              what berth itself is linked with
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

# The rooms (directories with sources) of lib/, in the order in which data flows, and what each may
# include beside itself. Tighter than the order alone: a new arrow is a decision and belongs here
# and in docs/architecture.md.
ROOMS = {
    'base': [],
    'hostlist': ['base'],
    'alloc': ['base', 'hostlist'],
    'explain': ['base'],
    'inventory': ['base', 'hostlist'],
    'plan': ['base', 'hostlist', 'alloc', 'inventory'],
    'report': ['base', 'hostlist', 'alloc', 'inventory', 'plan'],
    'launch': ['base', 'hostlist', 'alloc'],
    'overlay': ['base'],
    'container': ['base'],
    'process': ['base', 'hostlist'],
    'rendezvous': ['base', 'hostlist'],
    'pmix': ['base', 'hostlist', 'rendezvous'],
    'agent': ['base', 'hostlist', 'alloc', 'inventory', 'plan', 'launch', 'overlay', 'container', 'process',
              'rendezvous', 'pmix'],
    'controller': ['base', 'hostlist', 'alloc', 'explain', 'inventory', 'plan', 'launch', 'overlay', 'container', 'process',
                   'agent'],
    'roles': ['base', 'alloc', 'inventory', 'plan', 'launch', 'container', 'process', 'controller'],
    'run': ['base', 'alloc', 'explain', 'plan', 'launch', 'overlay', 'container', 'process', 'agent', 'controller', 'roles'],
    'check': ['base', 'hostlist', 'alloc', 'inventory', 'plan', 'launch', 'overlay', 'container', 'controller', 'roles'],
    'check/probes': ['base', 'alloc', 'overlay', 'container', 'check'],
    'libberth': ['base', 'rendezvous'],
    'modules': [],
    'train': [],
    'train/device': ['base'],
    'train/model': ['base', 'train/device'],
    'train/comm': ['base', 'rendezvous', 'train/device', 'train/model'],
    'train/comm/gloo': ['base', 'rendezvous', 'train/comm'],
    'train/comm/nccl': ['base', 'rendezvous', 'train/comm'],
    'train/executor': ['base', 'train/device', 'train/model', 'train/comm'],
    'train/device/cpu': ['base', 'train/device', 'train/model', 'train/comm', 'train/executor'],
    # The CUDA device's three rooms are one unit: its tuner measures what its convolutions run.
    'train/device/cuda': ['base', 'train/device', 'train/model', 'train/comm', 'train/executor',
                          'train/device/cuda/tuning', 'train/device/cuda/kernels'],
    'train/device/cuda/tuning': ['base', 'train/device/cuda', 'train/device/cuda/kernels'],
    'train/device/cuda/kernels': [],
    'train/data': ['base', 'train/device', 'train/model'],
    'train/checkpoint': ['base', 'train/device', 'train/model', 'train/comm'],
    'train/metrics': ['base', 'train/data', 'train/device/cuda'],
    'train/run': ['base', 'rendezvous', 'train/device', 'train/model', 'train/comm', 'train/executor', 'train/data',
                  'train/checkpoint', 'train/metrics', 'train/device/cuda'],
}
# The directories of bin ('': bin itself), and what each may include of them beside bin and itself. All may include
# lib; the trainer's rooms are for bin/train alone.
VERBS = {
    '': ['submit'],
    'check': ['run', 'submit'],
    'exec': ['submit'],
    'info': [],
    'roles': [],
    'run': ['exec', 'roles', 'submit'],
    'submit': ['roles'],
    'train': ['exec', 'run'],
}
# Rooms that may include each other; no other loop is allowed.
LOOPS = [{'train/device/cuda', 'train/device/cuda/tuning'}]
# Rooms whose files may not call each other in circles, and the circles that are allowed.
NO_CIRCLES = ('controller', 'inventory', 'plan', 'roles')
CIRCLES = {
    # One long list of variables in two files: each adds its own through environment_put.
    ('plan', 'environment.c', 'environment_network.c'),
}
# Source files per room; a larger room needs splitting.
ROOM_FILES = 16

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
    'lib/pmix/server_library.c',  # PMIx reads PMIX_MCA_* with getenv
    'lib/train/comm/nccl/open.c',  # NCCL_HOSTID: NCCL reads its settings with getenv
    'bin/exec/exec_pmix.c',  # PMIx likewise, in a child process
    'bin/train/berth_train.c',  # OpenMP reads GOMP_SPINCOUNT when it is loaded
    'bin/verb_agent.c',  # the secret must not reach what the agent starts
}

# The top level. Tests that run in the source tree by mistake leave other files there.
TOP = {'.clang-format', '.editorconfig', '.git-blame-ignore-revs', '.gitignore', '.pre-commit-config.yaml', 'CHANGELOG.md',
       'CONTRIBUTING.md', 'LICENSE', 'README.md', 'SECURITY.md', 'meson.build', 'meson_options.txt', 'mkdocs.yml',
       '.ci', 'bin', 'docs', 'examples', 'jobscripts', 'lib', 'modulefiles', 'packaging', 'tests'}

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


def loops():
    """Pairs of rooms that reach each other by what ROOMS allows."""
    reach = {room: set(ROOMS[room]) for room in ROOMS}
    for middle in ROOMS:
        for room in ROOMS:
            if middle in reach[room]:
                reach[room] |= reach[middle]
    return [{a, b} for a in ROOMS for b in ROOMS if a < b and b in reach[a] and a in reach[b]]


def layers(root):
    faults, checked = [], 0
    for loop in loops():
        if loop not in LOOPS:
            faults.append(f'ROOMS in structure.py allows a loop: {" and ".join(sorted(loop))}')
    for name, path in files(root, ['lib'], SOURCES):
        room = os.path.dirname(name)[len('lib/'):]
        if not room:
            continue  # lib/berth.h: the public header; headers() compiles it
        if room not in ROOMS:
            faults.append(f'{name}: lib/{room} is not in the table ROOMS of structure.py')
            continue
        for include in INCLUDE.findall(text_of(path)):
            checked += 1
            to = os.path.dirname(include)
            if include.startswith('.'):
                faults.append(f'{name}: includes "{include}"; write it from lib/ on')
            elif not to:
                beside = os.path.join(os.path.dirname(path), include)
                # Or made from a script or a text there.
                if include != 'berth.h' and not any(os.path.exists(beside[:-1] + end) for end in ('h', 'sh', 'txt', 'html', 'py')):
                    faults.append(f'{name}: includes "{include}", which is not in its directory')
            elif to != room and to not in ROOMS[room]:
                faults.append(f'{name}: includes "{include}"; {room} may include '
                              f'{", ".join(ROOMS[room]) or "nothing"} besides itself')
    for name, path in files(root, ['bin'], SOURCES):
        verb = os.path.dirname(name)[len('bin/'):]
        for include in INCLUDE.findall(text_of(path)):
            checked += 1
            to = os.path.dirname(include)
            if not os.path.exists(os.path.join(root, 'bin', include)):  # of lib
                if to.startswith('train') and verb != 'train':
                    faults.append(f'{name}: includes "{include}", which is the trainer\'s')
            elif to not in ('', verb) and to not in VERBS.get(verb, []):
                faults.append(f'{name}: includes "{include}"; bin/{verb} may include '
                              f'{", ".join(VERBS.get(verb, [])) or "nothing"} besides bin and itself')
    fail(faults, checked)


def rooms(root):
    """docs/architecture.md has one table row per room: `lib/base/` in its first cell."""
    text = text_of(os.path.join(root, 'docs', 'architecture.md'))
    named = [room.rstrip('/') for room in
             re.findall(r'^\| `((?:lib|bin)/[\w/-]*)` \|', text, re.M)]
    found = {}
    for name, _ in files(root, ['lib', 'bin'], ('.c', '.cu', 'meson.build')):
        found.setdefault(os.path.dirname(name), []).append(name)
    for room in ('lib', 'lib/train'):  # rooms of rooms
        found.pop(room, None)
    faults = [f'{room}/ has no row in docs/architecture.md' for room in found if room not in named]
    faults += [f'docs/architecture.md names {room}/, which has no sources'
               for room in named if room not in found]
    faults += [f'docs/architecture.md names {room}/ twice' for room in set(named)
               if named.count(room) > 1]
    for room, names in found.items():
        sources = [name for name in names if not name.endswith('meson.build')]
        if len(sources) > ROOM_FILES:
            faults.append(f'{room}/ holds {len(sources)} source files; at most {ROOM_FILES}')
        if len(sources) == len(names):
            faults.append(f'{room}/ has no meson.build')
    listed = subprocess.run(['git', '-C', root, 'ls-files'], capture_output=True, text=True, timeout=60, check=False)
    faults += [f'{name}: does not belong in the top level (TOP)'
               for name in sorted({line.split('/')[0] for line in listed.stdout.splitlines()} - TOP)]
    fail(faults, len(found))


def with_inner(root, path):
    """A header's text with the texts of those headers of the CUDA device and NCCL that it includes."""
    text = text_of(path)
    return text + ''.join(with_inner(root, os.path.join(root, 'lib', inner)) for inner in
                          re.findall(r'#\s*include\s*"(train/(?:device/cuda|comm/nccl)/[\w/]+\.h)"', text))


def headers(root, compiler):
    faults, checked = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files(root, ['lib', 'bin'], ('.h',)):
            if name.endswith('_list.h'):  # a list of macros that its includer defines
                continue
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


def symbols_of(libraries):
    """Of each source file (room, file): what it defines, and what it needs from elsewhere."""
    defined, needed = {}, {}
    for library in libraries:
        room = os.path.basename(os.path.dirname(library))
        listed = subprocess.run(['nm', '-A', library], capture_output=True, text=True, timeout=60,
                                check=True).stdout
        for name, kind, symbol in re.findall(
                r'^[^:]*:(?:.*/)?([^:/]+)\.o:\s*[0-9a-f]*\s+([A-Z]) (\S+)$', listed, re.M):
            if kind == 'U':
                needed.setdefault((room, name), set()).add(symbol)
            else:
                defined[symbol] = (room, name)
    return defined, needed


def circle_of(start, calls):
    """The files that start calls, and that call it, directly or not."""
    def reach(graph):
        found, todo = set(), [start]
        while todo:
            new = graph.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found
    back = {}
    for caller, called in calls.items():
        for file in called:
            back.setdefault(file, set()).add(caller)
    return reach(calls) & reach(back)


def calls(root, libraries):
    faults, checked = [], 0
    defined, needed = symbols_of(libraries)
    between = {file: {} for file in needed}
    for file, symbols in needed.items():
        for symbol in symbols & defined.keys():
            between[file].setdefault(defined[symbol], symbol)
    for (room, name), called in between.items():
        checked += len(called)
        faults += [f'lib/{room}/{name}: calls {symbol} of lib/{to}; {room} may call '
                   f'{", ".join(ROOMS[room]) or "nothing"} besides itself'
                   for (to, _), symbol in called.items()
                   if to != room and to not in ROOMS[room]]
    graph = {file: set(called) - {file} for file, called in between.items()}
    circles = {(room, *sorted(name for _, name in circle_of((room, start), {
        caller: {to for to in called if to[0] == room}
        for caller, called in graph.items() if caller[0] == room})))
        for room, start in graph if room in NO_CIRCLES}
    faults += [f'lib/{circle[0]}: {", ".join(circle[1:])} call each other'
               for circle in circles if len(circle) > 1 and circle not in CIRCLES]
    faults += [f'CIRCLES in structure.py names {", ".join(circle)}, which is none'
               for circle in CIRCLES - circles]
    parts = {file for symbol, file in defined.items()
             if re.fullmatch(r'job_\w+_part', symbol)}
    faults += [f'lib/controller/{part[1]}: calls {symbol} of another part of the job'
               for part in parts for to, symbol in between.get(part, {}).items()
               if to in parts - {part}]
    if libraries and not parts:
        faults.append('no part of the job was found')
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
    if what in ('headers', 'exports', 'calls'):
        globals()[what](first, rest)
    else:
        globals()[what](first)


main()
