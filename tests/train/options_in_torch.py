# SPDX-License-Identifier: BSD-3-Clause
# options_in_torch.py BERTH: train with PyTorch and with berth, with the same options, from the same weights,
# on the same files. Covers DistributedSampler's order, micro-batches of each rank with their own batch
# statistics, label smoothing, weight decay on weights only, Nesterov, a warm-up and a schedule. Compares each
# loss and the final weights, running statistics and num_batches_tracked.
import json
import os
import struct
import subprocess
import sys
import tempfile
import warnings

try:
    import numpy
    import torch
    from torch import nn
    from torch.optim import lr_scheduler
    from torch.utils.data import DistributedSampler
except ImportError:
    print('skipped: this python3 has no torch (Debian: python3-torch)')
    sys.exit(77)

SIDE, SAMPLES, CLASSES = 16, 44, 10
MEAN, DEVIATION = 0.1307, 0.3081
BATCH, RANKS, ACCUMULATE = 4, 2, 3
GAMMA, SMOOTHING, DECAY, WARMUP = 0.5, 0.1, 0.05, 1
# model: epochs, learning rate (small, as two correct ResNets soon drift apart), loss tolerance, more options
CASES = {'convnet': (3, 0.02, 1e-6, ()), 'resnet18': (2, 0.001, 1e-4, ('--stem', 'cifar'))}


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 120), nn.Linear(120, 84), nn.Linear(84, CLASSES)

    def forward(self, x):
        pool = nn.functional.max_pool2d
        x = pool(torch.relu(self.conv1(x)), 2)
        x = pool(torch.relu(self.conv2(x)), 2)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x.flatten(1))))))


def resnet18():
    import torchvision
    model = torchvision.models.resnet18(num_classes=CLASSES)
    model.conv1 = nn.Conv2d(1, 64, 3, 1, 1, bias=False)
    model.maxpool = nn.Identity()
    return model


def write_data(folder):
    generator = numpy.random.default_rng(5)
    images = generator.integers(0, 256, (SAMPLES, SIDE, SIDE), dtype=numpy.uint8)
    labels = generator.integers(0, CLASSES, SAMPLES, dtype=numpy.uint8)
    for name in 'train', 't10k':
        with open(f'{folder}/{name}-images-idx3-ubyte', 'wb') as file:
            file.write(struct.pack('>4I', 0x803, SAMPLES, SIDE, SIDE) + images.tobytes())
        with open(f'{folder}/{name}-labels-idx1-ubyte', 'wb') as file:
            file.write(struct.pack('>2I', 0x801, SAMPLES) + labels.tobytes())
    x = (torch.from_numpy(images).float() / 255 - MEAN) / DEVIATION
    return x[:, None], torch.from_numpy(labels.astype(numpy.int64))


def read_model(path):
    data = open(path, 'rb').read()
    size = struct.unpack('<Q', data[:8])[0]
    types = {'F32': torch.float32, 'I64': torch.int64}
    out = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != '__metadata__':
            begin, end = (8 + size + at for at in entry['data_offsets'])
            out[name] = torch.frombuffer(bytearray(data[begin:end]), dtype=types[entry['dtype']]).reshape(entry['shape'])
    return out


def berth(model, folder, out, *more):
    command = [sys.argv[1], 'train', model, '-n', str(RANKS), '--data', f'mnist:{folder}', '--batch', str(BATCH),
               '--accumulate', str(ACCUMULATE), '--augment', 'none', '--no-eval', '--log-every', '1', '--seed', '9',
               '--ckpt', out, '--metrics', out, '--device', 'cpu-reference', *more]
    # Open MPI leaks memory of plug-ins that it has unloaded, so ASan has no symbol left to suppress by.
    environment = {**os.environ, 'ASAN_OPTIONS': os.environ.get('ASAN_OPTIONS', '') + ':detect_leaks=0'}
    subprocess.run(command, check=True, timeout=500, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env=environment)
    rows = [row for row in map(json.loads, open(f'{out}/metrics.jsonl')) if row['split'] == 'train']
    return read_model(f'{out}/model.safetensors'), [row['loss'] for row in rows], [row['lr'] for row in rows]


