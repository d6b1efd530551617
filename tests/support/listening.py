# SPDX-License-Identifier: BSD-3-Clause
"""Which ports a process listens on."""
import os
import re


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
