# SPDX-License-Identifier: BSD-3-Clause
"""Run one test in namespaces of its own, so that tests cannot see each other. tests/run.sh makes this meson's
wrapper if it runs as root:
    isolate.py --check        exit with 0 if this machine can do it; else print why not
    isolate.py COMMAND...

The test sees its own network (loopback, and eth0 with an address that the node's name has in /etc/hosts; packets to
others are lost), processes, System V memory, /tmp (on disk, as fsync costs nothing on a tmpfs), /dev/shm, and /sys.
The source, the build directory and BERTH_TEST_TOPO stay visible. BERTH_TEST_NETWORK=yes keeps the machine's network,
for tests that fetch software.

A process that is killed (SIGKILL) while LeakSanitizer looks leaves a report without a finding, or an empty one: 213 of
5,427 kills of berth-train near its end. The kernel's process accounting (acct(2)) says which processes were killed;
their reports are removed if they are like that.

PID 1 is this program, not the test. It reaps orphans. A process, shared memory or a socket in /tmp that outlives the
test by GRACE_S makes it fail, and is named. Shortly before meson's time limit it prints which processes there are, and
what the bats case that hangs has written. Signals that end this program (meson's time-out) reach the test. If this
program is killed, the kernel ends all of the test. The exit code is the test's; 128 plus the signal that killed it."""
import ctypes
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time

SLOW = int(os.environ.get('BERTH_TEST_SLOW', 1))
GRACE_S = 5 * SLOW
ADDRESS = '192.0.2.10'  # TEST-NET-1, of RFC 5737
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x8000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None, use_errno=True)
ACCT = struct.Struct('<xB2xI8xI44x')  # version, exit code and process of a record
# All that LeakSanitizer writes before it has looked, if threads end meanwhile.
CUT_SHORT = re.compile(r'(?:==\S+==(?:Running thread \d+ was not suspended\. False leaks are possible'
                       r'|Unable to get registers from thread \d+)\.\n)*')


def call(name, *args):
    """A function of the C library; it raises OSError."""
    if getattr(libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f'{name}: {os.strerror(number)}')


def load_average():
    return ' '.join(f'{load:.1f}' for load in os.getloadavg())


def mount(source, target, kind=None, flags=0, data=None):
    words = [word if word is None else str(word).encode() for word in (source, target, kind)]
    call('mount', *words, ctypes.c_ulong(flags), data)


def run(*argv, **more):
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, **more)


# ---- what the test sees ----

def mount_sys(place):
    """The sysfs of the test's network, with what was mounted below the machine's (cgroups)."""
    new = place / 'sys'
    new.mkdir()
    mount('sysfs', new, 'sysfs')
    with open('/proc/self/mountinfo', encoding='utf-8') as file:
        below = [line.split()[4] for line in file if line.split()[4].startswith('/sys/')]
    for name in below:
        if not any(name.startswith(other + '/') for other in below) and (new / name[5:]).exists():
            mount(name, new / name[5:], flags=MS_BIND | MS_REC)
    mount(new, '/sys', flags=MS_BIND | MS_REC)


def mount_tmp(place):
    """An empty /tmp, in which the directories remain that the test needs."""
    new = place / 'tmp'
    new.mkdir()
    new.chmod(0o1777)
    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in sorted({source, os.getcwd(), os.environ.get('BERTH_TEST_TOPO', '')}):
        if name.startswith('/tmp/'):
            (new / name[5:]).mkdir(parents=True, exist_ok=True)
            mount(name, new / name[5:], flags=MS_BIND)
    mount(new, '/tmp', flags=MS_BIND | MS_REC)
    os.chdir(os.getcwd())
    mount('shm', '/dev/shm', 'tmpfs', data=b'mode=1777')


def mount_names(place):
    """Names that are looked up without a network."""
    files = {'hosts': f'127.0.0.1 localhost\n::1 localhost\n{ADDRESS} {os.uname().nodename}\n', 'resolv.conf': ''}
    for name, text in files.items():
        (place / name).write_text(text)
        if os.path.exists(f'/etc/{name}'):
            mount(place / name, f'/etc/{name}', flags=MS_BIND)


