#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Programs that do not belong to the job, at the ports of gloo: gloo_strangers.py BERTH LATE_LISTEN.so

A preloaded library stops two ranks between listening and connecting. Meanwhile another program connects to
all their ports; then the ranks continue. Whatever that program sends, they connect in a later try, and the
training succeeds. Only a message in gloo's own protocol can end a rank, which must report the cause.
"""
import itertools
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'support'))
from listening import listening  # noqa: E402

BERTH, PRELOAD = map(os.path.abspath, sys.argv[1:3])
WAIT_S = 60
# gloo's header of a message: all its bytes, what it is, the receiver's slot, and where in a buffer.
HEADER = struct.Struct('=QQQQQQ')
SEND, RECEIVER_READY = 1, 3
TRIES = 5
# gloo of 2023 and newer listens once. A connection begins with the number of its pair, each try makes a new pair,
# and connections for later pairs are kept.
LISTENER = os.path.exists('/usr/include/gloo/transport/tcp/listener.h')


def message(kind, slot, data=b''):
    return HEADER.pack(HEADER.size + len(data), kind, slot, 0, len(data), 0) + data


def silent(_):
    pass


def send(data):
    def role(peer):
        peer.sendall(data)
    return role


def impostor(peer):
    """Wait until the rank asks for the word of the other rank, and send a wrong one."""
    head = b''
    while True:
        while len(head) < HEADER.size:
            more = peer.recv(HEADER.size - len(head))
            if not more:
                return
            head += more
        _, kind, slot, _, _, _ = HEADER.unpack(head)
        if kind == RECEIVER_READY:
            peer.sendall(message(SEND, slot, b'w' * 32))
            return
        head = b''


def trainers(folder):
    """The processes of berth-train in this folder."""
    found = []
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            if os.readlink(f'/proc/{name}/cwd') == folder:
                with open(f'/proc/{name}/comm', encoding='ascii') as file:
                    found += [name] if file.read().strip() == 'berth-train' else []
        except OSError:
            pass
    return found


def store_port(pid):
    """MASTER_PORT, where berth's own store listens without PMIx."""
    try:
        with open(f'/proc/{pid}/environ', encoding='latin-1') as file:
            words = file.read().split('\0')
    except OSError:
        return set()  # it has ended
    return {int(word[12:]) for word in words if word.startswith('MASTER_PORT=')}


def doors(run, folder, seen):
    """The ports of both ranks in this try."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and run.poll() is None:
        ports = [listening(pid) - store_port(pid) - seen for pid in trainers(folder)]
        if len(ports) == 2 and all(ports):
            return set.union(*ports)
        time.sleep(0.01)
    run.terminate()
    raise SystemExit(f'the ranks of the run do not listen: {run.communicate()[0]}')


def attack(role, tries=1):
    """Run a training with this peer at each of the first tries; return its exit code and messages."""
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        # For the ranks alone: PMIx's server listens, too.
        ranks = ['env', f'LD_PRELOAD={PRELOAD}', f'LATE_LISTEN={folder}/try',
                 f'ASAN_OPTIONS={os.environ.get("ASAN_OPTIONS", "")}:verify_asan_link_order=0',
                 os.path.join(os.path.dirname(BERTH), 'berth-train'), 'linear', '--comm', 'gloo', '--data',
                 'synthetic:1x8x8,n=64,classes=3', '--steps', '2', '--comm-timeout', '20s']
        run = subprocess.Popen([BERTH, 'run', '-n', '2', '--', *ranks], cwd=folder, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        seen, peers = set(), []
        for number in range(1, TRIES + 1):
            if number <= (1 if LISTENER else tries):
                ports = doors(run, folder, seen)
                seen |= ports
                for port, pair in itertools.product(ports, range(tries if LISTENER else 1)):
                    peers.append(socket.create_connection(('127.0.0.1', port)))
                    if LISTENER:
                        peers[-1].sendall(struct.pack('=Q', pair))
                    threading.Thread(target=quietly, args=(role, peers[-1]), daemon=True).start()
            with open(f'{folder}/try.{number}', 'w', encoding='ascii'):
                pass
        try:
            text = run.communicate(timeout=120)[0]
        finally:
            run.kill()
        for peer in peers:
            peer.close()
        return run.returncode, text


def quietly(role, peer):
    try:
        role(peer)
    except OSError:
        pass  # the rank has closed this connection


def main():
    rows = {'silent': silent, 'zeros': send(bytes(4096)), 'noise': send(os.urandom(4096)),
            'http': send(b'GET / HTTP/1.0\r\n\r\n'), 'closes': lambda peer: peer.close(), 'impostor': impostor}
    for name, role in rows.items():
        code, text = attack(role)
        print(f'--- {name}: {code}\n{text}')
        assert code == 0, name
        assert 'trained linear' in text, name
        assert 'try 1 of 5 failed' in text and 'try 2 of' not in text, name
    assert 'does not belong to this job' in text
    code, text = attack(lambda peer: peer.close(), TRIES)
    print(f'--- at each try: {code}\n{text}')
    assert code == 76 and 'could not connect with gloo in 5 tries' in text
    # What gloo does not forgive: data for a buffer that does not exist.
    code, text = attack(send(message(SEND, 12345, b'x')))
    print(f'--- speaks gloo: {code}\n{text}')
    assert code == 76 and 'gloo failed in its own thread' in text and 'Another program' in text


if __name__ == '__main__':
    main()
