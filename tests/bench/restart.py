# SPDX-License-Identifier: BSD-3-Clause
"""The cost of a failure on two nodes of tests/cluster with two ranks each, measured from the kill:
    cluster.py -- python3 restart.py BERTH [RUNS]
1. A rank of a ResNet-18 is killed: until the next attempt has made its first step (aim: at most 5 s).
2. A node is lost, first its links, then all its processes: until all ranks on the other node and
   berth run have ended (aim: at most 10 s; 8 s of it are --node-timeout).
berth run is on the login node, in a job of its own for each run."""
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time

SHARE = os.environ['CLUSTER'] + '/share'
DEADLINE_S = 120


def on(node, *command):
    """Run it in the node without starting Python, whose start would be measured, too."""
    with open(os.environ['CLUSTER'] + f'/pid/{node}', encoding='ascii') as file:
        pid = file.read().strip()
    return subprocess.run(['nsenter', '-t', pid, '-a', '--wd=/', *command], stdout=subprocess.PIPE, text=True,
                          check=False).stdout


class Run:
    """berth in a job on n1 and n2; lines: what it prints, each with the time it came."""

    def __init__(self, *command):
        self.lines = []
        self.process = subprocess.Popen(
            ['salloc', '-Q', '--no-kill', '-N2', '-w', 'n1,n2', '--exclusive', *command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=dict(os.environ, OMP_NUM_THREADS='1', OMPI_ALLOW_RUN_AS_ROOT='1', OMPI_ALLOW_RUN_AS_ROOT_CONFIRM='1'))
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def seen(self, pattern, since=0):
        """The time of the first line since then that matches."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for when, line in list(self.lines):
                if when > since and re.search(pattern, line):
                    return when
            time.sleep(0.005)
        self.process.kill()
        sys.exit(f'restart.py: no {pattern} within {DEADLINE_S} s:\n' + ''.join(line for _, line in self.lines))

    def ended(self):
        code = self.process.wait(DEADLINE_S)
        self.reader.join()
        return code


def killed_rank(berth):
    ckpt = f'{SHARE}/bench.ckpt'
    shutil.rmtree(ckpt, ignore_errors=True)
    run = Run(berth, 'train', 'resnet18', '--stem', 'cifar', '--ranks-per-node', '2', '--max-restarts', '1', '--ckpt',
              ckpt, '--data', 'synthetic:3x32x32,n=4096,classes=10', '--batch', '4', '--steps', '40', '--no-eval',
              '--log-every', '1', '--save-every', '5')
    run.seen(' step 8/')
    begun = time.monotonic()
    on('n2', 'pkill', '-KILL', '-o', '-x', 'berth-train')
    again = run.seen('restarting, ', begun)
    step = run.seen(r' step \d+/', again)
    if run.ended():
        sys.exit('restart.py: the training failed:\n' + ''.join(line for _, line in run.lines))
    return step - begun


def lost_node(berth):
    run = Run(berth, 'run', '--ranks-per-node', '2', '--', 'sh', '-c', 'echo up; exec sleep 77')
    for _ in range(4):
        run.seen('^up')
    while sum(line == 'up\n' for _, line in list(run.lines)) < 4:
        time.sleep(0.01)
    begun = time.monotonic()
    on('n2', 'sh', '-c', 'ip link set eth0 down; ip link set hsn0 down; kill -KILL -1')
    code = run.ended()
    taken = time.monotonic() - begun
    left = on('n1', 'pgrep', '-x', 'sleep')
    if code != 76 or left:
        sys.exit(f'restart.py: code {code}, left: {left!r}\n' + ''.join(line for _, line in run.lines))
    on('n2', 'sh', '-c', 'ip link set eth0 up; ip link set hsn0 up; pgrep -x slurmd >/dev/null || slurmd -N n2')
    deadline = time.monotonic() + DEADLINE_S
    while subprocess.run(['sinfo', '-h', '-p', 'all', '-n', 'n2', '-o', '%T'], stdout=subprocess.PIPE, text=True,
                         check=True).stdout.strip() not in ('idle', 'mixed'):
        subprocess.run(['scontrol', 'update', 'nodename=n2', 'state=resume'], stderr=subprocess.DEVNULL, check=False)
        if time.monotonic() > deadline:
            sys.exit('restart.py: n2 does not come back')
        time.sleep(0.5)
    return taken


def say(what, aim, times):
    print(f'{what}: {statistics.median(times):.2f} s (fastest {min(times):.2f}, slowest {max(times):.2f}, {len(times)} '
          f'runs; aim: at most {aim} s)', flush=True)


def main():
    berth, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    say('killed rank to the next step, ResNet-18 on 2 nodes x 2 ranks', 5, [killed_rank(berth) for _ in range(runs)])
    say('lost node to the end of all processes', 10, [lost_node(berth) for _ in range(max(1, runs // 2))])


main()
