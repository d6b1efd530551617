# SPDX-License-Identifier: BSD-3-Clause
# Prints losses.txt: the losses of 50 steps of convnet in PyTorch, on data from a formula.
# Made with Debian's python3-torch 1.13.1, one thread:
#   /usr/bin/python3 losses.py > losses.txt
import numpy
import torch
from torch import nn

STEPS, BATCH, SIDE = 50, 32, 28


def batch(step):
    first = numpy.uint64(step * BATCH * SIDE * SIDE)
    at = numpy.arange(BATCH * SIDE * SIDE, dtype=numpy.uint64) + first
    mixed = (at * numpy.uint64(2654435761)) & numpy.uint64(0xffffffff)
    mixed = ((mixed ^ (mixed >> numpy.uint64(15))) * numpy.uint64(2246822519)) & numpy.uint64(0xffffffff)
    x = (mixed >> numpy.uint64(8)).astype(numpy.float32) * numpy.float32(2 ** -24)
    labels = numpy.arange(BATCH) % 10
    row, column = numpy.divmod(numpy.arange(SIDE * SIDE), SIDE)
    # A bright patch, in a different place for each class.
    patch = (row[None, :] // 14 == labels[:, None] // 5) & (column[None, :] // 5 == labels[:, None] % 5)
    x = x - numpy.float32(0.5) + 2 * patch.reshape(-1).astype(numpy.float32)
    return torch.from_numpy(x.reshape(BATCH, 1, SIDE, SIDE)), torch.from_numpy(labels)


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(256, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        pool = nn.functional.max_pool2d
        x = pool(torch.relu(self.conv1(x)), 2)
        x = pool(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


def losses(double):
    torch.manual_seed(3)
    model = Convnet()
    if double:
        model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9, weight_decay=5e-4)
    out = []
    for step in range(STEPS):
        x, labels = batch(step)
        loss = nn.functional.cross_entropy(model(x.double() if double else x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


torch.set_num_threads(1)
print('# SPDX-License-Identifier: BSD-3-Clause')
print(f'# By losses.py with PyTorch {torch.__version__}, a row for each step: loss FLOAT32 FLOAT64')
for pair in zip(losses(False), losses(True)):
    print('loss', *map(repr, pair))