def make_network():
    """A network with loopback and eth0, whose other end is in a namespace where nothing answers."""
    call('unshare', CLONE_NEWNET)
    away = os.open('/proc/self/ns/net', os.O_RDONLY)  # it exists as long as this is open
    call('unshare', CLONE_NEWNET)
    path = f'/proc/self/fd/{away}'
    # As in a container, the ends' numbers differ; a dummy's are equal.
    run('ip', 'link', 'add', 'eth0', 'index', '10', 'type', 'veth', 'peer', 'name', 'away', 'netns', path, pass_fds=[away])
    run('nsenter', f'--net={path}', 'ip', 'link', 'set', 'away', 'up', pass_fds=[away])
    run('ip', 'link', 'set', 'lo', 'up')
    run('ip', 'address', 'add', f'{ADDRESS}/24', 'dev', 'eth0')
    run('ip', 'link', 'set', 'eth0', 'up')
    run('ip', 'route', 'add', 'default', 'dev', 'eth0')


def change_view(place):
    """Set up what the test sees. This process is the first of its PID namespace."""
    call('unshare', CLONE_NEWNS | CLONE_NEWIPC)
    mount(None, '/', flags=MS_PRIVATE | MS_REC)
    mount('proc', '/proc', 'proc')
    if os.environ.get('BERTH_TEST_NETWORK') != 'yes':
        make_network()
        mount_sys(place)
        mount_names(place)
    mount_tmp(place)
    os.environ.pop('TMPDIR', None)


def name_reports(command):
    """A sanitizer's report is a file: put the test's name into the file's name."""
    label = '-'.join(os.path.basename(word) for word in command if not word.startswith('-'))[-60:]
    label = ''.join(letter if letter.isalnum() or letter in '._-' else '_' for letter in label)
    for name in 'ASAN_OPTIONS', 'UBSAN_OPTIONS', 'TSAN_OPTIONS':
        options = os.environ.get(name, '').split(':')
        os.environ[name] = ':'.join(option + '.' + label if option.startswith('log_path=') else option
                                    for option in options)


def account(path):
    """Have the kernel write down how each process ends. Without that, no report is removed."""
    path.touch()
    libc.acct(str(path).encode())


def remove_cut_short(path):
    """Remove the reports without a finding of processes that were killed."""
    killed = {pid for version, code, pid in ACCT.iter_unpack(path.read_bytes())
              if version & 0xf == 3 and code & 0x7f == signal.SIGKILL}
    prefix = os.environ.get('ASAN_OPTIONS', '').rpartition('log_path=')[2].partition(':')[0]
    for name in glob.glob(glob.escape(prefix) + '.*') if prefix else []:
        pid = name.rpartition('.')[2]
        with open(name, encoding='utf-8', errors='replace') as file:
            cut = pid.isdigit() and int(pid) in killed and CUT_SHORT.fullmatch(file.read())
        if cut:
            print(f'no finding in {os.path.basename(name)}: its process was killed while LeakSanitizer looked', flush=True)
            os.unlink(name)


# ---- what the test leaves behind ----

def processes():
    """PID, state and command line of all processes but this one."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        try:
            words = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes().replace(b'\0', b' ').decode(errors='replace')
            state = pathlib.Path(f'/proc/{pid}/stat').read_text(errors='replace').rpartition(')')[2].split()[0]
        except OSError:
            continue
        if pid != '1' and state not in 'ZX':
            found.append(f'process {pid} ({state}): {words[:200]}')
    return found


def reap():
    """Reap what has ended, except the test itself."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def leftovers():
    """What has outlived the test."""
    deadline = time.monotonic() + GRACE_S
    found = processes()
    while found and time.monotonic() < deadline:
        time.sleep(0.02)
        reap()
        found = processes()
    found += [f'shared memory /dev/shm/{name}' for name in sorted(os.listdir('/dev/shm'))]
    with open('/proc/sysvipc/shm', encoding='utf-8') as file:
        found += [f'System V shared memory {line.split()[1]}' for line in file.readlines()[1:]]
    for top, directories, files in os.walk('/tmp'):
        directories[:] = [name for name in directories if not os.path.ismount(os.path.join(top, name))]
        found += [f'socket {os.path.join(top, name)}' for name in files
                  if stat.S_ISSOCK(os.lstat(os.path.join(top, name)).st_mode)]
    return found


