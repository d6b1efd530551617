# SPDX-License-Identifier: BSD-3-Clause
"""test_layers.py LAYER_TIMES: on the fake GPU with a simulated clock: a convolution takes 1 ms, a kernel 0.2 ms.
Times belong to the right node, totals are correct, and floors match those worked out by hand."""
import json
import subprocess
import sys


def lines(*arguments):
    done = subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def near(a, b, by=1e-3):
    assert abs(a - b) <= by * (1 + abs(b)), (a, b)


def times():
    # Rates so low that floors are large enough to be compared.
    said = lines('convnet', '28', '2', 'bf16', '1e-6', '1e-6')
    nodes = [line for line in said if 'node' in line]
    types = [line for line in said if 'type' in line]
    last = said[-1]
    # Two convolutions with a bias, three linear layers, ReLUs and poolings; each forward and backward.
    assert sorted({n['node'] for n in nodes}) == list(range(11)) and len(nodes) == 22, nodes
    forward = [n for n in nodes if n['pass'] == 'forward']
    near(forward[0]['ms'], 1.2)
    near(forward[3]['ms'], 1.2)
    for n in forward:
        if n['op'] in ('relu', 'maxpool2d'):
            near(n['ms'], 0.2)
    backward = {n['node']: n for n in nodes if n['pass'] == 'backward'}
    # The second convolution also computes the gradient of its input.
    near(backward[3]['ms'] - backward[0]['ms'], 1)
    for t in types:
        own = [n for n in nodes if f"{n['op'].split('+')[0]} {n['pass']}" == t['type']]
        near(sum(n['ms'] for n in own), t['ms'])
        near(sum(n['floor_ms'] for n in own), t['floor_ms'])
        near(t['gap_ms'], t['ms'] - t['floor_ms'])
    assert [t['gap_ms'] for t in types] == sorted((t['gap_ms'] for t in types), reverse=True), types
    assert last['largest_gap'] == types[0]['type'] and last['gap_ms'] == types[0]['gap_ms'], last
    near(sum(n['ms'] for n in nodes), last['nodes_ms'])
    near(sum(n['floor_ms'] for n in nodes), last['floor_ms'])
    assert last['step_ms'] > 0 and last['arena_bytes'] > 0, last


def floors():
    def conv2(bytes_rate, flop_rate):
        said = lines('--floor', 'convnet', '28', '2', 'bf16', bytes_rate, flop_rate)
        return [n for n in said if n.get('node') == 3 and n['pass'] == 'forward'][0]['floor_ms']

    # 12x12x6 -> 8x8x16, 5x5, two samples.
    near(conv2('1e-6', '1e-6'), 2 * 2 * 8 * 8 * 16 * 25 * 6 / 1e6 * 1e3)
    near(conv2('1e-6', '1'), 2 * (2 * 12 * 12 * 6 + 2 * 8 * 8 * 16 + 16 * 25 * 6) / 1e6 * 1e3)
    # ResNet-50 at 224x224, 256 samples: 10,180 images/s were worked out separately, with other small items (masks of
    # ReLUs, gradients that are added at forks) and an update that is not a node.
    last = lines('--floor', 'resnet50', '224', '256', 'bf16')[-1]
    near(256 / (last['floor_ms'] / 1e3 + 0.5e-6 * 256), 10180, by=0.1)
    assert last['live_bytes'] <= last['arena_bytes'] <= 1.02 * last['live_bytes'], last
    print('ResNet-50, 256 samples of 224x224, bf16:', last)


times()
floors()
