#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fill in a man page: @VERSION@, and @OPTIONS@ from what --help prints, so that the two cannot disagree.
    page.py PAGE.scd BERTH VERSION > PAGE.scd"""
import os
import pathlib
import re
import subprocess
import sys

# argp then prints each option's text on one line. Options that are too long for their column have it on the next.
WIDE = 'rmargin=20000,opt-doc-col=34,header-col=1,no-dup-args-note'
ENTRY = re.compile(r'^ {2,6}(?P<names>-\S.*?)(?: {2,}(?P<text>\S.*))?$')
NAME = re.compile(r'(?P<name>--?[A-Za-z?][a-z0-9-]*)(?:\[?=(?P<argument>.+?)\]?)?$')


def escape(text):
    return re.sub(r'([*_\\<>])', r'\\\1', text)


def name_of(text):
    found = NAME.match(text)
    return f'*{found["name"]}*' + (f' _{escape(found["argument"])}_' if found['argument'] else '')


def options(berth, verb):
    """The options of a verb as scdoc, in the order and the groups of --help. argp's own are left out."""
    shown = subprocess.run([berth, verb, '--help'], check=True, capture_output=True, text=True,
                           env={**os.environ, 'ARGP_HELP_FMT': WIDE}).stdout
    lines, open_entry = [], False
    for line in shown.splitlines()[1:]:
        entry = ENTRY.match(line)
        if entry:
            open_entry = entry['names'].split('=')[0] not in ('-?, --help', '--usage')
            if open_entry:
                lines += [', '.join(name_of(part) for part in entry['names'].split(', ')), '\t' + escape(entry['text'] or ''), '']
        elif open_entry and line.startswith(' ' * 29):
            lines[-2] += (' ' if lines[-2].strip() else '') + escape(line.strip())
        elif re.match(r'^ \S.*$', line):
            lines += ['## ' + line.strip(), '']
            open_entry = False
        else:
            open_entry = False
    return '\n'.join(lines)


def main(path, berth, version):
    page = pathlib.Path(path)
    verb = page.name.removeprefix('berth-').split('.')[0]
    text = page.read_text().replace('@VERSION@', version)
    if '@OPTIONS@' in text:
        text = text.replace('@OPTIONS@', options(berth, verb))
    sys.stdout.write(text)


main(*sys.argv[1:])
