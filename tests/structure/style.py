#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Check the style of what git tracks, with the tools that `.ci/run` installs. Skips (77) without its tool.
    style.py format ROOT         clang-format 14 would change nothing
    style.py spelling ROOT       codespell finds no misspelling
    style.py lines ROOT          no line of a test is longer than 140 characters
    style.py tidy ROOT BUILD     clang-tidy 14 finds nothing in lib/ and bin/; BUILD has compile_commands.json
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

CHECKS = [
    'bugprone-infinite-loop', 'bugprone-integer-division', 'bugprone-macro-repeated-side-effects',
    'bugprone-misplaced-widening-cast', 'bugprone-multiple-statement-macro', 'bugprone-posix-return',
    'bugprone-signal-handler', 'bugprone-signed-char-misuse', 'bugprone-suspicious-memset-usage',
    'bugprone-suspicious-missing-comma', 'bugprone-suspicious-semicolon', 'bugprone-terminating-continue',
    'bugprone-too-small-loop-variable', 'bugprone-unused-return-value', 'misc-misleading-bidirectional',
    'readability-duplicate-include', 'readability-misleading-indentation',
    'readability-redundant-control-flow', 'readability-redundant-declaration',
]
# Names of programs, devices and fields that codespell takes for misspellings.
WORDS = 'hasnt,hsi,iif,renderd,nd'
# A longer line hides what a test runs or asserts.
LONGEST = 140


def need(tool):
    if not shutil.which(tool):
        print(f'SKIP: no {tool}')
        sys.exit(77)


def tracked(root, *patterns):
    """Files below root that match, as git knows them. A copy without git has no tracked files: skip."""
    need('git')
    found = subprocess.run(['git', '-C', root, '-c', f'safe.directory={root}', 'ls-files', '-z', *patterns], capture_output=True, text=True)
    if found.returncode:
        print('SKIP: not a git checkout')
        sys.exit(77)
    return [name for name in found.stdout.split('\0') if name and (root / name).exists()]


def lines_of(root, command):
    found = subprocess.run(command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return found.returncode, (found.stdout + found.stderr).splitlines()


def comparisons_as_templates(root):
    """C has no templates, but clang-format takes `a < b && *c > 0` for one: a<b && * c> 0."""
    for name in tracked(root, '*.c'):
        text = re.sub(r'"(\\.|[^"\\\n])*"|/\*.*?\*/|^ *#.*?$', lambda found: '\n' * found[0].count('\n'),
                      (root / name).read_text(), flags=re.DOTALL | re.MULTILINE)
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(r'\w<\w', line):
                yield f'{name}:{number}: reorder this comparison, which clang-format takes for a template: {line.strip()}'


def check_format(root):
    need('clang-format-14')
    code, lines = lines_of(root, ['clang-format-14', '--dry-run', '-Werror', *tracked(root, '*.c', '*.h', '*.cc', '*.cu', '*.cuh')])
    return (lines or [f'clang-format-14 exited with code {code}'] if code else []) + list(comparisons_as_templates(root))


def check_spelling(root):
    need('codespell')
    names = [name for name in tracked(root) if not re.search(r'/(corpus|fixtures|golden|vectors|captures)/|\.svg$', name)]
    code, lines = lines_of(root, ['codespell', '--ignore-words-list', WORDS, *names])
    return [line for line in lines if '==>' in line] or ([f'codespell exited with code {code}'] if code else [])


def check_lines(root):
    wrong = []
    for name in tracked(root, *(f'tests/*.{suffix}' for suffix in ('bats', 'bash', 'py', 'sh', 'c', 'h'))):
        for number, line in enumerate((root / name).read_text().split('\n'), 1):
            if len(line) > LONGEST:
                wrong.append(f'{name}:{number}: {len(line)} characters, at most {LONGEST}: split this line')
    return wrong


def check_tidy(root, build):
    need('clang-tidy-14')
    names = tracked(root, 'lib/*.c', 'bin/*.c')
    command = ['clang-tidy-14', '-p', build, '--quiet', '--extra-arg=-Wno-everything', '--checks=-*,' + ','.join(CHECKS)]
    built = (pathlib.Path(build) / 'compile_commands.json').read_text()
    names = [name for name in names if name in built]  # a feature that is disabled has no command
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = pool.map(lambda i: lines_of(root, command + names[i:i + 8]), range(0, len(names), 8))
        return [line for _, lines in parts for line in lines if re.search(r': (warning|error): ', line)]


def main(what, root, *rest):
    root = pathlib.Path(root).resolve()
    checks = {'format': check_format, 'spelling': check_spelling, 'lines': check_lines, 'tidy': check_tidy}
    wrong = checks[what](root, *rest)
    print('\n'.join(wrong) or f'{what}: nothing wrong')
    sys.exit(bool(wrong))


main(*sys.argv[1:])
