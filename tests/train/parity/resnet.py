# SPDX-License-Identifier: BSD-3-Clause
"""resnet.py PARITY-STEPS THREADS DEVICE...: 50 steps of ResNet-18 (64x64, batch 32) with PyTorch and
with each device, from the same weights on the same batches, compared with the run in float64.

Rounding errors grow with each step in every correct program. So the distance from float64 must be
at most 3 times PyTorch's own, in the losses (mean of the differences) and in the final weights
(norm of the difference).

The float64 run takes minutes: resnet18.json stores its losses and a sketch of its final weights.
resnet.py --exact THREADS [FILE]: repeat that run; write it to FILE, or compare it with resnet18.json."""
import json
import os
import sys
import textwrap
import time

import lib
from lib import numpy, torch

STEPS, BATCH, SHAPE, CLASSES = 50, 32, (3, 64, 64), 10
LR, MOMENTUM, DECAY = 0.005, 0.9, 1e-4
SKETCH = 1024
REFERENCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'resnet18.json')


def begin(dtype=torch.float32):
    torch.manual_seed(0)
    module = lib.make('resnet18', SHAPE, CLASSES).to(dtype)
    return module, torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)


def pytorch(batches, dtype=torch.float32):
    module, optimizer = begin(dtype)
    losses = []
    for x, target in zip(*batches):
        loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(x).to(dtype)),
                                                 torch.from_numpy(target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return numpy.array(losses), {name: param.detach().numpy()
                                 for name, param in module.named_parameters()}


def sketch(weights):
    """SKETCH sums of the weights with random signs: the norm of a difference of two sketches is
    that of the weights' difference within about 4 %."""
    flat = numpy.concatenate([weights[name].ravel() for name in sorted(weights)]).astype(numpy.float64)
    flat *= numpy.random.RandomState(7).randint(0, 2, flat.size) * 2 - 1
    return numpy.pad(flat, (0, -flat.size % SKETCH)).reshape(-1, SKETCH).sum(0)


def ours(program, device, batches):
    module, optimizer = begin()
    out = lib.steps(program, device, {
        **lib.state_of(module, optimizer), 'x': batches[0], 'target': batches[1],
        'lr': numpy.full(STEPS, LR)},
        model='resnet18', classes=CLASSES, momentum=MOMENTUM, weight_decay=DECAY)
    return out['loss'], {name: out[name] for name, _ in module.named_parameters()}


def exact(batches, path):
    begun = time.monotonic()
    losses, weights = pytorch(batches, torch.float64)
    print(f'{STEPS} steps in float64: {time.monotonic() - begun:.0f} s')
    made = {'losses': losses.tolist(), 'norm': float(numpy.sqrt(sum(
        (value.astype(numpy.float64) ** 2).sum() for value in weights.values()))),
        'sketch': [float(f'{value:.9e}') for value in sketch(weights)]}
    if path:
        with open(path, 'w', encoding='utf-8') as file:
            text = json.dumps({'by': f'resnet.py with PyTorch {torch.__version__}', **made})
            file.write(textwrap.fill(text, 118, break_on_hyphens=False) + '\n')
        return
    checks = lib.Checks()
    with open(REFERENCE, encoding='utf-8') as file:
        kept = json.load(file)
    # A different last bit of an initial weight (another CPU's log and cos) grows like any rounding error.
    for what in 'losses', 'sketch':
        checks.at_most(f'{what} of resnet18.json', lib.distance(kept[what], made[what]), 1e-5)
    checks.end()


def main():
    batches = lib.batches(STEPS, BATCH, SHAPE, CLASSES, 2)
    exact_only = sys.argv[1] == '--exact'
    torch.set_num_threads(int(sys.argv[2]))
    if exact_only:
        exact(batches, sys.argv[3] if len(sys.argv) > 3 else None)
        return
    program, devices, checks = sys.argv[1], sys.argv[3:], lib.Checks()
    with open(REFERENCE, encoding='utf-8') as file:
        kept = json.load(file)

    def far(losses, weights):
        return (float(numpy.abs(losses - kept['losses']).mean()),
                float(numpy.linalg.norm(sketch(weights) - kept['sketch']) / kept['norm']))

    theirs = far(*pytorch(batches))
    print(f'PyTorch: losses {theirs[0]:.2e} from float64, weights {theirs[1]:.2e}')
    for device in devices:
        for what, own, other in zip(('losses', 'weights'), far(*ours(program, device, batches)), theirs):
            checks.at_most(f'{device}: {what} {own:.2e} from float64, relative to PyTorch\'s distance',
                           own / other, 3)
    checks.end()


main()
