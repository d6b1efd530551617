#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Record docs/pictures/recording.svg: a rank that fails, on a terminal, on two Slurm nodes. In a build directory:

    BERTH=$PWD/bin/berth python3 ../tests/cluster/cluster.py --nodes 2 -- python3 ../docs/pictures/recording.py OUT.svg

With --check, compare OUT.svg with a new recording instead: the lines, not their times."""
import html
import os
import pty
import re
import shutil
import sys
import tempfile
import time

COMMAND = 'salloc -Q -N2 --ntasks-per-node=2 berth run -- python3 train.py'
PROGRAM = '''import os, time

rank = int(os.environ["RANK"])

def read_shard(number):
    time.sleep(0.4)
    if number == 17 and rank == 3:
        raise ValueError(f"bad label in shard {number}")
    time.sleep(0.4)

def main():
    for step in range(12, 20):
        read_shard(step)
        if rank == 0:
            print(f"step {step}  loss {2 / step + 0.4:.3f}", flush=True)

main()
'''
SECONDS = 15  # then it begins again
COLOURS = {'33': '#e5c07b', '1;31': '#ff7b72'}


def record():
    """[(seconds, line with escape sequences)]"""
    os.environ.pop('BERTH_TOPOLOGY', None)
    begin, lines, data = time.monotonic(), [], b''
    pid, fd = pty.fork()
    if not pid:
        os.execlp('sh', 'sh', '-c', COMMAND)
    while True:
        try:
            part = os.read(fd, 4096)
        except OSError:  # the terminal's last process has ended
            break
        if not part:
            break
        *complete, data = (data + part).split(b'\n')
        lines += [(time.monotonic() - begin, line.decode().rstrip('\r')) for line in complete]
    os.waitpid(pid, 0)
    return lines


def spans(line):
    colour, out = None, ''
    for part in re.split(r'(\x1b\[[0-9;]*m)', line):
        if part.startswith('\x1b'):
            colour = COLOURS.get(part[2:-1])
        elif part:
            out += f'<tspan fill="{colour}">{html.escape(part)}</tspan>' if colour else html.escape(part)
    return out


def svg(lines):
    typed = len(COMMAND) / 25
    prompt = '<tspan fill="#7ee787">$</tspan> '
    rows = [(0, prompt)] + [(typed + at, spans(line)) for at, line in lines]
    rows.append((rows[-1][0] + 0.3, prompt))
    height, style, text = 20 * len(rows) + 24, '', ''
    for i, (at, inside) in enumerate(rows):
        percent = 100 * at / SECONDS
        style += f'@keyframes r{i}{{0%,{percent:.2f}%{{opacity:0}}{percent + 0.01:.2f}%,100%{{opacity:1}}}}'
        style += f'.r{i}{{animation:r{i} {SECONDS}s infinite}}'
        text += f'<text class="r{i}" x="16" y="{28 + 20 * i}">{inside}</text>\n'
    for i, letter in enumerate(COMMAND):
        percent = 100 * i / 25 / SECONDS
        style += f'@keyframes c{i}{{0%,{percent:.2f}%{{opacity:0}}{percent + 0.01:.2f}%,100%{{opacity:1}}}}'
        style += f'.c{i}{{animation:c{i} {SECONDS}s infinite}}'
    letters = ''.join(f'<tspan class="c{i}">{html.escape(letter)}</tspan>' for i, letter in enumerate(COMMAND))
    text = text.replace('</text>', letters + '</text>', 1)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="ui-monospace,Menlo,'
            f'Consolas,\'DejaVu Sans Mono\',monospace" font-size="14" fill="#e6edf3">\n'
            f'<title>A rank that fails, on a terminal</title>\n<style>text{{white-space:pre}}{style}'
            f'@media (prefers-reduced-motion:reduce){{text,tspan{{animation:none!important}}}}</style>\n'
            f'<rect width="900" height="{height}" rx="8" fill="#0d1117"/>\n{text}</svg>\n')


def plain(text):
    """The lines, but for the steps, whose number depends on how fast the other ranks end, and for newer Python's marks."""
    lines = [html.unescape(re.sub(r'<[^>]*>', '', line)) for line in re.findall(r'<text.*?</text>', text)]
    return [line for line in lines if not line.startswith('step ') and line.strip(' ~^')]


def main():
    check, out = sys.argv[1] == '--check', os.path.abspath(sys.argv[-1])
    directory = tempfile.mkdtemp(dir=os.environ['CLUSTER'] + '/share')
    os.chdir(directory)
    os.environ['PATH'] = os.path.dirname(os.environ['BERTH']) + ':' + os.environ['PATH']
    with open('train.py', 'w', encoding='utf-8') as file:
        file.write(PROGRAM)
    lines = [(at, line.replace(directory, '/home/me')) for at, line in record()]
    shutil.rmtree(directory)
    new = svg(lines)
    if check:
        with open(out, encoding='utf-8') as file:
            old = file.read()
        if plain(old) != plain(new):
            sys.exit('recording: the terminal now shows\n' + '\n'.join(plain(new)))
        return
    with open(out, 'w', encoding='utf-8') as file:
        file.write(new)


main()
