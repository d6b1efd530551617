#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Print docs/reference/commands.md from the --help of every verb.
    commands.py BERTH > docs/reference/commands.md"""
import re
import subprocess
import sys


def main(berth):
    def help_of(*verb):
        return subprocess.run([berth, *verb, '--help'], check=True, capture_output=True, text=True).stdout.rstrip()

    overview = help_of()
    print('# Commands\n\nGenerated from `--help` by `commands.py`; `man berth-VERB` says more.\n')
    print(f'## berth\n\n```text\n{overview}\n```')
    for verb in re.findall(r'^  ([a-z-]+) ', overview, re.MULTILINE):
        print(f'\n## berth {verb}\n\n```text\n{help_of(verb)}\n```')


main(sys.argv[1])
