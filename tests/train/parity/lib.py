# SPDX-License-Identifier: BSD-3-Clause
"""Shared by the comparisons with PyTorch: safetensors files, PyTorch's networks, synthetic data, and
parity-steps (steps.c)."""
import json
import os
import struct
import subprocess
import sys
import tempfile


def skip(why):
    print(f'skipped: {why}')
    sys.exit(77)


try:
    import numpy
    import torch
    import torchvision
except ImportError as error:
    skip(f'{sys.executable} cannot load {error.name} (Debian: python3-torchvision): {error}')

MOMENTUM = 'berth.momentum.'
TYPES = {'F32': numpy.float32, 'F64': numpy.float64, 'I64': numpy.int64}


def write(path, tensors, metadata):
    """Write a safetensors file of numpy arrays."""
    header, data = {'__metadata__': {key: str(value) for key, value in metadata.items()}}, []
    at = 0
    for name, array in tensors.items():
        array = numpy.asarray(array)
        kind = next(kind for kind, dtype in TYPES.items() if array.dtype == dtype)
        data.append(array.tobytes())
        header[name] = {'dtype': kind, 'shape': array.shape, 'data_offsets': [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text + b''.join(data))


def read(path):
    """(numpy arrays by name, metadata)"""
    with open(path, 'rb') as file:
        size = struct.unpack('<Q', file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    metadata = header.pop('__metadata__', {})
    out = {}
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        out[name] = numpy.frombuffer(data[begin:end], TYPES[entry['dtype']]).reshape(entry['shape'])
    return out, metadata


class Convnet(torch.nn.Module):
    """berth's convnet: its layers are made in this order."""

    def __init__(self, channels=1, side=28, classes=10):
        super().__init__()
        left = ((side - 4) // 2 - 4) // 2
        self.conv1 = torch.nn.Conv2d(channels, 6, 5)
        self.conv2 = torch.nn.Conv2d(6, 16, 5)
        self.fc1 = torch.nn.Linear(16 * left * left, 120)
        self.fc2 = torch.nn.Linear(120, 84)
        self.fc3 = torch.nn.Linear(84, classes)

    def forward(self, x):
        pool = torch.nn.functional.max_pool2d
        x = pool(torch.relu(self.conv1(x)), 2)
        x = pool(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class Linear(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1))


def make(model, shape, classes, stem='default'):
    """PyTorch's module of that name, initialized from the generator in its present state."""
    channels, side = shape[0], shape[1]
    if model == 'convnet':
        return Convnet(channels, side, classes)
    if model == 'linear':
        return Linear(channels * side * shape[2], classes)
    module = getattr(torchvision.models, model)(num_classes=classes)
    assert stem == 'default' and channels == 3
    return module


def batches(count, size, shape, classes, seed):
    """count batches that can be learned: x F32 [count][size]shape, target I64 [count][size]. Each
    class is a pattern of 8x8 patches with noise; exact in float32 on any machine."""
    random = numpy.random.RandomState(seed)
    coarse = random.randint(-128, 128, (classes, shape[0], 8, 8)).astype(numpy.float32) / 256
    row, column = (numpy.arange(side) * 8 // side for side in shape[1:])
    patterns = coarse[:, :, row][:, :, :, column]
    target = random.randint(0, classes, (count, size))
    x = random.randint(-256, 256, (count, size, *shape)).astype(numpy.float32) / 128
    for step in range(count):
        x[step] += patterns[target[step]]
    return x, target.astype(numpy.int64)


def state_of(module, optimizer=None):
    """Weights, buffers and momentum (zeros before the first step), as berth's checkpoints name
    them; copies."""
    out = {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}
    for name, param in module.named_parameters():
        momentum = optimizer.state.get(param, {}).get('momentum_buffer')
        out[MOMENTUM + name] = (numpy.zeros(param.shape, numpy.float32) if momentum is None
                                else momentum.numpy().copy())
    return out


def steps(program, device, tensors, **metadata):
    """The OUT of parity-steps for this IN; metadata: see steps.c."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, 'in'), os.path.join(folder, 'out')
        write(source, tensors, metadata)
        subprocess.run([program, device, source, result], check=True, timeout=1800,
                       stdout=subprocess.DEVNULL)
        return read(result)[0]


def on(device):
    """Options of berth train for that device at its most accurate."""
    return ['--device', device] + (['--cpu-conv', 'direct'] if device == 'cpu' else [])


def distance(one, other):
    """The norm of the difference relative to that of other, in float64."""
    one, other = numpy.asarray(one, numpy.float64), numpy.asarray(other, numpy.float64)
    return float(numpy.linalg.norm(one - other) / max(numpy.linalg.norm(other), 1e-300))


class Checks:
    """Prints each figure with its bound; end() reports whether all were met."""

    def __init__(self):
        self.failed = 0

    def at_most(self, what, value, bound, quiet=False):
        good = value <= bound  # false for NaN
        self.failed += not good
        if not good or not quiet:
            print(f'{"" if good else "TOO FAR: "}{what}: {value:.2e} (at most {bound:.0e})')

    def true(self, what, good):
        self.failed += not good
        if not good:
            print(f'FAILED: {what}')

    def end(self):
        print(f'{self.failed} checks failed' if self.failed else 'all within their bounds')
        sys.exit(1 if self.failed else 0)
