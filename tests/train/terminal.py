#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What berth train shows while it works: on a pseudo terminal a status line that is redrawn every
second and removed in the end, elsewhere a line a minute, and colour for errors on terminals only.

    terminal.py BERTH BERTH_TRAIN
"""
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

OVER = b'\r\033[K'
SLOW = ['resnet50', '--data', 'synthetic:3x224x224,n=64,classes=10', '--batch', '16', '--no-eval']
FAST = ['linear', '--data', 'synthetic:1x8x8,n=64,classes=3', '--batch', '8', '--epochs', '1']
STARTS_S = 3 * 1  # three times the documented second
STATUS = re.compile(rb'\d+:\d\d elapsed, [a-z ]+$')


def environment(**more):
    own = {name: value for name, value in os.environ.items()
           if name not in ('NO_COLOR', 'RANK', 'WORLD_SIZE', 'BERTH_LOG', 'BERTH_PROGRESS')}
    return {**own, 'TERM': 'xterm', **more}


class Screen:
    """A program on a terminal of its own; pieces: (seconds since the start, bytes)."""

    def __init__(self, argv, columns=100, **env):
        self.begin, self.pieces, self.code = time.monotonic(), [], None
        self.pid, self.fd = pty.fork()
        if not self.pid:
            os.execve(argv[0], argv, environment(**env))
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack('HHHH', 40, columns, 0, 0))

    def read(self, seconds, until=None):
        """Read for so long, or until a pattern is on the screen, or until the program ends."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not (until and re.search(until, self.text)):
            if not select.select([self.fd], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self.fd, 1 << 16)
            except OSError:
                data = b''
            if not data:
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                return self
            self.pieces.append((time.monotonic() - self.begin, data))
        return self

    @property
    def text(self):
        return b''.join(data for _, data in self.pieces)

    def drawn(self):
        """The status lines, in their order."""
        return [part for part in self.text.split(OVER) if STATUS.search(part)]

    def left(self):
        """What a terminal of this width shows in the end."""
        lines = []
        for line in self.text.replace(b'\r\n', b'\n').split(b'\n'):
            lines.append(line.split(OVER)[-1])
        return b'\n'.join(lines)

    def close(self):
        if self.code is None:
            os.kill(self.pid, 2)
            self.read(30)
        if self.code is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class Terminal(unittest.TestCase):
    def start(self, argv, **env):
        screen = Screen(argv, **env)
        self.addCleanup(screen.close)
        return screen

    def starts_and_refreshes(self, argv):
        screen = self.start(argv + SLOW).read(60, rb'elapsed')
        self.assertLess(screen.pieces[0][0], STARTS_S, screen.text)
        self.assertTrue(screen.drawn(), screen.text)
        # The first step takes seconds. No line may count more than three seconds further.
        screen.read(60, rb'step 0/\d+  [^\r]*computing')
        before = len(screen.drawn())
        end = time.monotonic() + 2 * STARTS_S
        while len(screen.drawn()) < before + 2 and time.monotonic() < end:
            screen.read(0.2)
        self.assertGreaterEqual(len(screen.drawn()), before + 2, screen.text)
        clock = [int(minutes) * 60 + int(seconds) for minutes, seconds in
                 re.findall(rb'(\d+):(\d\d) elapsed', screen.text)]
        self.assertEqual(clock, sorted(clock), screen.text)
        self.assertTrue(all(b - a <= 3 for a, b in zip(clock, clock[1:])), clock)
        return screen

    def test_life_within_a_second(self):
        self.starts_and_refreshes([BERTH_TRAIN])

    def test_life_of_two_ranks_and_ctrl_c(self):
        screen = self.starts_and_refreshes([BERTH, 'train', '-n', '2'])
        self.assertIn(b'starting the ranks', screen.drawn()[0])
        os.write(screen.fd, b'\x03')
        screen.read(60)
        self.assertEqual(screen.code, 130, screen.text)
        # berth's text begins on a line of its own, and errors are red.
        self.assertIn(b'\r\033[Kberth: note: forwarded SIGINT', screen.text)
        self.assertIn(b'\n\033[1;31mberth: error:\033[0m stopped by Ctrl-C (SIGINT)', screen.text)
        self.assertNotIn(b'elapsed', screen.left())

    def test_nothing_is_left_of_the_status(self):
        for argv in [BERTH_TRAIN], [BERTH, 'train', '-n', '1']:
            for columns in 100, 20:
                screen = Screen(argv + FAST, columns=columns)
                self.addCleanup(screen.close)
                screen.read(60)
                self.assertEqual(screen.code, 0, screen.text)
                self.assertNotIn(b'elapsed', screen.left(), screen.text)
                lines = screen.left().rstrip(b'\n').split(b'\n')
                self.assertRegex(lines[-2], rb'^trained linear on ', screen.text)
                self.assertRegex(lines[-1], rb'^loss ', screen.text)
                self.assertTrue(any(line.startswith(b'epoch 1/1  val loss') for line in lines))

    def test_log_files_and_last_lines_lack_the_status(self):
        with tempfile.TemporaryDirectory() as path:
            screen = self.start([BERTH, 'train', '-n', '1', '--log-dir', path] + SLOW)
            screen.read(60, rb'step 0/\d+  [^\r]*computing').read(2.5)
            os.kill(screen.pid, 2)
            screen.read(60)
            with open(os.path.join(path, 'rank-0000.log'), 'rb') as file:
                log = file.read()
            self.assertIn(b'computing on', log)
            self.assertNotIn(b'elapsed', log)

    def test_the_status_is_no_output_that_hides_a_hang(self):
        screen = self.start([BERTH, 'train', '-n', '1', '--hang-timeout', '2s'] + SLOW
                            + ['--batch', '64']).read(90)
        self.assertIn(b'the job hangs: no step and no output for 2 s', screen.text)
        self.assertNotEqual(screen.code, 0)
        self.assertGreaterEqual(len(screen.drawn()), 3, screen.text)

    def test_errors_have_colour_on_a_terminal_only(self):
        wrong = [BERTH, 'train', 'linear', '--data', 'nothing:x']
        red = b'\033[1;31mberth: error:\033[0m '
        self.assertIn(red, self.start(wrong).read(30).text)
        for env in {'NO_COLOR': '1'}, {'TERM': 'dumb'}:
            text = self.start(wrong, **env).read(30).text
            self.assertIn(b'berth: error: ', text)
            self.assertNotIn(b'\033', text)
        done = subprocess.run(wrong, env=environment(), check=False, capture_output=True)
        self.assertEqual(done.returncode, 64)
        self.assertIn(b'berth: error: ', done.stderr)
        self.assertNotIn(b'\033', done.stderr)