# ---- a test that hangs ----

def time_limit(command):
    """Seconds until meson ends this command; 0 if that is unknown."""
    try:
        with open('meson-info/intro-tests.json', encoding='utf-8') as file:
            limits = [test['timeout'] for test in json.load(file) if test['cmd'] == command]
    except (OSError, ValueError):
        return 0
    return min(limits, default=0) * SLOW


def print_hang():
    """What is known of a test that has not ended."""
    print(f'still running, load average {load_average()}:')
    print('\n'.join('  ' + line for line in processes()))
    seen = set()
    for path in glob.glob('/proc/[0-9]*/root/tmp/bats-run-*/bats.*.out'):  # a cluster has a /tmp of its own
        try:
            about = os.stat(path)
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            text = pathlib.Path(path).read_text(encoding='utf-8', errors='replace')
        except OSError:
            continue
        print(f'the case has written to {os.path.basename(path)}:')
        print('\n'.join('# ' + line for line in text.splitlines()))
    sys.stdout.flush()


# ---- processes ----

def run_test(command, limit_s):
    """PID 1: start the test, reap everything until it ends, and report what it leaves behind."""
    test = os.fork()
    if test == 0:
        os.setsid()
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f'isolate: {command[0]}: {error.strerror}', file=sys.stderr)
            os._exit(127)

    def pass_on(number, _):
        try:
            os.killpg(test, number)
        except ProcessLookupError:  # it has no session yet, or has ended
            pass

    for number in ENDING:
        signal.signal(number, pass_on)
    signal.signal(signal.SIGALRM, lambda *_: print_hang())
    signal.setitimer(signal.ITIMER_REAL, limit_s * 0.9)
    pid = 0
    while pid != test:
        pid, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    code = code if code >= 0 else 128 - code
    signal.setitimer(signal.ITIMER_REAL, 0)
    found = leftovers()
    for line in found:  # what a failed case leaves is no further failure
        print(f"{'FAILED: ' if code in (0, 77) else ''}left behind: {line}")
    if found and code in (0, 77):
        code = 1
    if code not in (0, 77):
        print(f'load average at the end: {load_average()}')
    sys.stdout.flush()
    return code


def main(command):
    place = pathlib.Path(tempfile.mkdtemp(prefix='test.', dir=os.environ.get('BERTH_TEST_PLACE', '/var/tmp')))
    place.chmod(0o755)
    limit_s = time_limit(command)
    call('unshare', CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            call('prctl', PR_SET_PDEATHSIG, signal.SIGKILL)
            change_view(place)
            name_reports(command)
            account(place / 'ended')
            code = run_test(command, limit_s)
            remove_cut_short(place / 'ended')
        except (OSError, subprocess.CalledProcessError) as error:
            print(f'isolate: {error}', file=sys.stderr)
        finally:
            os._exit(code)
    for number in ENDING:
        signal.signal(number, lambda number, _: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.rmtree(place, ignore_errors=True)
    return code if code >= 0 else 128 - code


def check():
    if os.geteuid() != 0:
        sys.exit('not root')
    missing = [name for name in ('ip', 'nsenter') if not shutil.which(name)]
    if missing:
        sys.exit(f'missing: {" ".join(missing)} (Debian: iproute2 util-linux)')
    sys.exit(main(['true']))


if __name__ == '__main__':
    if sys.argv[1:] == ['--check']:
        check()
    sys.exit(main(sys.argv[1:]))
