#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""cluster.py leaves nothing behind, neither after its end nor after SIGKILL at several moments.

Compares this machine before and after: processes, mounts, network interfaces, /run, /tmp, device files
and cgroups. Only the cluster's names count, since others may use the machine meanwhile.
"""
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CLUSTER = [sys.executable, os.path.join(HERE, 'cluster.py'), '--nodes', '2', '--']
MARKS = ('berth-cluster', 'cluster.py', 'slurmd', 'slurmctld', 'slurmstepd')


def processes():
    found = {}
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/cmdline', 'rb') as file:
                line = file.read().replace(b'\0', b' ').decode(errors='replace')
            with open(f'/proc/{pid}/environ', 'rb') as file:
                environ = file.read()
        except OSError:
            continue
        if int(pid) != os.getpid() and (TOKEN.encode() in environ):
            found[pid] = line
    return found


def seen():
    with open('/proc/self/mounts', encoding='utf-8') as file:
        mounts = {line for line in file if any(mark in line for mark in MARKS)}
    folders = {f'{top}/{name}' for top in ('/run', '/tmp', '/dev', '/sys/fs/cgroup')
               for name in (os.listdir(top) if os.path.isdir(top) else [])
               if any(mark in name for mark in MARKS + ('nvidia-fake',))}
    with open('/proc/net/dev', encoding='utf-8') as file:
        nets = {line for line in file if line.strip().startswith(('mgmt', 'fast', 'hsn'))}
    return {'mounts': mounts, 'files': folders, 'interfaces': nets}


def within(limit_s, true):
    """Wait until true() holds, at most limit_s times BERTH_TEST_SLOW; return whether it does."""
    deadline = time.monotonic() + limit_s * float(os.environ.get('BERTH_TEST_SLOW', 1))
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def job_runs():
    return any(os.path.basename(line.split(' ')[0]) == 'sleep' for line in processes().values())


def left_after(what, before):
    within(30, lambda: not processes())
    faults = [f'{what}: process {pid} remains: {line}' for pid, line in processes().items()]
    after = seen()
    for kind, names in after.items():
        faults += [f'{what}: {kind}: {name} remains' for name in names - before[kind]]
    return faults


def main():
    environ = dict(os.environ, BERTH_TEST_TOKEN=TOKEN)
    before = seen()
    first = subprocess.run(CLUSTER + ['sh', '-c', 'echo "$SLURM_CONF"; hostname; exit 3'],
                           env=environ, text=True, stdout=subprocess.PIPE, check=False)
    if first.returncode == 77:
        return 77
    faults = left_after('after the end', before)
    if first.returncode != 3 or first.stdout.split()[1:] != ['login']:
        faults.append(f'the command: code {first.returncode}, {first.stdout!r}')
    for delay_s in (0.05, 0.4, 0.8, None):  # None: when the job runs
        child = subprocess.Popen(CLUSTER + ['srun', '-N2', 'sleep', '60'], env=environ,
                                 stderr=subprocess.DEVNULL)
        if delay_s:
            time.sleep(delay_s)
        elif not within(60, job_runs):
            faults.append('the job did not start, so the test proves nothing')
        child.send_signal(signal.SIGKILL)
        child.wait()
        faults += left_after(f'killed after {delay_s} s' if delay_s else 'killed with a job', before)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


TOKEN = f'berth-clean-{os.getpid()}'

if __name__ == '__main__':
    sys.exit(main())
