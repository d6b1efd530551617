# SPDX-License-Identifier: BSD-3-Clause
"""The simulated machine of the cluster's nodes: two packages, each with four cores and two H200,
Ethernet for management, and a fast NIC next to the GPUs of each package. Only one of the fast NICs is
connected. The generator of tests/fixtures/topo writes it."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'fixtures', 'topo'))
sys.dont_write_bytecode = True
import make_fixtures as make  # noqa: E402 (the path is set above)


def write(folder, name, fast='hsn0', kind='slingshot', gpus=True):
    """Write FOLDER/NAME.xml. fast: the connected NIC's name; None: the node has no such NIC."""
    def nic(busid, net, number):
        if kind == 'slingshot':
            return make.slingshot(busid, net)
        return make.ib(busid, f'mlx5_{number}', net)

    def package(p):
        base = 0x80 * p
        devices = [make.gpu(f'0000:{base + 1 + g:02x}:00.0') for g in range(2 if gpus else 0)]
        if fast:
            devices.append(nic(f'0000:{base + 4:02x}:00.0', fast if p == 0 else f'{fast}x', p))
        if p == 0:
            devices.append(make.eth('0000:05:00.0', 'eth0'))
        return make.simple_package(p, 4 * p, 4, [make.host(0, base, base + 0xf, *devices)])

    before = os.getcwd()
    os.chdir(folder)
    make.save(name, 'A node of the test cluster.', [package(p) for p in range(2)])
    os.chdir(before)


if __name__ == '__main__':
    write(*sys.argv[1:])
