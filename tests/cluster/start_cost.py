#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""What a start of `berth run` costs, counted, so that a busy machine hides nothing:
    start_cost.py BERTH FORKS RECORD
RECORD is docs/decisions/0007-cost-of-a-start.md; its table has the most that each launcher may use. The same start
(2 nodes x 2 ranks; with fork 2 ranks) runs under each launcher in the cluster of cluster.py, under strace. Counted are

    programs  programs that berth executes, and berth itself each time
    objects   different shared objects that berth's processes open, without libcap, which libudev needs on Ubuntu only;
              none may be of MPI, CUDA, NCCL, cuDNN or oneDNN
    files     different other files that they open (names without numbers; below /sys and /proc only the last part,
              because machines differ)
    scans     how often they list all processes (/proc)
    messages  messages that the controller sends and receives, without heartbeats
    cpu       CPU time of `berth run -n 2 -- true`, in that of FORKS (forks.c); least of several runs each

BERTH_TEST_COUNTS=yes prints what was counted. Exit codes: 0 within the table; 1 not; 77 something is missing."""
import collections
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = ['programs', 'objects', 'files', 'scans', 'messages']
FOREIGN = re.compile(r'lib(mpi|open-rte|open-pal|cuda|cudart|nccl|cudnn|cublas|dnnl|nvrtc)')
CALLS = 'execve,openat,clone,clone3,fork,vfork,exit_group'
CLONE = re.compile(r'(?:clone3?|v?fork|<\.\.\. (?:clone3?|v?fork) resumed).*\) += (\d+)(?: /\* (\d+) in strace)?')
SMALL = 8  # CPUs: with more, hwloc reads more files, and the CPU time is no longer compared


def skip(reason):
    print(f'start_cost: skipped: {reason}')
    sys.exit(77)


# ---- inside the cluster: one start under each launcher ----

def inside(berth, bats_env):
    share = os.environ['CLUSTER'] + '/share'
    lines = {
        'fork': f'{berth} run -n 2 -- true',
        'loopback': f'{berth} run --launcher loopback -N 2 -n 4 -- true',
        'srun': f'salloc -Q -N2 -w n1,n2 --exclusive {berth} run --launcher srun -n 4 -- true',
        'tm': f"pbs_job cost 2:mpiprocs=2 <<<'exec 2>{share}/tm.log; env -u BERTH_TOPOLOGY BERTH_LOG=debug "
              f"{berth} run --launcher tm -n 4 -- true'; cat {share}/tm.log >&2; [ $status = 0 ]",
        'ssh': f'PATH=$CLUSTER/share/ssh/bin:$PATH {berth} run --launcher ssh --hosts n1,n2 --ranks-per-node 2 -- true',
    }
    begin = {'tm': 'python3 "$HERE/pbs.py" begin n1 n2 3>&-', 'ssh': 'ssh_begin'}
    environment = dict(os.environ, BERTH_LOG='debug', SOURCE=os.path.dirname(os.path.dirname(HERE)), BERTH=berth,
                       BATS_TEST_DIRNAME=HERE, PROBE='', BUILD='')
    environment.pop('BERTH_TOPOLOGY')  # a file needs libxml2
    for name, line in lines.items():
        if name == 'ssh' and not os.path.exists('/usr/sbin/sshd'):
            continue
        script = (f'load() {{ :; }}; . {HERE}/../support/berth.bash; . {HERE}/support.bash; cd "$SHARE"\n'
                  f'{begin.get(name, ":")} >/dev/null 2>&1\n'
                  + ('' if name == 'srun' else 'unset SLURM_CONF\n')
                  + line)
        with open(f'{bats_env}/{name}.log', 'wb') as log:
            done = subprocess.run(['bash', '-c', script], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                  stderr=log, timeout=120, check=False)
        if done.returncode:
            with open(f'{bats_env}/{name}.log', encoding='utf-8', errors='replace') as log:
                sys.exit(f'start_cost: {name}: exit code {done.returncode}:\n{log.read()}')


# ---- the trace ----

class Trace:
    """strace's lines, one process at a time: which ones belong to a start, and what they did."""

    def __init__(self, berth, parent):
        self.berth = berth
        self.parent = parent  # of each process that has not done anything yet
        self.program = {}  # pid -> the path that it executed last
        self.ours = set()  # pids that run berth, or an sh that runs it
        self.root = None
        self.starts = []
        self.pending = {}

    def executed(self, pid, path, arguments):
        if path == self.berth and '"run"' in arguments and self.root is None:
            self.root = pid
            self.starts.append({'programs': [], 'objects': set(), 'files': set(), 'scans': 0})
        counted = self.root is not None and (pid in self.ours or self.berth in arguments)
        if counted:
            self.starts[-1]['programs'].append(os.path.basename(path))
        self.ours.discard(pid)
        # What a login shell runs before berth is the user's own.
        if counted and (path == self.berth or self.berth in arguments and os.path.basename(path) == 'sh'):
            self.ours.add(pid)
        self.program[pid] = path

    def opened(self, pid, path):
        if self.root is None or pid not in self.ours or self.program.get(pid) != self.berth:
            return
        start = self.starts[-1]
        if path == '/proc':
            start['scans'] += 1
        elif re.search(r'\.so(\.\d+)*$', path):
            if not os.path.basename(path).startswith('libcap.'):
                start['objects'].add(os.path.basename(path))
        else:
            if path.startswith(('/sys/', '/proc/')):
                path = '/'.join(path.split('/')[:2]) + '/.../' + os.path.basename(path.rstrip('/'))
            path = re.sub(r'berth-[A-Za-z0-9]{6}\b', 'berth-X', path)
            path = re.sub(r'[0-9a-f]{8}-[0-9a-f-]{27}', 'ID', path)
            start['files'].add(re.sub(r'\d+', 'N', path))

    def line(self, pid, text):
        if pid in self.parent:  # its first line
            parent = self.parent.pop(pid)
            self.program[pid] = self.program.get(parent)
            if parent in self.ours:
                self.ours.add(pid)
        if text.startswith('execve(') and (text.endswith(' = 0') or text.endswith('<unfinished ...>')):
            path, arguments = re.match(r'execve\("([^"]*)", (\[.*?\](?=, 0x)|.*)', text).groups()
            if text.endswith(' = 0'):
                self.executed(pid, path, arguments)
            else:
                self.pending[pid] = (path, arguments)
        elif text.startswith('<... execve resumed') and text.endswith(' = 0'):
            self.executed(pid, *self.pending.pop(pid))
        elif text.startswith('openat('):
            path = re.match(r'openat\([^,]*, "([^"]*)"', text)[1]
            if text.endswith('<unfinished ...>'):
                self.pending[pid] = path
            elif ' = -1 ' not in text:
                self.opened(pid, path)
        elif text.startswith('<... openat resumed') and ' = -1 ' not in text:
            self.opened(pid, self.pending.pop(pid))
        elif text.startswith('exit_group(') and pid == self.root:
            self.root = None
            self.ours.clear()


