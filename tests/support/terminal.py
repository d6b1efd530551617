#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Type into a shell on a terminal of its own, and wait for what appears there.

    terminal.py STEPS [NAME=VALUE]...

STEPS is a file (-: standard input) with one step per line:
    > TEXT     type TEXT and Enter (\\xHH: any byte; at the end \\c: no Enter)
    < REGEX    wait until REGEX has appeared since the last < (60 s, times BERTH_TEST_SLOW)
    ! REGEX    REGEX must not have appeared since the last <
    = R C      the terminal now has R rows and C columns
    # TEXT     a remark
The shell is bash with job control and the prompt "ready> ". It must end after the last step. What appeared is
printed at the end. Exit codes: the shell's; 1 a step failed.
"""
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

LIMIT_S = 60 * int(os.environ.get('BERTH_TEST_SLOW', '1'))


def main():
    steps = open(sys.argv[1] if sys.argv[1] != '-' else 0).read().splitlines()
    pid, terminal = pty.fork()
    if not pid:
        os.environ.update(pair.split('=', 1) for pair in sys.argv[2:])
        os.environ.update(PS1='ready> ', PS2='', TERM='dumb')
        os.execvp('bash', ['bash', '--norc', '--noprofile', '--noediting', '-i'])
    screen, seen = '', 0

    def read(seconds):
        nonlocal screen
        if not select.select([terminal], [], [], seconds)[0]:
            return True
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the shell has ended
            return False
        screen += data.decode(errors='replace')
        return bool(data)

    def fail(step):
        print(screen)
        sys.exit(f'terminal.py: failed: {step}')

    def wait(pattern, step):
        nonlocal seen
        end = time.monotonic() + LIMIT_S
        while not (found := re.compile(pattern, re.MULTILINE).search(screen, seen)):
            if time.monotonic() > end or not read(0.2):
                fail(step)
        seen = found.end()

    for step in filter(str.strip, steps):
        kind, text = step[0], step[2:]
        if kind == '>':
            enter = '' if text.endswith('\\c') else '\n'
            text = text.removesuffix('\\c')
            text = re.sub(r'\\x(..)', lambda byte: chr(int(byte[1], 16)), text)
            os.write(terminal, (text + enter).encode())
        elif kind == '<':
            wait(text, step)
        elif kind == '=':
            rows, columns = text.split()
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('HHHH', int(rows), int(columns), 0, 0))
        elif kind == '!' and re.search(text, screen[seen:], re.MULTILINE):
            fail(step)
    end = time.monotonic() + LIMIT_S
    while read(0.2):
        if time.monotonic() > end:
            fail('the shell has not ended')
    print(screen)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


main()