def train(model, x, labels, epochs, lr):
    """Like DistributedDataParallel with no_sync, but in one process, with separate buffers for each rank."""
    vectors = [p for p in model.parameters() if p.ndim == 1]
    weights = [p for p in model.parameters() if p.ndim > 1]
    optimizer = torch.optim.SGD([{'params': weights, 'weight_decay': DECAY}, {'params': vectors, 'weight_decay': 0}],
                                lr, momentum=0.9, nesterov=True)
    scheduler = lr_scheduler.SequentialLR(optimizer, [
        lr_scheduler.LinearLR(optimizer, 0.01, total_iters=WARMUP), lr_scheduler.StepLR(optimizer, 1, GAMMA)], [WARMUP])
    buffers = [{name: buffer.clone() for name, buffer in model.named_buffers()} for _ in range(RANKS)]
    samplers = [DistributedSampler(range(SAMPLES), RANKS, rank, seed=9) for rank in range(RANKS)]
    losses, rates = [], []
    model.train()
    for epoch in range(epochs):
        orders = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            orders.append(list(sampler))
        for begin in range(0, len(orders[0]), BATCH * ACCUMULATE):
            shares = [order[begin:begin + BATCH * ACCUMULATE] for order in orders]
            samples, total = sum(map(len, shares)), 0
            optimizer.zero_grad()
            for rank, share in enumerate(shares):
                model.load_state_dict(buffers[rank], strict=False)
                for at in range(0, len(share), BATCH):
                    mine = share[at:at + BATCH]
                    loss = nn.functional.cross_entropy(model(x[mine]), labels[mine], reduction='sum', label_smoothing=SMOOTHING)
                    (loss / samples).backward()
                    total += loss.item()
                buffers[rank] = {name: buffer.clone() for name, buffer in model.named_buffers()}
            losses.append(total / samples)
            rates.append(optimizer.param_groups[0]['lr'])
            optimizer.step()
        scheduler.step()
    model.load_state_dict(buffers[0], strict=False)
    return losses, rates


def compare(name, model, folder, x, labels):
    epochs, lr, tolerance, more = CASES[name]
    # One step with learning rate 0 gives berth's initial weights (PyTorch's to 1e-6); reset the statistics.
    first, _, _ = berth(name, folder, f'{folder}/{name}.0', '--steps', '1', '--lr', '0', *more)
    model.load_state_dict({key: value for key, value in first.items() if 'running' not in key and 'tracked' not in key},
                          strict=False)
    losses, rates = train(model, x, labels, epochs, lr)
    state, own_losses, own_rates = berth(
        name, folder, f'{folder}/{name}.1', '--epochs', str(epochs), '--lr', str(lr), '--momentum', '0.9', '--nesterov',
        '--weight-decay', str(DECAY), '--weight-decay-on', 'weights', '--label-smoothing', str(SMOOTHING),
        '--warmup', f'{WARMUP}e', '--schedule', 'step', '--step-size', '1', '--gamma', str(GAMMA), *more)
    assert len(own_losses) == len(losses), (len(own_losses), len(losses))
    assert max(abs(a - b) for a, b in zip(own_rates, rates)) < 1e-12, (own_rates, rates)
    off = max(abs(a - b) for a, b in zip(own_losses, losses))
    print(f'{name}: {len(losses)} updates, losses {losses[0]:.4f} to {losses[-1]:.4f}, off by at most {off:.2g}')
    assert off <= tolerance, (own_losses, losses)
    expected = model.state_dict()
    assert state.keys() == expected.keys(), sorted(state.keys() ^ expected.keys())
    for key, value in expected.items():
        error = (state[key] - value).double().norm() / max(value.double().norm(), 1)
        assert error <= (0 if key.endswith('tracked') else 10 * tolerance), (key, error, state[key], value)


torch.set_num_threads(1)
warnings.filterwarnings('ignore', 'The epoch parameter')  # SequentialLR's own call
with tempfile.TemporaryDirectory() as scratch:
    pictures, numbers = write_data(scratch)
    compare('convnet', Convnet(), scratch, pictures, numbers)
    try:
        import torchvision  # noqa: F401
    except ImportError:
        print('resnet18 skipped: this python3 has no torchvision (Debian: python3-torchvision)')
        sys.exit(0)
    compare('resnet18', resnet18(), scratch, pictures, numbers)
