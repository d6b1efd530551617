# SPDX-License-Identifier: BSD-3-Clause
# Prints models.txt: torchvision's ResNets: names, shapes and initial weights.
# Made with Debian's python3-torch 1.13.1 and python3-torchvision 0.14.1:
#   /usr/bin/python3 models.py > models.txt
# Names and shapes are stored as the CRC-32 of lines "NAME SIZE SIZE...". A tensor is stored as its first
# entries and its CRC-32 if berth reproduces PyTorch's bits, else its sum with signs that depend on the
# position.
import zlib

import numpy
import torch
import torchvision

HEAD = 4
MODELS = ['resnet18', 'resnet34', 'resnet50', 'resnet101', 'resnet152']


def names(tensors):
    text = ''.join(f'{name} {" ".join(map(str, tensor.shape))}\n' for name, tensor in tensors)
    return f'{len(tensors)} 0x{zlib.crc32(text.encode()):08x}'


def signed_sum(values):
    at = numpy.arange(values.size, dtype=numpy.uint64)
    mixed = (at * numpy.uint64(2654435761)) & numpy.uint64(0xffffffff)
    signs = 1.0 - 2.0 * ((mixed >> numpy.uint64(15)) & numpy.uint64(1)).astype(numpy.float64)
    return float((values.astype(numpy.float64) * signs).sum())


print('# SPDX-License-Identifier: BSD-3-Clause')
print(f'# By models.py with PyTorch {torch.__version__}, torchvision {torchvision.__version__}.')

print('# model NAME WEIGHTS PARAMS CRC BUFFERS CRC')
for model in MODELS:
    module = getattr(torchvision.models, model)()
    buffers = [entry for entry in module.named_buffers() if not entry[0].endswith('num_batches_tracked')]
    print('model', model, sum(p.numel() for p in module.parameters()), names(list(module.named_parameters())), names(buffers))

print('# initial MODEL CLASSES SEED NAME COUNT HEAD... normal|uniform CRC SUM')
for model, classes, seed in [('resnet18', 1000, 0), ('resnet18', 10, 2 ** 32 + 3), ('resnet50', 1000, 42)]:
    torch.manual_seed(seed)
    for name, tensor in getattr(torchvision.models, model)(num_classes=classes).named_parameters():
        values = tensor.detach().contiguous().flatten().numpy()
        if tensor.dim() == 1 and not name.startswith('fc'):
            # Ones and zeros.
            assert (values == (1 if name.endswith('weight') else 0)).all()
            continue
        head = [float(value).hex() for value in values[:HEAD]]
        normal = tensor.dim() == 4
        crc = 0 if normal else zlib.crc32(values.tobytes())
        print('initial', model, classes, seed, name, values.size, *head, 'normal' if normal else 'uniform',
              f'0x{crc:08x}', repr(signed_sum(values)))
