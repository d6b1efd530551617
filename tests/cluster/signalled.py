#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A rank that reports each SIGUSR1 it receives, and exits with code 0 on SIGTERM."""
import os
import signal
import sys
import time

RANK = os.environ['RANK']


def signalled(*_):
    os.write(1, f'{RANK} was signalled\n'.encode())


def ends(*_):
    os.write(1, f'{RANK} ends\n'.encode())
    sys.exit(0)


signal.signal(signal.SIGUSR1, signalled)
signal.signal(signal.SIGTERM, ends)
print('up', RANK, flush=True)
for _ in range(600):
    time.sleep(0.1)
