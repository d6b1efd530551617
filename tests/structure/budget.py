# SPDX-License-Identifier: BSD-3-Clause
"""Lines of code of each room of lib and bin, as cloc counts C, C++ and CUDA: neither blank nor only comment.

budget.py ROOT   a room has no more lines than BUDGET allows; raising a number takes a line in
                 docs/decisions/0004-lines-of-code.md that names what was retired for it
"""
import collections
import os
import re
import sys

BUDGET = {
    'bin': 2405,
    'bin/check': 266,
    'bin/exec': 771,
    'bin/info': 542,
    'bin/roles': 349,
    'bin/run': 1554,
    'bin/submit': 831,
    'bin/train': 868,
    'lib': 65,
    'lib/agent': 3859,
    'lib/alloc': 2561,
    'lib/base': 3002,
    'lib/check': 3121,
    'lib/container': 1130,
    'lib/controller': 4447,
    'lib/explain': 373,
    'lib/hostlist': 936,
    'lib/inventory': 3195,
    'lib/launch': 1198,
    'lib/libberth': 308,
    'lib/overlay': 2780,
    'lib/plan': 4095,
    'lib/pmix': 2134,
    'lib/process': 3090,
    'lib/rendezvous': 1958,
    'lib/report': 610,
    'lib/roles': 1530,
    'lib/run': 2820,
    'lib/train': 21844,
}
TRAINER = ('bin/train', 'lib/train')
SOURCES = ('.c', '.h', '.cc', '.cpp', '.cu', '.cuh')
# A literal is kept, a comment is not.
TOKENS = re.compile(r'("(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|/\*.*?\*/|//[^\n]*', re.S)


def lines_of(path):
    with open(path, encoding='utf-8') as source:
        text = TOKENS.sub(lambda token: token.group(1) or '\n' * token.group().count('\n'), source.read())
    return sum(1 for line in text.splitlines() if line.strip())


def count(root):
    rooms = collections.Counter()
    for top in ('bin', 'lib'):
        for place, _, names in os.walk(os.path.join(root, top)):
            parts = os.path.relpath(place, root).split(os.sep)
            for name in names:
                if name.endswith(SOURCES):
                    rooms['/'.join(parts[:2])] += lines_of(os.path.join(place, name))
    return rooms


def main(root):
    rooms = count(root)
    faults = [f'{room} has {rooms[room]} lines of code, its budget is {BUDGET.get(room, 0)}' for room in sorted(rooms)
              if rooms[room] > BUDGET.get(room, 0)]
    for fault in faults:
        print(fault)
    trainer = sum(rooms[room] for room in TRAINER)
    print(f'launcher {sum(rooms.values()) - trainer}, trainer {trainer} lines of code')
    return bool(faults)


sys.exit(main(sys.argv[1]))
