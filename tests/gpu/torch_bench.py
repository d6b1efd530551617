# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own speed on this GPU, synthetic data on the device, medians of steps.
    torch_bench.py baselines           a table: models, batches, bf16 and fp16, eager and compile
    torch_bench.py one MODEL BATCH AMP one row of it: resnet50 or resnet18-cifar
    torch_bench.py layers              each convolution of ResNet-50 beside max(FLOP, bytes)
channels_last, autocast, SGD with momentum; compile is max-autotune. Last line: one JSON object."""
import json
import statistics
import sys

import torch
import torchvision

DEVICE = 'cuda'
WARM, STEPS = 15, 40
HALF = {'bf16': torch.bfloat16, 'fp16': torch.float16}
# What one H200 was measured to do: for floors alone.
FLOPS, BYTES = 790e12, 4.3e12


def network(name):
    if name == 'resnet50':
        return torchvision.models.resnet50(), (3, 224, 224), 1000
    model = torchvision.models.resnet18(num_classes=1000)
    model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    return model, (3, 32, 32), 1000


def rate(name, batch, amp, compiled):
    """(images/s, peak bytes)"""
    torch.backends.cudnn.benchmark = True
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, shape, classes = network(name)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scaler = torch.cuda.amp.GradScaler(enabled=amp == 'fp16')
    x = torch.randn(batch, *shape, device=DEVICE).to(memory_format=torch.channels_last)
    y = torch.randint(0, classes, (batch,), device=DEVICE)

    def loss_of(images, labels):
        with torch.autocast(DEVICE, HALF[amp]):
            return torch.nn.functional.cross_entropy(model(images), labels)

    if compiled:
        loss_of = torch.compile(loss_of, mode='max-autotune')
    times = []
    for step in range(WARM + STEPS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        end.record()
        if step >= WARM:
            times.append((begin, end))
    torch.cuda.synchronize()
    ms = statistics.median(begin.elapsed_time(end) for begin, end in times)
    return batch / ms * 1e3, torch.cuda.max_memory_reserved()


def one(name, batch, amp):
    eager, memory = rate(name, batch, amp, False)
    torch._dynamo.reset()
    compiled, _ = rate(name, batch, amp, True)
    return {'model': name, 'batch': batch, 'amp': amp, 'eager': eager, 'compile': compiled, 'memory_bytes': memory}


def baselines():
    table = []
    for name, batches in (('resnet50', (128, 256, 512)), ('resnet18-cifar', (128, 512))):
        for batch in batches:
            for amp in HALF:
                try:
                    table.append(one(name, batch, amp))
                except torch.cuda.OutOfMemoryError:
                    table.append({'model': name, 'batch': batch, 'amp': amp, 'error': 'out of memory'})
                print(json.dumps(table[-1]), flush=True)
    return {'torch': torch.__version__, 'gpu': torch.cuda.get_device_name(), 'rows': table}


def layers(batch=256):
    torch.backends.cudnn.benchmark = True
    shapes = {}

    def look(module, inputs, output):
        key = (module.in_channels, module.out_channels, module.kernel_size[0], module.stride[0], inputs[0].shape[2])
        shapes[key] = shapes.get(key, 0) + 1

    model, _, _ = network('resnet50')
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(look)
    with torch.no_grad():
        model(torch.zeros(1, 3, 224, 224))
    table = []
    for (i, o, k, s, side), count in shapes.items():
        for amp, half in HALF.items():
            out = (side + 2 * (k // 2) - k) // s + 1
            x = torch.randn(batch, i, side, side, device=DEVICE, dtype=half, requires_grad=True)
            conv = torch.nn.Conv2d(i, o, k, s, k // 2, bias=False, device=DEVICE, dtype=half)
            x, conv = x.detach().to(memory_format=torch.channels_last).requires_grad_(), conv.to(
                memory_format=torch.channels_last)
            dy = torch.randn(batch, o, out, out, device=DEVICE, dtype=half).to(memory_format=torch.channels_last)
            times = {'forward': [], 'backward': []}
            for turn in range(25):
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
                marks[0].record()
                y = conv(x)
                marks[1].record()
                torch.autograd.grad(y, (x, conv.weight), dy)
                marks[2].record()
                torch.cuda.synchronize()
                if turn >= 5:
                    times['forward'].append(marks[0].elapsed_time(marks[1]))
                    times['backward'].append(marks[1].elapsed_time(marks[2]))
            flop = 2 * batch * o * out * out * i * k * k
            size = 2 * (x.numel() + dy.numel() + conv.weight.numel())
            table.append({'conv': f'{i}->{o} {k}x{k}/{s} {side}', 'count': count, 'amp': amp,
                          'forward_ms': statistics.median(times['forward']),
                          'forward_floor_ms': max(flop / FLOPS, size / BYTES) * 1e3,
                          'backward_ms': statistics.median(times['backward']),
                          'backward_floor_ms': 2 * max(flop / FLOPS, size / BYTES) * 1e3})
    return {'gpu': torch.cuda.get_device_name(), 'floors of': 'one H200: 790 TFLOP/s, 4.3 TB/s', 'rows': table}


def main():
    if sys.argv[1] == 'one':
        print(json.dumps(one(sys.argv[2], int(sys.argv[3]), sys.argv[4])))
    else:
        print(json.dumps({'baselines': baselines, 'layers': layers}[sys.argv[1]]()))


if __name__ == '__main__':
    main()
