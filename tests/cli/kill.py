#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""SIGKILL at random moments: kill.py BERTH HARD_RANK [--kills N] [--seed S]

Each trial starts `berth run` with ranks that leave children behind, some in their own sessions and some
forked twice. It kills the agent, its guardian, a rank, `berth run` itself, or `berth run` and all agents
at the same instant. This happens at the start, while the ranks meet in fences, or while they run. Then
within LIMIT seconds no process and no directory of the trial may be left, and `berth run`, if it is
alive, must name the cause. Processes are found by a variable in /proc/*/environ, as former descendants,
and as orphans that became this program's children.
"""
import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

LIMIT = 10.0
TARGETS = ('run', 'agent', 'rank', 'guard', 'run and agent')
PHASES = ('start', 'fence', 'run')
PR_SET_CHILD_SUBREAPER = 36


class Missed(Exception):
    """The job had ended, or there was no process to kill."""


def stat(pid):
    """(parent, state, start) of a process, or None if it no longer exists."""
    try:
        with open(f'/proc/{pid}/stat', 'rb') as file:
            fields = file.read().rsplit(b')', 1)[1].split()
    except OSError:
        return None
    return int(fields[1]), fields[0].decode(), int(fields[19])


def session(pid):
    try:
        return os.getsid(pid)
    except OSError:
        return None


def table():
    return {int(name): seen for name in os.listdir('/proc') if name.isdigit()
            for seen in [stat(name)] if seen}


def children(pid, processes=None):
    processes = processes or table()
    return [child for child, (parent, state, _) in processes.items()
            if parent == pid and state not in 'ZX']


def is_server(pid):
    try:
        with open(f'/proc/{pid}/comm', encoding='utf-8') as file:
            return file.read() == 'berth-pmix\n'
    except OSError:
        return False


def environment(pid):
    try:
        with open(f'/proc/{pid}/environ', 'rb') as file:
            return file.read().split(b'\0')
    except OSError:
        return []


class Trial:
    def __init__(self, number, options):
        self.number = number
        self.options = options
        self.random = random.Random(f'{options.seed}/{number}')
        self.target = TARGETS[number % len(TARGETS)]
        self.phase = PHASES[number // len(TARGETS) % len(PHASES)]
        self.ranks = self.random.randint(1, 3)
        self.stubborn = int(self.random.random() < 0.25)
        self.marker = f'BERTH_KILL_TEST={os.getpid()}.{number}.{options.seed}'
        self.folder = tempfile.mkdtemp(prefix='berth-kill-')
        self.lines = {'fence': 0, 'run': 0}
        self.heard = threading.Condition()
        self.seen = {}       # (pid, start): command, of all processes that ever descended from berth run
        self.errors = ''

    def describe(self):
        return (f'trial {self.number}: kill {self.target} in {self.phase}, {self.ranks} ranks'
                f'{", stubborn" if self.stubborn else ""}')

    def listen(self):
        for line in self.process.stdout:
            word = line.decode(errors='replace').split()[-1:]
            with self.heard:
                if word and word[0] in self.lines:
                    self.lines[word[0]] += 1
                    self.heard.notify_all()
        with self.heard:
            self.lines['end'] = 1
            self.heard.notify_all()

    def start(self):
        name, value = self.marker.split('=')
        env = dict(os.environ, TMPDIR=self.folder, **{name: value})
        fences = 400 if self.phase == 'fence' else 3
        self.stderr = open(os.path.join(self.folder, 'stderr'), 'w+b')
        self.report = os.path.join(self.folder, 'report.json')
        self.process = subprocess.Popen(
            [self.options.berth, 'run', '-n', str(self.ranks), '--report', self.report]
            + self.options.run + ['--', self.options.rank, str(fences), '20000', str(self.stubborn)],
            env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.stderr)
        self.thread = threading.Thread(target=self.listen)
        self.thread.start()

    def note_descendants(self):
        processes = table()
        ours = {self.process.pid}
        grown = True
        while grown:
            more = {pid for pid, seen in processes.items() if seen[0] in ours} - ours
            ours |= more
            grown = bool(more)
        for pid in ours:
            if pid in processes:
                self.seen.setdefault((pid, processes[pid][2]), pid)
        return processes

    def victims(self):
        processes = self.note_descendants()
        if self.target == 'run':
            return [self.process.pid]
        guards = children(self.process.pid, processes)
        if self.target == 'guard':
            return guards
        agents = [agent for guard in guards for agent in children(guard, processes)]
        if self.target in ('agent', 'run and agent'):
            return agents
        # Neither orphans that the agent has inherited from ranks (they are in other sessions), nor the
        # agent's PMIx server.
        return [rank for agent in agents for rank in children(agent, processes)
                if session(rank) in (rank, agent) and not is_server(rank)]

    def wait_for_phase(self):
        if self.phase == 'start':
            if self.target == 'run':
                time.sleep(self.random.uniform(0, self.options.start_s))
            return
        with self.heard:
            if not self.heard.wait_for(
                    lambda: self.lines[self.phase] >= self.ranks or 'end' in self.lines, 60):
                raise AssertionError(f'no rank printed "{self.phase}" within 60 s')
            if 'end' in self.lines:
                raise Missed
        time.sleep(self.random.uniform(0, 0.2))

    def kill(self):
        self.wait_for_phase()
        deadline = time.monotonic() + 60
        while not (victims := self.victims()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Missed
            time.sleep(0.003)
        if self.phase == 'start' and self.target != 'run':
            time.sleep(self.random.uniform(0.002, self.options.start_s))
            # A server that was just forked has set its name by now.
            victims = [pid for pid in victims
                       if stat(pid) and stat(pid)[1] not in 'ZX' and not is_server(pid)]
            if not victims:
                raise Missed
        self.victim = self.random.choice(sorted(victims))
        self.victim_rank = None
        for entry in environment(self.victim):
            # Before its exec a rank still has the agent's environment.
            if entry.startswith(b'RANK=') and self.target == 'rank':
                self.victim_rank = int(entry[5:])
        self.note_descendants()
        if self.process.poll() is not None:
            raise Missed
        both = [self.process.pid, *victims] if self.target == 'run and agent' else [self.victim]
        for victim in self.random.sample(both, len(both)):
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has ended meanwhile
        self.killed_at = time.monotonic()

    def survivors(self):
        left = {}
        marker = self.marker.encode()
        for pid, (_, state, start) in table().items():
            if state in 'ZX' or pid == os.getpid():
                continue
            if (pid, start) in self.seen or marker in environment(pid):
                left[pid] = start
        return left

    def watch_the_end(self):
        """Wait until no process is left, and return the seconds. Also note processes that appear meanwhile."""
        while True:
            self.process.poll()
            left = self.survivors()
            took = time.monotonic() - self.killed_at
            if not left:
                return took
            if took > LIMIT:
                names = ', '.join(f'{pid} ({" ".join(command(pid))[:80]})' for pid in left)
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                raise AssertionError(f'{len(left)} processes survive {LIMIT:g} s: {names}')
            time.sleep(0.05)

    def check_message(self):
        code = self.process.wait(timeout=10)
        self.thread.join(10)
        self.stderr.seek(0)
        self.errors = self.stderr.read().decode(errors='replace')
        host = self.options.host
        if self.target in ('run', 'run and agent'):
            assert code == -signal.SIGKILL, f'berth run exited with code {code}, expected -9'
            return
        with open(self.report, encoding='utf-8') as file:
            report = json.load(file)
        if self.target == 'rank':
            # On a busy machine a server that was just forked may not have set its name yet.
            if self.phase == 'start' and self.victim_rank is None and 'the PMIx server process has ended' in self.errors:
                raise Missed
            number = r'\d+' if self.victim_rank is None else str(self.victim_rank)
            expected = rf'rank {number} on {host}.* signal 9'
            assert code == 128 + signal.SIGKILL, f'exit code {code}, expected 137'
            assert report['by'] == 'program' and report['code'] == 137, report
            assert report['signal'] == 9, report
            assert self.victim_rank in (None, report['rank']), report
        else:
            expected = rf'agent.*signal 9'
            assert code == 76, f'exit code {code}, expected 76'
            assert report['by'] == 'berth' and report['code'] == 76, report
            assert re.search(host, report['first_cause'] + str(report['node'])), report
        assert re.search(expected, report['first_cause']), report
        assert re.search(expected, self.errors), f'stderr does not match /{expected}/'

    def check_folder(self):
        left = [name for name in os.listdir(self.folder) if name not in ('stderr', 'report.json')]
        # Before an agent has connected, only its guardian knows its directory.
        assert not left or (self.target, self.phase) == ('guard', 'start'), f'{left} left in TMPDIR'
        return len(left)

    def close(self):
        # An aborted trial: let berth run end it, since it knows processes that this program does not.
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                pass
        for pid in self.survivors():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        self.process.wait()
        self.thread.join(10)
        self.process.stdout.close()
        self.stderr.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def command(pid):
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as file:
            return file.read().decode(errors='replace').split('\0')
    except OSError:
        return ['?']


def measure_start(options):
    """Seconds from the start of berth run until its ranks have met: the length of the phase "start"."""
    slowest = 0.0
    for _ in range(3):
        begun = time.monotonic()
        subprocess.run([options.berth, 'run', '-n', '3'] + options.run
                       + ['--', options.rank, '1', '0', '0'], check=True, timeout=120,
                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)
        slowest = max(slowest, time.monotonic() - begun)
    return slowest


class Driver:
    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.next = 0
        self.done = {(target, phase): 0 for target in TARGETS for phase in PHASES}
        self.missed = self.failed = self.files = 0
        self.slowest = 0.0

    def one(self, number):
        for attempt in range(20):
            trial = Trial(number, self.options)
            trial.random.seed(f'{self.options.seed}/{number}/{attempt}')
            try:
                trial.start()
                trial.kill()
                took = trial.watch_the_end()
                trial.check_message()
                files = trial.check_folder()
            except Missed:
                with self.lock:
                    self.missed += 1
                trial.close()
                continue
            except (AssertionError, OSError, ValueError, KeyError,
                    subprocess.TimeoutExpired) as error:
                with self.lock:
                    self.failed += 1
                    trial.stderr.seek(0)
                    said = trial.stderr.read().decode(errors='replace')
                    print(f'FAILED {trial.describe()}: {error!r}\n--- stderr\n{said}---',
                          flush=True)
                trial.close()
                return
            trial.close()
            with self.lock:
                self.done[trial.target, trial.phase] += 1
                self.files += files
                self.slowest = max(self.slowest, took)
            return
        with self.lock:
            self.failed += 1
            print(f'FAILED {trial.describe()}: 20 times there was no process to kill', flush=True)

    def work(self):
        while True:
            with self.lock:
                number = self.next
                self.next += 1
            if number >= self.options.kills:
                return
            self.one(number)

    def run(self):
        workers = [threading.Thread(target=self.work) for _ in range(self.options.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        # This program is the subreaper, so orphans became its children.
        strays = children(os.getpid())
        for pid in strays:
            print(f'FAILED: {pid} ({" ".join(command(pid))[:80]}) was left over', flush=True)
            os.kill(pid, signal.SIGKILL)
        self.failed += len(strays)
        for target in TARGETS:
            print(f'{target:5} killed: ' + ', '.join(
                f'{self.done[target, phase]} in {phase}' for phase in PHASES))
        print(f'{sum(self.done.values())} kills, {self.failed} failed, {self.missed} came too late '
              f'and were repeated; the slowest end took {self.slowest:.1f} s of {LIMIT:g} s; '
              f'a start was up to {self.options.start_s:.2f} s; '
              f'{self.files} files left in TMPDIR; seed {self.options.seed}')
        return 1 if self.failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('berth')
    parser.add_argument('rank', help='the program hard-rank')
    parser.add_argument('--kills', type=int, default=18)
    parser.add_argument('--jobs', type=int, default=2, help='number of trials at a time')
    parser.add_argument('--seed', type=int, default=None)
    parser.add_argument('--host', default=re.escape(os.uname().nodename),
                        help='pattern of the host names that the reported cause may contain')
    parser.add_argument('--run', action='append', default=[], help='an option for berth run')
    options = parser.parse_args()
    if options.seed is None:
        options.seed = int(os.environ.get('BERTH_TEST_SEED') or random.SystemRandom().randrange(10**6))
    print(f'seed {options.seed}', flush=True)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    options.start_s = measure_start(options)
    return Driver(options).run()


if __name__ == '__main__':
    sys.exit(main())
