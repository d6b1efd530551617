#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A Slurm cluster on this machine that exists while a command runs in it.

    cluster.py [--nodes N] [--keep DIR] -- COMMAND [ARGUMENTS]

COMMAND runs on the login node. Each of the nodes n1, n2, ... and login has its own network, UTS, mount
and IPC namespace; the nodes also have their own PID namespace. slurmctld runs on login, and a slurmd on
each node.

    login  mgmt 10.1.0.1                             (the management network only)
    n1     mgmt 10.1.0.11 first, hsn0 10.9.0.11 second, four GPUs, four CPUs
    n2     mgmt 10.1.0.12 first, hsn0 10.9.0.12 second, four GPUs, two CPUs
    ...

COMMAND gets these environment variables:
    CLUSTER         a directory that all nodes share; CLUSTER/share is for the tests' files
    SLURM_CONF      the configuration of this cluster
    BERTH_TOPOLOGY  a machine with four H200 and Slingshot (topology.py); each node has its own file,
                    CLUSTER/NODE/topology.xml
`cluster.py on NODE COMMAND...` runs a command on a node as root.

Nothing outside changes. Everything happens in namespaces below one PID namespace, on a tmpfs that only
they see. All of it ends with this program, even if it is killed: PDEATHSIG kills the first process of the
PID namespace, and the kernel then ends the namespace. Without root or Slurm the exit code is 77, and the
reason is on stderr; otherwise it is COMMAND's exit code.
"""
import argparse
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time

import topology

ROOT = '/run/berth-cluster'
START_S = 60
NEEDED = ['slurmctld', 'slurmd', 'munged', 'sbatch', 'srun', 'sinfo', 'ip', 'unshare', 'nsenter',
          'mount', 'bash']
NAMESPACES = ['--net', '--uts', '--mount', '--ipc', '--pid', '--fork', '--kill-child=SIGKILL',
              '--mount-proc', '--propagation', 'private']
GPUS = 4
# The configuration of this machine's own PBS, NCCL and berth, which the nodes must not see.
HIDDEN = ['/etc/pbs.conf', '/opt/pbs', '/etc/nccl.conf', '/etc/berth']

SLURM_CONF = """\
ClusterName=berth
SlurmctldHost=login(10.1.0.1)
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={root}/state
SlurmctldPidFile={root}/slurmctld.pid
SlurmctldLogFile={root}/log/slurmctld
SlurmdPidFile={root}/%n/slurmd.pid
SlurmdSpoolDir={root}/%n/spool
SlurmdLogFile={root}/log/slurmd-%n
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
ReturnToService=2
SlurmdTimeout=20
SrunPortRange=7200-7999
KillWait=5
MaxArraySize=100
DefMemPerCPU=100
RebootProgram=/bin/true
{nodes}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PartitionName=all Nodes=ALL Default=YES MaxTime=60 DefaultTime=10 State=UP PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=60 DefaultTime=10 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=25
PartitionName=urgent Nodes=ALL MaxTime=60 DefaultTime=10 State=UP PriorityTier=10 PreemptMode=OFF
"""


def node_names(count):
    return [f'n{i}' for i in range(1, count + 1)]


def cpus_of(name):
    return 2 if name == 'n2' else 4


def run(*argv, **more):
    subprocess.run(argv, check=True, **more)


def die_with_parent():
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() == 1 and os.getpid() != 1:
        os._exit(1)


def skip(reason):
    print(f'cluster: skipped: {reason}', file=sys.stderr)
    sys.exit(77)


# ---- outside ----

def check_possible():
    if os.geteuid() != 0:
        skip('a Slurm of several nodes on one machine needs root (namespaces, device files)')
    path = os.environ.get('PATH', '') + ':/usr/sbin:/sbin'
    missing = [name for name in NEEDED if not shutil.which(name, path=path)]
    if missing:
        skip(f'missing: {" ".join(missing)} (Debian: slurmctld slurmd slurm-client munge iproute2)')
    os.environ['PATH'] = path
    tried = subprocess.run(['unshare', *NAMESPACES, 'true'], stderr=subprocess.PIPE, text=True)
    if tried.returncode:
        skip(f'cannot create namespaces: {tried.stderr.strip()}')


def start_inside(argv):
    """Start the first process of the cluster. When it ends, everything in the cluster ends."""
    child = subprocess.Popen(['unshare', *NAMESPACES, sys.executable, os.path.abspath(__file__),
                              'inside', *argv], preexec_fn=die_with_parent)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: child.kill())
    code = child.wait()
    return code if code >= 0 else 128 - code


# ---- inside: the guardian ----

def visible_below_tmp():
    """Directories below /tmp that must stay visible, although each node has its own /tmp."""
    names = {os.environ.get(name) for name in ('SOURCE', 'BUILD')} - {None, ''}
    names.add(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..'))
    return {os.path.realpath(name): os.open(name, os.O_PATH) for name in names
            if os.path.realpath(name).startswith('/tmp/')}


def private_tmp(kept):
    # Open MPI names its shared files after the host, and concurrent clusters have equal host names.
    for folder in ('/tmp', '/dev/shm'):
        run('mount', '-t', 'tmpfs', '-o', 'mode=1777', 'tmp', folder)
    for name, fd in kept.items():
        os.makedirs(name, exist_ok=True)
        run('mount', '--no-canonicalize', '--bind', f'/proc/self/fd/{fd}', name, pass_fds=[fd])


def write(path, text, mode=0o644):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)
    os.chmod(path, mode)


def address(name, net):
    return f'10.{net}.0.{1 if name == "login" else 10 + int(name[1:])}'


def write_files(names):
    for folder in ['share', 'state', 'log', 'munge', 'dev', 'pid', 'login'] + names:
        os.makedirs(f'{ROOT}/{folder}')
    os.chmod(f'{ROOT}/share', 0o1777)
    for name in names:
        os.makedirs(f'{ROOT}/{name}/spool')
    nodes = [f'NodeName={n} NodeAddr={address(n, 1)} CPUs={cpus_of(n)} RealMemory=1000 '
             f'Gres=gpu:h200:{GPUS} State=UNKNOWN' for n in names]
    write(f'{ROOT}/slurm.conf', SLURM_CONF.format(root=ROOT, nodes='\n'.join(nodes)))
    write(f'{ROOT}/gres.conf', f'Name=gpu Type=h200 File={ROOT}/dev/nvidia[0-{GPUS - 1}]\n')
    write(f'{ROOT}/cgroup.conf', 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n')
    hosts = ['127.0.0.1 localhost'] + [f'{address(n, 1)} {n}' for n in ['login'] + names]
    write(f'{ROOT}/hosts', '\n'.join(hosts) + '\n')
    write(f'{ROOT}/nsswitch.conf', 'passwd: files\ngroup: files\nhosts: files\n')
    with open(f'{ROOT}/munge/key', 'wb') as key:
        key.write(os.urandom(128))
    os.chmod(f'{ROOT}/munge/key', 0o600)
    # The topology of a node; each node sees its own file under this name.
    write(f'{ROOT}/topology.xml', '')
    write(f'{ROOT}/empty', '')
    for name in names:
        topology.write(f'{ROOT}/{name}', 'topology')
    topology.write(f'{ROOT}/login', 'topology', fast=None, gpus=False)
    for i in range(GPUS):
        os.mknod(f'{ROOT}/dev/nvidia{i}', 0o20666, os.makedev(195, i))


def spawn(log, *argv, **more):
    with open(f'{ROOT}/log/{log}', 'ab') as file:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **more)


def start_node(name):
    """Start the first process of a node. Once it is ready, ROOT/pid/NAME has its PID in this namespace."""
    spaces = NAMESPACES if name != 'login' else [s for s in NAMESPACES
                                                 if s not in ('--pid', '--mount-proc')]
    spawn(f'node-{name}', 'unshare', *spaces, sys.executable, os.path.abspath(__file__), 'node',
          name)
    path = f'{ROOT}/pid/{name}'
    deadline = time.monotonic() + 20
    while not os.path.exists(f'{path}.ready'):
        if time.monotonic() > deadline:
            raise RuntimeError(f'node {name} did not start: see log/node-{name}')
        time.sleep(0.01)
    # In its own namespace the process has PID 1, so look for its PID in this one.
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{pid}/cmdline', 'rb') as file:
                words = file.read().split(b'\0')
            if words[-4:-1] == [os.path.abspath(__file__).encode(), b'node', name.encode()] \
                    and words[0] == sys.executable.encode():
                write(path, pid)
                return pid
        except OSError:
            continue
    raise RuntimeError(f'node {name} has ended: see log/node-{name}')


def connect(name, pid):
    """Add the node's NICs: management first, then the fast one, each on its bridge."""
    nets = [('eth0', 'mgmt', 1)] + ([('hsn0', 'fast', 9)] if name != 'login' else [])
    for iface, bridge, net in nets:
        port = f'{bridge}-{name}'
        run('ip', 'link', 'add', port, 'type', 'veth', 'peer', 'name', iface, 'netns', pid)
        run('ip', 'link', 'set', port, 'master', bridge, 'up')
        inside = ['nsenter', '-t', pid, '-n', 'ip']
        run(*inside, 'address', 'add', f'{address(name, net)}/24', 'dev', iface)
        run(*inside, 'link', 'set', iface, 'up')


