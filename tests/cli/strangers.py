#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Strangers at the doors of a job: strangers.py BERTH [PMIX_PROGRAM]

Runs `berth run` on simulated nodes in a tree, finds every port that the head and the agents listen
on, and sends rubbish, half a greeting, floods, silence, and the recorded greeting of a true agent of
another run. Nobody may be answered with more than a refusal, the job must end well, and who stays
silent must be shown the door. The listening sockets of the agents' PMIx servers are PMIx's own: its
PMIX_PROGRAM must meet all ranks although strangers stand there.
"""
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

BERTH = sys.argv[1]
LOOPBACK = '127.0.0.1'
PMIX_PROGRAM = sys.argv[2] if len(sys.argv) > 2 else ''
GREETING_S = 5  # CONNECTION_HANDSHAKE_MS
ANSWER_MAX = 104  # WIRE_ANSWER_BYTES: the answer to a HELLO with the right fingerprint


def generations(pid):
    """[children of pid, their children, theirs], by one look through /proc."""
    parents = {}
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            with open(f'/proc/{name}/stat', encoding='latin-1') as file:
                parents[int(name)] = int(file.read().rsplit(')', 1)[1].split()[1])
        except (OSError, IndexError):
            pass
    found = [{pid}]
    for _ in range(3):
        found.append({child for child, parent in parents.items() if parent in found[-1]})
    return found[1:]


def agents(pid):
    """The head, and its agents: the children of its children, their guardians. Theirs (ranks, the
    PMIx server, whose listening socket is PMIx's) are no doors of berth's."""
    return [pid, *generations(pid)[1]]


def servers(pid):
    """The agents' PMIx servers."""
    found = []
    for child in generations(pid)[2]:
        try:
            with open(f'/proc/{child}/comm', encoding='ascii') as comm:
                if comm.read().strip() == 'berth-pmix':
                    found.append(child)
        except OSError:
            pass
    return found


def listening(pid):
    """Ports on which this process listens."""
    inodes = set()
    try:
        for fd in os.listdir(f'/proc/{pid}/fd'):
            try:
                match = re.match(r'socket:\[(\d+)\]', os.readlink(f'/proc/{pid}/fd/{fd}'))
            except OSError:
                continue
            if match:
                inodes.add(match.group(1))
    except OSError:
        return set()
    ports = set()
    for table in ('tcp', 'tcp6'):
        try:
            with open(f'/proc/{pid}/net/{table}', encoding='ascii') as file:
                rows = file.read().splitlines()[1:]
        except OSError:
            continue
        for row in map(str.split, rows):
            if row[3] == '0A' and row[9] in inodes:
                ports.add(int(row[1].rsplit(':', 1)[1], 16))
    return ports


def start(script, report, *options):
    """A job of 5 nodes, fan-out 2: nodes 0 and 1 have children and listen, as the head does."""
    return subprocess.Popen(
        [BERTH, 'run', '--launcher', 'loopback', '-N', '5', '-n', '5', '--fan-out', '2',
         '--report', report, *options, '--', 'sh', '-c', script],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def doors(run, expected, of=agents, seconds=30):
    until = time.monotonic() + seconds
    found = {}
    while time.monotonic() < until and run.poll() is None:
        found = {port: pid for pid in of(run.pid) for port in listening(pid)}
        if len(found) >= expected:
            return found
        time.sleep(0.02)
    raise SystemExit(f'found {len(found)} listening ports, expected {expected}: {found}')


def knock(port, data=b''):
    knocker = socket.create_connection((LOOPBACK, port), timeout=5)
    if data:
        try:
            knocker.sendall(data)
        except OSError:
            pass  # shown the door in the middle of it
    return knocker


def answer(knocker, seconds):
    """What came until the other side closed; None when it did not close in time."""
    knocker.settimeout(seconds)
    got = b''
    try:
        while True:
            more = knocker.recv(4096)
            if not more:
                return got
            got += more
    except socket.timeout:
        return None
    except OSError:
        return got


def check(condition, what):
    if not condition:
        raise SystemExit(f'not true: {what}')


def resident_kib(pid):
    with open(f'/proc/{pid}/status', encoding='ascii') as file:
        return int(re.search(r'VmRSS:\s+(\d+)', file.read()).group(1))


MAGIC = b'BERTHnet'
RUBBISH = {
    'a web client': b'GET / HTTP/1.1\r\nHost: x\r\n\r\n',
    'a megabyte of noise': os.urandom(1 << 20),
    'zeros': bytes(4096),
    'another version': MAGIC + b'\xff\x7f\1\0' + bytes(44),
    'a greeting with a secret of its own': MAGIC + b'\1\0\1\0' + os.urandom(44),
    'a probe without the secret': MAGIC + b'\1\0\2\0' + os.urandom(44),
    'a kind that does not exist': MAGIC + b'\1\0\x63\0' + os.urandom(44),
}


def greet_replay(folder, run_ports):
    """What a true agent of another job said first, from a listener that we are ourselves."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    env = dict(os.environ, BERTH_AGENT_HEAD=f'{LOOPBACK}:{port}', BERTH_AGENT_JOB='recorded',
               BERTH_AGENT_NODE='0', BERTH_AGENT_NAME='n0', BERTH_AGENT_SECRET='ab' * 32,
               TMPDIR=folder)
    agent = subprocess.Popen([BERTH, 'agent'], env=env, stdin=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    listener.settimeout(20)
    peer, _ = listener.accept()
    hello = b''
    while len(hello) < 56:
        hello += peer.recv(56 - len(hello))
    # And the other way round: an impostor as the head gets nothing out of an agent.
    peer.sendall(MAGIC + b'\1\0\0\0' + os.urandom(92))
    rest = answer(peer, 10)
    check(rest == b'', f'an agent that meets an impostor hangs up and says nothing: {rest!r}')
    check(agent.wait(20) not in (0, None), 'and ends with an error')
    said = agent.stderr.read()
    check('impostor' in said or 'another job' in said, f'and says why: {said!r}')
    listener.close()
    for name in run_ports:
        got = answer(knock(name, hello + os.urandom(56)), 3 * GREETING_S)
        check(got is not None and len(got) <= 12, f'a replayed greeting got {got!r}')


def pmix_doors():
    """At PMIx's own sockets: each stranger is let go of, and the ranks meet all the same."""
    with tempfile.TemporaryDirectory() as folder:
        go = os.path.join(folder, 'go')
        run = start(f'while [ ! -e {go} ]; do sleep 0.1; done; exec {PMIX_PROGRAM}',
                    os.path.join(folder, 'report.json'), '-N', '2', '-n', '2')
        held = []
        try:
            ports = doors(run, 2, servers)
            for port in ports:
                for name, data in {'silence': b'', **RUBBISH}.items():
                    got = answer(knock(port, data), 3 * GREETING_S)
                    check(got == b'', f"{name} at PMIx's door: let go of, in silence: {got!r}")
                # Stay, in two ways that PMIx waits for: the ranks come after these.
                held += [knock(port), knock(port, RUBBISH['another version'])]
            with open(go, 'w', encoding='ascii'):
                pass
            out, err = run.communicate(timeout=60)
        finally:
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=30)
            for knocker in held:
                knocker.close()
        check(run.returncode == 0, f"strangers at PMIx's doors: {run.returncode}: {err}")
        check(sorted(out.split('\n')[:-1]) == ['PMIx rank 0 of 2', 'PMIx rank 1 of 2'],
              f'all ranks met by PMIx: {out!r}')


def main():
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, 'report.json')
        go = os.path.join(folder, 'go')
        run = start(f'while [ ! -e {go} ]; do sleep 0.1; done; echo well', report)
        held = []
        try:
            ports = doors(run, 3)
            heads = [port for port, pid in ports.items() if pid == run.pid]
            check(len(heads) == 1, 'the head listens on one port')
            for port in ports:
                for name, data in RUBBISH.items():
                    got = answer(knock(port, data), 3 * GREETING_S)
                    check(got is not None, f'{name}: shown the door')
                    check(len(got) <= 12, f'{name}: no more than a refusal, got {got!r}')
                    check(not got or got.startswith(MAGIC), f'{name}: got {got!r}')
            greet_replay(folder, ports)
            # Silence, and half a greeting: out after the deadline, not before the job is.
            silent = {port: [knock(port), knock(port, MAGIC)] for port in ports}
            begun = time.monotonic()
            for port, knockers in silent.items():
                for knocker in knockers:
                    check(answer(knocker, 3 * GREETING_S) == b'',
                          'who is silent is shown the door, without a word')
            check(time.monotonic() - begun < 3 * GREETING_S, 'in time')
            # A flood: more than may stand at the door. Nobody is kept out, memory is bounded.
            for port, pid in ports.items():
                before = resident_kib(pid)
                for _ in range(600):
                    try:
                        held.append(knock(port))
                    except OSError:
                        pass
                grown = resident_kib(pid) - before
                check(grown < 16384, f'600 strangers cost {grown} KiB')
                while held:
                    held.pop().close()
            check(run.poll() is None, 'the job still runs')
            with open(go, 'w', encoding='ascii'):
                pass
            out, err = run.communicate(timeout=60)
        finally:
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=30)
        check(run.returncode == 0, f'the job ended well: {run.returncode}: {err}')
        check(out.count('well') == 5, f'all ranks spoke: {out!r}')
        check('not a berth handshake' in err, f'the strangers were told of: {err!r}')

        # Strangers from the first moment on, while true agents come.
        run = start('sleep 4; echo well', report, '-N', '16', '-n', '16')
        floods = 0
        try:
            while run.poll() is None and floods < 3000:
                for port in {port for pid in agents(run.pid) for port in listening(pid)}:
                    for _ in range(50):
                        try:
                            held.append(knock(port, os.urandom(8) if floods % 2 else b''))
                            floods += 1
                        except OSError:
                            break
                while len(held) > 700:
                    held.pop(0).close()
            out, err = run.communicate(timeout=60)
        finally:
            while held:
                held.pop().close()
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=30)
        check(run.returncode == 0, f'a flood at the start: {run.returncode}: {err}')
        check(out.count('well') == 16, f'all ranks spoke: {out!r}')
        check(floods > 100, 'it was a flood')
        print(f'{len(RUBBISH)} kinds of rubbish, silence, replays and {floods} connections of a '
              f'flood: the job went on')


main()
if PMIX_PROGRAM:
    pmix_doors()
else:
    print("PMIx's doors were left out: this build has no PMIx")
