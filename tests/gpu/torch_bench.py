# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own speed on this GPU, synthetic data on the device, medians of steps.
    torch_bench.py serve    answer each line MODEL BATCH AMP KIND (resnet50 or resnet18-cifar, bf16 or fp16, eager or
                            compile) with one JSON object; compiled models are kept for the next request
    torch_bench.py layers   each convolution of ResNet-50 compared with max(FLOP, bytes); last line: one JSON object
channels_last, autocast, SGD with momentum; compile is max-autotune."""
import json
import statistics
import sys

import torch
import torchvision

DEVICE = 'cuda'
WARM, STEPS = 15, 40
HALF = {'bf16': torch.bfloat16, 'fp16': torch.float16}
# Measured rates of one H200, only for floors.
FLOPS, BYTES = 790e12, 4.3e12


def network(name):
    if name == 'resnet50':
        return torchvision.models.resnet50(), (3, 224, 224), 1000
    model = torchvision.models.resnet18(num_classes=1000)
    model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    return model, (3, 32, 32), 1000


class Training:
    """A network that is trained repeatedly on one batch."""

    def __init__(self, name, batch, amp, compiled):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        self.batch, self.amp, self.warm = batch, amp, WARM
        model, shape, classes = network(name)
        self.model = model.to(DEVICE, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
        scaler = getattr(torch.amp, 'GradScaler', None) or torch.cuda.amp.GradScaler
        self.scaler = scaler(enabled=amp == 'fp16')
        self.x = torch.randn(batch, *shape, device=DEVICE).to(memory_format=torch.channels_last)
        self.y = torch.randint(0, classes, (batch,), device=DEVICE)
        self.loss = torch.compile(self.loss_of, mode='max-autotune') if compiled else self.loss_of
        self.images_per_s()
        self.memory_bytes = torch.cuda.max_memory_reserved() - before

    def loss_of(self, images, labels):
        with torch.autocast(DEVICE, HALF[self.amp]):
            return torch.nn.functional.cross_entropy(self.model(images), labels)

    def images_per_s(self):
        times = []
        for step in range(self.warm + STEPS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(self.loss(self.x, self.y)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            end.record()
            if step >= self.warm:
                times.append((begin, end))
        torch.cuda.synchronize()
        return self.batch / statistics.median(begin.elapsed_time(end) for begin, end in times) * 1e3


def serve():
    torch.backends.cudnn.benchmark = True
    known, last = {}, None
    for line in sys.stdin:
        asked = line.strip()
        name, batch, amp, kind = asked.split()
        answer = {'asked': asked, 'torch': torch.__version__}
        try:
            # Another network: free the memory of the previous one.
            if last not in (None, (name, batch, amp)):
                known.clear()
                torch._dynamo.reset()
            last = (name, batch, amp)
            if kind not in known:
                known[kind] = Training(name, int(batch), amp, kind == 'compile')
            answer.update(images_per_s=known[kind].images_per_s(), memory_bytes=known[kind].memory_bytes)
        except Exception as why:  # any error of the compiler: the next row may work
            known.pop(kind, None)
            answer['error'] = f'{type(why).__name__}: {why}'[:500]
        print(json.dumps(answer), flush=True)


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


if __name__ == '__main__':
    if sys.argv[1] == 'serve':
        serve()
    else:
        print(json.dumps(layers()))