def on_node(name, argv, **more):
    with open(f'{ROOT}/pid/{name}', encoding='utf-8') as file:
        pid = file.read()
    return ['nsenter', '-t', pid, '-a', '--wd=/', *argv]


def wait_idle(names):
    deadline = time.monotonic() + START_S
    while True:
        seen = subprocess.run(on_node('login', ['sinfo', '-h', '-p', 'all', '-N', '-o', '%N %T']), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if sorted(seen.stdout.split('\n')[:-1]) == sorted(f'{n} idle' for n in names):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f'the nodes are not idle after {START_S} s:\n{seen.stdout}')
        time.sleep(0.05)


def wait_for(path):
    deadline = time.monotonic() + 20
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            raise RuntimeError(f'{path} did not appear; see {ROOT}/log')
        time.sleep(0.01)


def inside(options):
    kept = visible_below_tmp()
    for name in [n for n in os.environ if n.startswith(('SLURM_', 'PBS_', 'BERTH_AGENT', 'PMIX_'))]:
        del os.environ[name]
    names = node_names(options.nodes)
    run('mount', '-t', 'tmpfs', '-o', 'mode=755', 'run', '/run')
    os.makedirs(ROOT)
    os.environ.update(CLUSTER=ROOT, SLURM_CONF=f'{ROOT}/slurm.conf', LC_ALL='C.UTF-8',
                      BERTH_TOPOLOGY=f'{ROOT}/topology.xml')
    write_files(names)
    private_tmp(kept)
    run('ip', 'link', 'set', 'lo', 'up')
    for bridge in ('mgmt', 'fast'):
        run('ip', 'link', 'add', bridge, 'type', 'bridge')
        run('ip', 'link', 'set', bridge, 'up')
    for name in ['login'] + names:
        connect(name, start_node(name))
    spawn('munged', 'munged', '--foreground', '--force', f'--socket={ROOT}/munge/socket',
          f'--key-file={ROOT}/munge/key', f'--pid-file={ROOT}/munge/pid',
          f'--log-file={ROOT}/log/munged', f'--seed-file={ROOT}/munge/seed')
    wait_for(f'{ROOT}/munge/socket')
    spawn('slurmctld.out', *on_node('login', ['slurmctld', '-D']))
    for name in names:
        open(f'{ROOT}/{name}/go', 'w', encoding='utf-8').close()
    wait_idle(names)
    child = subprocess.Popen(on_node('login', ['env', f'--chdir={os.getcwd()}',
                                               *options.command]))
    while True:  # reap all orphans, as the first process of the PID namespace
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def guarded(options):
    keep = os.open(options.keep, os.O_PATH) if options.keep else -1
    try:
        code = inside(options)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f'cluster: {error}', file=sys.stderr)
        code = 1
    if options.keep:
        run('cp', '-r', f'{ROOT}/log/.', f'/proc/self/fd/{keep}/', pass_fds=[keep])
    return code if code >= 0 else 128 - code


