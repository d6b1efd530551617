# SPDX-License-Identifier: BSD-3-Clause
# Prints vectors.txt: PyTorch's random numbers for given seeds, on a CPU with AVX2 (its uniform_ uses FMA there).
# Made with Debian's python3-torch 1.13.1:
#   /usr/bin/python3 vectors.py > vectors.txt
# A LIST is its length, its first entries (padded with 0) and zlib's crc32 of all entries as little-endian words.
import math
import zlib

import torch
from torch.utils.data import DistributedSampler

HEAD = 6


def row(values, dtype):
    tensor = torch.as_tensor(values).detach().to(dtype).contiguous().flatten()
    crc = zlib.crc32(tensor.numpy().tobytes())
    head = tensor[:HEAD].tolist() + [0] * max(0, HEAD - tensor.numel())
    if dtype == torch.float32:
        head = [float(value).hex() for value in head]
    return f'{tensor.numel()} {" ".join(map(str, head))} 0x{crc:08x}'


def draws(seed, count):
    torch.manual_seed(seed)
    # One 32-bit draw each: below 2^32 random_ takes the remainder.
    return torch.empty(count, dtype=torch.int64).random_(0, 2 ** 32 - 1)


print('# SPDX-License-Identifier: BSD-3-Clause')
print(f'# By vectors.py with PyTorch {torch.__version__}: LIST is explained there.')

print('# permutation SEED LIST')
for seed, n in [(0, 1), (0, 2), (0, 10), (1, 10), (42, 3), (7, 624), (7, 625), (123, 1000), (0, 60000),
                (2 ** 33 + 5, 50000), (2 ** 32 - 1, 1001), (2 ** 63 - 1, 100)]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    print('permutation', seed, row(torch.randperm(n, generator=generator), torch.int32))

print('# uniform SEED LOW HIGH LIST')
for seed, low, high, n in [(0, 0, 1, 1), (0, 0, 1, 1300), (3, -0.2, 0.2, 700), (5, -1 / math.sqrt(784), 1 / math.sqrt(784), 999)]:
    torch.manual_seed(seed)
    print('uniform', seed, repr(low), repr(high), row(torch.empty(n).uniform_(low, high), torch.float32))

print('# order SAMPLES WORLD SEED EPOCH SHUFFLE RANK LIST')
for n, world, seed, epoch, shuffle in [
        (1, 1, 0, 0, 1), (1, 4, 0, 0, 1), (2, 5, 1, 3, 1), (3, 8, 2, 1, 1), (3, 16, 2, 1, 0), (10, 1, 0, 0, 1),
        (10, 2, 0, 0, 1), (10, 3, 0, 0, 1), (10, 3, 0, 1, 1), (10, 4, 7, 5, 1), (10, 3, 0, 2, 0), (1000, 1, 42, 9, 1),
        (1000, 7, 42, 9, 1), (1001, 64, 1, 2, 1), (60000, 1, 0, 0, 1), (60000, 2, 0, 0, 1), (60000, 2, 0, 14, 1),
        (60000, 7, 3, 1, 1), (60001, 8, 2 ** 33 + 5, 4, 1), (50000, 512, 0, 89, 1)]:
    for rank in sorted({0, world // 2, world - 1}):
        sampler = DistributedSampler(range(n), world, rank, bool(shuffle), seed)
        sampler.set_epoch(epoch)
        print('order', n, world, seed, epoch, shuffle, rank, row(list(sampler), torch.int32))


class Convnet(torch.nn.Module):
    def __init__(self, channels, side, classes):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, 6, 5)
        self.conv2 = torch.nn.Conv2d(6, 16, 5)
        left = ((side - 4) // 2 - 4) // 2
        self.fc1 = torch.nn.Linear(16 * left * left, 120)
        self.fc2 = torch.nn.Linear(120, 84)
        self.fc3 = torch.nn.Linear(84, classes)


print('# weight MODEL CHANNELS SIDE CLASSES SEED NAME LIST')
for model, make in {'linear': lambda c, s, k: torch.nn.Linear(c * s * s, k), 'convnet': Convnet}.items():
    for channels, side, classes, seed in [(1, 28, 10, 0), (1, 28, 10, 3), (3, 32, 7, 2 ** 32 + 1)]:
        torch.manual_seed(seed)
        for name, weight in make(channels, side, classes).named_parameters():
            print('weight', model, channels, side, classes, seed, name, row(weight, torch.float32))
