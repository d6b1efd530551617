# SPDX-License-Identifier: BSD-3-Clause
"""step.py PARITY-STEPS THREADS STATES DEVICE...: one step of ResNet-18 from PyTorch's own states.

PyTorch trains 40 steps (64x64, batch 32). From its state at steps 0, 10, 20, 30 and 40 each device
makes one step, and so does PyTorch; both are compared with the same step in float64. STATES names the
steps that this run compares, separated by commas: a test each for the first and the last ones.

If the input of a ReLU is so close to zero that rounding decides its sign, two correct programs may
differ in whether its gradient passes. In the last layers one such element changes every gradient
before it by 5e-3 (also between two runs of PyTorch), so that no useful bound exists. The test
therefore uses, of 16 batches, the one whose ReLUs are least likely to be decided by rounding. If a
gradient is too far nevertheless, it uses the next one, up to TRIES. Values that no ReLU changes must
be correct in each try: the loss, the running statistics, the last layer's gradients, the update."""
import copy
import sys
import time

import lib
from lib import numpy, torch

SHAPE, CLASSES, BATCH = (3, 64, 64), 10, 32
STATES, CANDIDATES, TRIES = (0, 10, 20, 30, 40), 16, 6
LR, MOMENTUM, DECAY = 0.005, 0.9, 1e-4
ROUNDING = 2e-6  # rounding error of a late layer's elements, in standard deviations


def gradients(module, x, target):
    loss = torch.nn.functional.cross_entropy(module(x), target)
    module.zero_grad()
    loss.backward()
    return loss.item(), {name: param.grad.numpy().copy() for name, param in module.named_parameters()}


def undecided(module, x):
    """The expected number of ReLUs that rounding decides; those of layer3 and layer4, on which most gradients
    depend, count ten times."""
    module, expected = copy.deepcopy(module), []

    def look(into, weight):
        near = into.abs() / (ROUNDING * into.std())
        expected.append(weight * torch.special.ndtr(-near[near < 5]).sum().item())

    for name, part in module.named_modules():
        if isinstance(part, torch.nn.ReLU):
            weight = 1 if name.startswith(('layer3', 'layer4')) else 0.1
            part.register_forward_pre_hook(lambda _, into, weight=weight: look(into[0], weight))
    with torch.no_grad():
        module(x)
    return sum(expected)


def sgd(state, grads):
    """torch.optim.SGD's step in float64: weights and momentum by name."""
    weights, momentum = {}, {}
    for name, grad in grads.items():
        weight = state[name].astype(numpy.float64)
        momentum[name] = MOMENTUM * state[lib.MOMENTUM + name] + (grad + DECAY * weight)
        weights[name] = weight - LR * momentum[name]
    return weights, momentum


class State:
    """One of PyTorch's states with a batch: the result of one step in float64."""

    def __init__(self, module, optimizer, batch):
        self.batch, self.module = batch, module
        self.tensors = lib.state_of(module, optimizer)
        self.x, self.target = (torch.from_numpy(part) for part in batch)
        self.exact = copy.deepcopy(module).double()
        self.loss, self.grads = gradients(self.exact, self.x.double(), self.target)

    def off(self, loss, grads, buffers):
        """The errors of a step's results: the worst gradient's name, and four figures."""
        each = {name: lib.distance(grads[name], self.grads[name]) for name in self.grads}
        worst = max(each, key=each.get)
        statistics = max(lib.distance(buffers[name], value)
                         for name, value in self.exact.named_buffers() if 'running' in name)
        return (worst, abs(loss - self.loss) / self.loss, each[worst],
                float(numpy.median(list(each.values()))), statistics)

    def pytorch(self):
        module = copy.deepcopy(self.module)
        loss, grads = gradients(module, self.x, self.target)
        name, *figures = self.off(loss, grads, dict(module.named_buffers()))
        print(f'  PyTorch: loss {figures[0]:.2e}, worst gradient {figures[1]:.2e} ({name}), median '
              f'{figures[2]:.2e}, running statistics {figures[3]:.2e}')

    def ours(self, checks, program, device):
        """Check one step; return false if a gradient is too far."""
        out = lib.steps(program, device, {
            **self.tensors, 'x': self.batch[0][None], 'target': self.batch[1][None],
            'lr': numpy.array([LR])},
            model='resnet18', classes=CLASSES, momentum=MOMENTUM, weight_decay=DECAY)
        grads = {name: out['grad.' + name] for name in self.grads}
        name, loss, worst, median, statistics = self.off(out['loss'][0], grads, out)
        print(f'  {device}: loss {loss:.2e}, worst gradient {worst:.2e} ({name}), median '
              f'{median:.2e}, running statistics {statistics:.2e}')
        checks.at_most('the loss', loss, 1e-6, quiet=True)
        checks.at_most('running statistics', statistics, 2e-6, quiet=True)
        checks.at_most('a gradient that no ReLU changes', worst, 5e-2, quiet=True)
        for last in 'fc.weight', 'fc.bias':
            checks.at_most(last, lib.distance(grads[last], self.grads[last]), 1e-5, quiet=True)
        weights, momentum = sgd(self.tensors, grads)
        update = max(max(lib.distance(out[name], weights[name]),
                         lib.distance(out[lib.MOMENTUM + name], momentum[name])) for name in grads)
        checks.at_most('the update from these gradients', update, 1e-6, quiet=True)
        checks.true('num_batches_tracked', all(
            out[name] == value + 1 for name, value in self.tensors.items() if 'num_batches' in name))
        return worst <= 1e-2 and median <= 1e-5


def check_state(checks, program, devices, module, optimizer, batches):
    """batches: the safest first."""
    left = list(devices)
    for number, batch in enumerate(batches[:TRIES]):
        state = State(module, optimizer, batch)
        state.pytorch()
        left = [device for device in left if not state.ours(checks, program, device)]
        if not left:
            return
        print(f'  {", ".join(left)}: too far (worst 1e-2, median 1e-5); '
              f'another batch will show whether a ReLU was the reason (try {number + 1})')
    checks.true(f'{", ".join(left)}: a gradient is too far with each of {TRIES} batches', False)


def main():
    program, threads, devices = sys.argv[1], int(sys.argv[2]), sys.argv[4:]
    states = [int(step) for step in sys.argv[3].split(',')]
    assert set(states) <= set(STATES), states
    checks = lib.Checks()
    torch.set_num_threads(threads)
    x, target = lib.batches(STATES[-1] + CANDIDATES, BATCH, SHAPE, CLASSES, 1)
    torch.manual_seed(0)
    module = lib.make('resnet18', SHAPE, CLASSES)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    begin = time.monotonic()
    for step in range(states[-1] + 1):
        if step in states:
            risks = [undecided(module, torch.from_numpy(x[step + k])) for k in range(CANDIDATES)]
            order = step + numpy.argsort(risks)
            print(f'step {step}: batch {order[0]}, risk {min(risks):.2f} (median '
                  f'{numpy.median(risks):.2f}), after {time.monotonic() - begin:.0f} s', flush=True)
            check_state(checks, program, devices, module, optimizer,
                        [(x[k], target[k]) for k in order])
        gradients(module, torch.from_numpy(x[step]), torch.from_numpy(target[step]))
        optimizer.step()
    checks.end()


main()
