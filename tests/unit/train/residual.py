# SPDX-License-Identifier: BSD-3-Clause
# Prints residual.txt: some updates of resnet18 in PyTorch, on data from a formula. Each update has two
# micro-batches of different sizes, label smoothing, Nesterov's momentum, and weight decay for matrices
# only; after each, the evaluation loss and sums of the running statistics. Also the gradients of the
# first update: the norm of each, and its sum with signs that depend on the position.
# Made with Debian's python3-torch 1.13.1 and python3-torchvision 0.14.1, one thread:
#   /usr/bin/python3 residual.py > residual.txt
import numpy
import torch
import torchvision
from torch.nn.functional import cross_entropy

UPDATES, SIDE, SIZES = 3, 64, (8, 5)
COUNT = sum(SIZES)


def batch(update):
    image = 3 * SIDE * SIDE
    at = numpy.arange(COUNT * image, dtype=numpy.uint64) + numpy.uint64(update * COUNT * image)
    mixed = (at * numpy.uint64(2654435761)) & numpy.uint64(0xffffffff)
    mixed = ((mixed ^ (mixed >> numpy.uint64(15))) * numpy.uint64(2246822519)) & numpy.uint64(0xffffffff)
    x = (mixed >> numpy.uint64(8)).astype(numpy.float32) * numpy.float32(2 ** -24) - numpy.float32(0.5)
    return torch.from_numpy(x.reshape(COUNT, 3, SIDE, SIDE)), torch.arange(COUNT) % 10


def signed_sum(values):
    at = numpy.arange(values.size, dtype=numpy.uint64)
    mixed = (at * numpy.uint64(2654435761)) & numpy.uint64(0xffffffff)
    signs = 1.0 - 2.0 * ((mixed >> numpy.uint64(15)) & numpy.uint64(1)).astype(numpy.float64)
    return float((values * signs).sum())


def updates(dtype, gradients):
    torch.manual_seed(5)
    model = torchvision.models.resnet18(num_classes=10).to(dtype)
    optimizer = torch.optim.SGD(
        [{'params': [p for p in model.parameters() if p.dim() > 1], 'weight_decay': 0.01},
         {'params': [p for p in model.parameters() if p.dim() == 1], 'weight_decay': 0}],
        lr=0.001, momentum=0.9, nesterov=True)
    for update in range(UPDATES):
        x, labels = batch(update)
        x = x.to(dtype)
        optimizer.zero_grad()
        model.train()
        total = 0
        for part in torch.arange(COUNT).split(SIZES):
            loss = cross_entropy(model(x[part]), labels[part], label_smoothing=0.1, reduction='sum') / COUNT
            loss.backward()
            total += loss.item()
        if not update:
            for name, param in model.named_parameters():
                values = param.grad.double().numpy().flatten()
                gradients.append((name, float(numpy.linalg.norm(values)), signed_sum(values)))
        optimizer.step()
        model.eval()
        with torch.no_grad():
            val = cross_entropy(model(x), labels).item()
        sums = [sum(buffer.double().sum().item() for name, buffer in model.named_buffers() if name.endswith(kind))
                for kind in ('running_mean', 'running_var')]
        yield total, val, *sums


torch.set_num_threads(1)
print('# SPDX-License-Identifier: BSD-3-Clause')
print(f'# By residual.py with PyTorch {torch.__version__}, torchvision {torchvision.__version__}.')
print('# update_float32|update LOSS LOSS-IN-EVALUATION SUM-OF-MEANS SUM-OF-VARIANCES')
for name, dtype in [('update_float32', torch.float32), ('update', torch.float64)]:
    gradients = []
    for row in updates(dtype, gradients):
        print(name, *map(repr, row))
print('# gradient NAME NORM SIGNED-SUM')
for name, norm, total in gradients:
    print('gradient', name, repr(norm), repr(total))
