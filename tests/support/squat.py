#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Another user who takes the ports of a job: squat.py FILE [PORT | MILLISECONDS,PERIOD]

Find the ports that are bound but on which no one listens yet (or take PORT), listen on them, and append to FILE what
is received. MILLISECONDS,PERIOD: listen only that long in each period, so that a look once a second may miss it."""
import os
import select
import socket
import sys
import time

WORD = sys.argv[2] if len(sys.argv) > 2 else ''
UP, PERIOD = [int(part) / 1000 for part in WORD.split(',')] if ',' in WORD else (0, 0)


def is_reserved(port):
    try:
        with socket.socket() as one:
            one.bind(('', port))
        return False
    except OSError:
        return True


def listen(port):
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind(('', port))
        one.listen()
        return one
    except OSError:  # its server listens
        one.close()
        return None


def write(text):
    with open(sys.argv[1], 'a', encoding='latin-1') as out:
        out.write(text)


def receive(listeners, seconds):
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        for one in select.select(listeners, [], [], left)[0]:
            peer = one.accept()[0]
            peer.settimeout(1)
            try:
                data = peer.recv(65536)
                peer.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')
            except OSError:
                data = b''
            peer.close()
            write('connected\n' + data.decode('latin-1') + '\n')


ports = [int(WORD)] if WORD and not PERIOD else []
while not ports:
    ports = [port for port in range(20000, 32000) if is_reserved(port)]
    ports = [port for port in ports if (one := listen(port)) and not one.close()]
write(f'listens on {ports}\n')
end = time.monotonic() + 60 * float(os.environ.get('BERTH_TEST_SLOW', 1))
while time.monotonic() < end:
    listeners = [one for one in map(listen, ports) if one]
    if PERIOD:
        receive(listeners, UP)
        for one in listeners:
            one.close()
        time.sleep(PERIOD - UP)
    else:
        receive(listeners, 1)
        for one in listeners:
            one.close()