def read_trace(path, berth):
    with open(path, encoding='utf-8', errors='replace') as file:
        lines = [(int(pid), text.strip()) for pid, _, text in (line.rstrip('\n').partition(' ') for line in file)]
    parent = {}  # a child's first line may stand before the line of the call that made it
    for pid, text in lines:
        made = CLONE.match(text)
        if made:
            parent[int(made[2] or made[1])] = pid
    trace = Trace(berth, parent)
    for pid, text in lines:
        trace.line(pid, text)
    return trace.starts


def messages(path):
    with open(path, encoding='utf-8', errors='replace') as file:
        lines = [line.split() for line in file if re.match(r'berth: \S+Z ', line)]
    controller = next(words[2] for words in lines if words[4] == 'controller:')
    return sum(words[2] == controller and words[4] == 'overlay:' and words[5] in ('sent', 'received')
               and words[6] != 'HEARTBEAT,' for words in lines)


# ---- CPU time ----

def cpu(start):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def spawn(*arguments):
    pid = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, fd, '/dev/null', os.O_RDWR, 0) for fd in range(3)])
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f'start_cost: {arguments} ended with status {status}')


def cpu_ratio(berth, forks, allowed):
    """Of the least of each, since other processes only add to it: on a busy machine that takes more rounds."""
    true = shutil.which('true')
    ours, theirs = [], []
    for count in range(60):
        ours.append(cpu(lambda: spawn(berth, 'run', '-n', '2', '--', true)))
        theirs.append(cpu(lambda: spawn(forks)))
        if count >= 8 and min(ours) <= allowed * min(theirs):
            break
    return min(ours) / min(theirs)


