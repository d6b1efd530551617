#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Unauthenticated peers at the listening ports of a job: strangers.py BERTH [PMIX_PROGRAM]

Runs `berth run` on simulated nodes in a tree and finds every port on which berth run and the agents
listen. It connects to each of them and sends garbage, half a handshake, floods of connections, nothing,
and the recorded handshake of a real agent of another run. No peer may get more than a refusal, silent
peers must be disconnected, and the job must succeed. The listening sockets of the agents' PMIx servers
belong to PMIx: PMIX_PROGRAM must still connect all ranks while unauthenticated peers hold connections.
"""
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from listening import listening  # noqa: E402

BERTH = sys.argv[1]
LOOPBACK = '127.0.0.1'
PMIX_PROGRAM = sys.argv[2] if len(sys.argv) > 2 else ''
GREETING_S = 5  # CONNECTION_HANDSHAKE_MS
ANSWER_MAX = 104  # WIRE_ANSWER_BYTES: the answer to a HELLO with the right fingerprint


def generations(pid):
    """[children of pid, their children, the children of those], from one pass over /proc."""
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
    """berth run and its agents, which are the children of its children, the guardians. The agents'
    children (ranks, and the PMIx server, whose listening socket is PMIx's) are left out."""
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


def start(script, report, *options):
    """Start a job of 5 nodes with fan-out 2: nodes 0 and 1 have children and listen, as does berth run."""
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


def send(knocker, data):
    try:
        knocker.sendall(data)
    except OSError:
        pass  # disconnected while it was sending


def knock(port, data=b''):
    knocker = socket.create_connection((LOOPBACK, port), timeout=5)
    if data:
        send(knocker, data)
    return knocker


def answer(knocker, seconds):
    """What arrived until the other side closed the connection; None if it did not close in time."""
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
VERSION = b'\4\0'  # WIRE_VERSION
RUBBISH = {
    'an HTTP request': b'GET / HTTP/1.1\r\nHost: x\r\n\r\n',
    'a megabyte of random bytes': os.urandom(1 << 20),
    'zeros': bytes(4096),
    'another version': MAGIC + b'\xff\x7f\1\0' + bytes(44),
    'a handshake with another secret': MAGIC + VERSION + b'\1\0' + os.urandom(44),
    'a probe without the secret': MAGIC + VERSION + b'\2\0' + os.urandom(44),
    'an unknown kind': MAGIC + VERSION + b'\x63\0' + os.urandom(44),
}


def greet_replay(folder, run_ports):
    """Record the first message of a real agent of another job, and replay it to the ports of this job."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    env = dict(os.environ, BERTH_AGENT_CONTROLLER=f'{LOOPBACK}:{port}', BERTH_AGENT_JOB='recorded',
               BERTH_AGENT_NODE='0', BERTH_AGENT_NAME='n0', BERTH_AGENT_SECRET='ab' * 32,
               TMPDIR=folder)
    agent = subprocess.Popen([BERTH, 'agent'], env=env, stdin=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    listener.settimeout(20)
    peer, _ = listener.accept()
    hello = b''
    while len(hello) < 56:
        hello += peer.recv(56 - len(hello))
    # The reverse case: an impostor in the role of berth run gets nothing from an agent.
    peer.sendall(MAGIC + VERSION + b'\0\0' + os.urandom(92))
    rest = answer(peer, 10)
    check(rest == b'', f'an agent that meets an impostor closes the connection and sends nothing: {rest!r}')
    check(agent.wait(20) not in (0, None), 'that agent exits with an error')
    said = agent.stderr.read()
    check('impostor' in said or 'another job' in said, f'that agent prints the reason: {said!r}')
    listener.close()
    for name in run_ports:
        got = answer(knock(name, hello + os.urandom(56)), 3 * GREETING_S)
        check(got is not None and len(got) <= 12, f'a replayed handshake got {got!r}')


def agent_continues(folder):
    """An agent whose peer at one of the controller's addresses is an impostor, or silent, tries the next address."""
    listeners = [socket.create_server((LOOPBACK, 0)) for _ in range(3)]
    addresses = [f'{LOOPBACK}:{listener.getsockname()[1]}' for listener in listeners]
    env = dict(os.environ, BERTH_AGENT_CONTROLLER=','.join(addresses), BERTH_AGENT_JOB='recorded',
               BERTH_AGENT_NODE='0', BERTH_AGENT_NAME='n0', BERTH_AGENT_SECRET='ab' * 32, TMPDIR=folder)
    agent = subprocess.Popen([BERTH, 'agent'], env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peers = []
    try:
        for number, listener in enumerate(listeners):
            listener.settimeout(3 * GREETING_S)
            try:
                peers.append(listener.accept()[0])
            except TimeoutError:
                raise SystemExit(f'no agent came to address {number} after an impostor: {agent.poll()}') from None
            if number == 0:  # an impostor; the next one says nothing
                peers[0].sendall(MAGIC + VERSION + b'\0\0' + os.urandom(92))
        peers[2].sendall(MAGIC + VERSION + b'\0\0' + os.urandom(92))
    finally:
        for each in listeners + peers:
            each.close()
    check(agent.wait(30) not in (0, None), 'the agent ends once no address is left')
    agent.stderr.close()


def stuck_stderr(folder):
    """A job whose stderr is a full pipe ends although there are messages about unauthenticated peers."""
    go = os.path.join(folder, 'go-stuck')
    reading, writing = os.pipe()
    run = subprocess.Popen([BERTH, 'run', '--launcher', 'loopback', '-N', '2', '-n', '2', '--', 'sh', '-c',
                            f'while [ ! -e {go} ]; do sleep 0.1; done; echo well'],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writing, text=True)
    try:
        port = next(iter(doors(run, 1)))
        os.set_blocking(writing, False)
        try:
            while True:
                os.write(writing, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writing, True)
        for _ in range(20):
            check(answer(knock(port, RUBBISH['zeros']), 3 * GREETING_S) is not None, 'disconnected, stderr is full')
        with open(go, 'w', encoding='ascii'):
            pass
        out, _ = run.communicate(timeout=30)
    finally:
        if run.poll() is None:
            run.kill()
        os.close(writing)
        os.close(reading)
    check(run.returncode == 0, f'the job succeeded although stderr is full: {run.returncode}')
    check(out.count('well') == 2, f'all ranks printed: {out!r}')


def pmix_doors():
    """At PMIx's own sockets: each unauthenticated peer is disconnected, and the ranks still connect."""
    with tempfile.TemporaryDirectory() as folder:
        go = os.path.join(folder, 'go')
        # The servers listen before they know the job; silent peers could hold that up for longer than it may take.
        run = start(f': >{folder}/started.$RANK; while [ ! -e {go} ]; do sleep 0.1; done; exec {PMIX_PROGRAM}',
                    os.path.join(folder, 'report.json'), '-N', '2', '-n', '2')
        held = []
        try:
            until = time.monotonic() + 30
            while ''.join(os.listdir(folder)).count('started') < 2 and run.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            ports = doors(run, 2, servers)
            silent = [knock(port) for port in ports]
            for port in ports:
                for name, data in RUBBISH.items():
                    got = answer(knock(port, data), 3 * GREETING_S)
                    check(got == b'', f"{name} at PMIx's port: disconnected without an answer: {got!r}")
                # Keep two connections that PMIx waits for; the ranks connect after these.
                held += [knock(port), knock(port, RUBBISH['another version'])]
                with knock(port, RUBBISH['another version'][:16]) as slow:  # the header of a long message
                    until = time.monotonic() + 3 * GREETING_S
                    while (got := answer(slow, 0.2)) is None and time.monotonic() < until:
                        send(slow, b'x')  # each read gets something
                check(got == b'', f"one byte after the other at PMIx's port: disconnected: {got!r}")
            for knocker in silent:
                got = answer(knocker, 3 * GREETING_S)
                check(got == b'', f"silence at PMIx's port: disconnected without an answer: {got!r}")
            with open(go, 'w', encoding='ascii'):
                pass
            out, err = run.communicate(timeout=60)
        finally:
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=30)
            for knocker in held:
                knocker.close()
        check(run.returncode == 0, f"unauthenticated peers at PMIx's ports: {run.returncode}: {err}")
        check(sorted(out.split('\n')[:-1]) == ['PMIx rank 0 of 2', 'PMIx rank 1 of 2'],
              f'all ranks connected over PMIx: {out!r}')


def main():
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, 'report.json')
        go = os.path.join(folder, 'go')
        run = start(f'while [ ! -e {go} ]; do sleep 0.1; done; echo well', report)
        held = []
        try:
            ports = doors(run, 3)
            heads = [port for port, pid in ports.items() if pid == run.pid]
            check(len(heads) == 1, 'berth run listens on one port')
            reset = [knock(port, MAGIC) for port in ports]
            for port in ports:
                for name, data in RUBBISH.items():
                    got = answer(knock(port, data), 3 * GREETING_S)
                    check(got is not None, f'{name}: disconnected')
                    check(len(got) <= 12, f'{name}: no more than a refusal, got {got!r}')
                    check(not got or got.startswith(MAGIC), f'{name}: got {got!r}')
            # An agent that tries again resets its first connection: not worth a message. One per second is printed.
            time.sleep(1.1)
            for gone in reset:
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
                gone.close()
            greet_replay(folder, ports)
            agent_continues(folder)
            stuck_stderr(folder)
            # Silent peers, and peers with half a handshake, are disconnected after the deadline, before the job ends.
            silent = {port: [knock(port), knock(port, MAGIC)] for port in ports}
            begun = time.monotonic()
            for port, knockers in silent.items():
                for knocker in knockers:
                    check(answer(knocker, 3 * GREETING_S) == b'',
                          'a silent peer is disconnected without an answer')
            check(time.monotonic() - begun < 3 * GREETING_S, 'in time')
            # A flood with more connections than may be pending: no agent is kept out, and memory stays bounded.
            for port, pid in ports.items():
                before = resident_kib(pid)
                for _ in range(600):
                    try:
                        held.append(knock(port))
                    except OSError:
                        pass
                grown = resident_kib(pid) - before
                check(grown < 16384, f'600 connections cost {grown} KiB')
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
        check(run.returncode == 0, f'the job succeeded: {run.returncode}: {err}')
        check(out.count('well') == 5, f'all ranks printed: {out!r}')
        check('not a berth handshake' in err, f'the unauthenticated peers were reported: {err!r}')
        check('reset by peer' not in err, f'a connection that broke is no unauthenticated peer: {err!r}')

        # Unauthenticated peers connect from the start, while real agents connect.
        enough = os.path.join(folder, 'enough')
        run = start(f'sleep 4; until [ -e {enough} ]; do sleep 0.1; done; echo well', report, '-N', '16', '-n', '16')
        floods = 0
        until = time.monotonic() + 60 * float(os.environ.get('BERTH_TEST_SLOW', 1))
        try:
            while run.poll() is None and floods < 3000 and time.monotonic() < until:
                for port in {port for pid in agents(run.pid) for port in listening(pid)}:
                    for _ in range(50):
                        try:
                            held.append(knock(port, os.urandom(8) if floods % 2 else b''))
                            floods += 1
                        except OSError:
                            break
                while len(held) > 700:
                    held.pop(0).close()
                if floods > 100:
                    with open(enough, 'w', encoding='ascii'):
                        pass
            out, err = run.communicate(timeout=60)
        finally:
            while held:
                held.pop().close()
            if run.poll() is None:
                run.terminate()
                run.communicate(timeout=30)
        check(run.returncode == 0, f'a flood at the start: {run.returncode}: {err}')
        check(out.count('well') == 16, f'all ranks printed: {out!r}')
        check(floods > 100, 'it was a flood')
        print(f'{len(RUBBISH)} kinds of garbage, silence, replays and a flood of {floods} connections: '
              f'the job continued')


main()
if PMIX_PROGRAM:
    pmix_doors()
else:
    print("PMIx's ports were not tested: this build has no PMIx")