class Pipe(unittest.TestCase):
    def lines(self, argv, quiet_ms, enough=None):
        """The status lines of a program; once they are enough, it is interrupted."""
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                   env=environment(BERTH_TEST_LINE_MS=str(quiet_ms)))
        late = threading.Timer(120, process.send_signal, [2])
        late.start()
        found = []
        with process.stderr:
            for line in process.stderr:
                self.assertNotRegex(line, r'[\x00-\x09\x0b-\x1f]')
                if ' elapsed, ' in line:
                    found.append(line.rstrip())
                    if enough and enough(found):
                        process.send_signal(2)
                        enough = None
        late.cancel()
        process.wait(30)
        return found

    def test_a_line_each_interval_if_nothing_else_was_written(self):
        for argv in [BERTH_TRAIN], [BERTH, 'train', '-n', '2']:
            lines = self.lines(argv + SLOW + ['--epochs', '4'], 400,
                               lambda found: len(found) > 3 and 'images/s' in found[-1])
            steps = [line for line in lines if line.startswith('epoch ')]
            self.assertIn('images/s', steps[-1], lines)
            for line in steps:
                self.assertRegex(line, r'^epoch \d+/4  step \d+/\d+  .*\d+:\d\d elapsed, [a-z ]+$')
            # A step that lasts long is not repeated.
            shown = [re.sub(r'\d+:\d\d elapsed.*', '', line) for line in steps]
            self.assertEqual(len(shown), len(set(shown)), lines)

    def test_no_line_within_the_first_minute(self):
        for quiet in 60000, 5, 'x', '', -1, 70000:  # the last five are invalid
            self.assertEqual(self.lines([BERTH_TRAIN] + FAST, quiet), [])


if __name__ == '__main__':
    BERTH, BERTH_TRAIN = (os.path.abspath(path) for path in sys.argv[1:3])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