# ---- the table ----

def read_table(record):
    rows = {}
    with open(record, encoding='utf-8') as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip('|').split('|')]
            if line.startswith('| ') and cells[0] in ('fork', 'loopback', 'srun', 'tm', 'ssh', 'cpu'):
                rows[cells[0]] = [float(cell) for cell in cells[1:] if cell]
    return rows


def main():
    if len(sys.argv) == 4 and sys.argv[1] == 'inside':
        inside(*sys.argv[2:])
        return
    berth, forks, record = os.path.realpath(sys.argv[1]), *sys.argv[2:]
    allowed = read_table(record)
    failed = []
    if os.cpu_count() <= SMALL:
        ratio = cpu_ratio(berth, forks, allowed['cpu'][0])
        print(f'cpu: {ratio:.2f} (at most {allowed["cpu"][0]})')
        if ratio > allowed['cpu'][0]:
            failed.append('cpu')
    if not shutil.which('strace') or subprocess.run(['strace', '-qq', '-e', 'trace=none', 'true'], check=False).returncode:
        skip('strace is not installed, or not allowed here')
    with tempfile.TemporaryDirectory(prefix='start-cost-', dir='/var/tmp') as place:
        command = ['strace', '-f', '--seccomp-bpf', '--decode-pids=pidns', '-qq', '-s', '4096', '-e', f'trace={CALLS}',
                   '-o', f'{place}/trace', sys.executable, f'{HERE}/cluster.py', '--nodes', '2', '--',
                   sys.executable, os.path.abspath(__file__), 'inside', berth, place]
        code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        if code:
            sys.exit(code)
        starts = read_trace(f'{place}/trace', berth)
        names = [name for name in ('fork', 'loopback', 'srun', 'tm', 'ssh') if os.path.exists(f'{place}/{name}.log')]
        if len(starts) != len(names):
            sys.exit(f'start_cost: {len(starts)} starts were seen, of {len(names)}')
        for name, start in zip(names, starts):
            start['messages'] = messages(f'{place}/{name}.log')
    for name, start in zip(names, starts):
        counts = [value if isinstance(value, int) else len(value) for value in (start[column] for column in COLUMNS)]
        print(f'{name}: ' + ', '.join(f'{count} {column} (at most {most:g})'
                                      for count, column, most in zip(counts, COLUMNS, allowed[name])))
        foreign = sorted(filter(FOREIGN.match, start['objects']))
        over = [column for count, column, most in zip(counts, COLUMNS, allowed[name]) if count > most]
        if foreign:
            print(f'{name}: loads {" ".join(foreign)}')
        if foreign or over:
            failed.append(name)
        if over or os.environ.get('BERTH_TEST_COUNTS'):
            print('  programs:', dict(collections.Counter(start['programs'])))
            print('  objects:', *sorted(start['objects']))
            print('  files:', *sorted(start['files']))
    if failed:
        sys.exit(f'start_cost: more than {record} allows: {", ".join(failed)}')


main()
