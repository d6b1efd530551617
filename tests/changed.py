# SPDX-License-Identifier: BSD-3-Clause
"""Print the tests of a configured build whose files changed since a commit, or are not committed:
    changed.py BUILD COMMIT
A test's files are the arguments of its command, its program's sources, and what its script names."""
import json
import os
import subprocess
import sys


def git(*argv):
    done = subprocess.run(['git', *argv], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(1)
    return done.stdout.splitlines()


def main():
    build, commit = sys.argv[1:]
    root = os.getcwd()
    changed = git('diff', '--name-only', '--relative', commit, '--', 'tests')
    changed += git('ls-files', '--others', '--exclude-standard', '--', 'tests')
    paths = {os.path.join(root, name) for name in changed
             if not name.startswith('tests/support/') and not name.endswith('meson.build')}
    names = {os.path.basename(path) for path in paths}
    what = json.loads(subprocess.check_output(['meson', 'introspect', '--tests', '--targets', build], text=True))
    sources = {}
    for target in what['targets']:
        for filename in target['filename']:
            sources[filename] = {path for part in target['target_sources'] for path in part.get('sources', [])}
    for test in what['tests']:
        if 'quick' not in [suite.rpartition(':')[2] for suite in test['suite']]:
            continue
        files = {os.path.normpath(os.path.join(build, word)) for word in test['cmd']}
        of_program = set().union(*(sources.get(path, set()) for path in files))
        scripts = {path for path in files if path.startswith(root + '/tests/') and os.path.isfile(path)}
        if (files | of_program) & paths or names & {word for path in scripts for word in words(path)}:
            print(test['name'])


def words(path):
    """The file names that a script contains."""
    with open(path, encoding='utf-8', errors='replace') as file:
        text = file.read()
    return {os.path.basename(word.strip('"\'`(),;$')) for word in text.split()}


if __name__ == '__main__':
    sys.exit(main())