# ---- a node ----

def hide():
    """Mount an empty file or directory over each path in HIDDEN that exists."""
    empty = f'{ROOT}/empty'
    for path in filter(os.path.exists, HIDDEN):
        if os.path.isdir(path):
            run('mount', '-t', 'tmpfs', '-o', 'mode=755', 'empty', path)
        else:
            run('mount', '--bind', empty, path)


def node(name):
    """The first process of a node: set up its mounts, start slurmd, and reap orphans."""
    run('hostname', name)
    run('mount', '-t', 'sysfs', 'sysfs', '/sys')
    private_tmp(visible_below_tmp())
    run('mount', '--bind', f'{ROOT}/hosts', '/etc/hosts')
    run('mount', '--bind', f'{ROOT}/{name}/topology.xml', f'{ROOT}/topology.xml')
    run('mount', '--bind', f'{ROOT}/nsswitch.conf', '/etc/nsswitch.conf')
    hide()
    run('ip', 'link', 'set', 'lo', 'up')
    open(f'{ROOT}/pid/{name}.ready', 'w', encoding='utf-8').close()
    if name != 'login':
        wait_for(f'{ROOT}/{name}/go')
        # slurmd needs a cgroup mount, although it uses no cgroups here.
        run('mount', '-t', 'tmpfs', 'cgroup', '/sys/fs/cgroup')
        spawn(f'slurmd-{name}.out', 'slurmd', '-D', '-N', name)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)


def main():
    if sys.argv[1:2] == ['node']:
        return node(sys.argv[2])
    if sys.argv[1:2] == ['on']:
        argv = on_node(sys.argv[2], sys.argv[3:])
        os.execvp(argv[0], argv)
    args = sys.argv[1:]
    within = args[:1] == ['inside']
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--nodes', type=int, default=3)
    parser.add_argument('--keep', help='copy the logs to this directory at the end')
    parser.add_argument('command', nargs='+')
    options = parser.parse_args(args[within:])
    if within:
        return guarded(options)
    check_possible()
    return start_inside(args)


if __name__ == '__main__':
    sys.exit(main())
