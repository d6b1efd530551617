# SPDX-License-Identifier: BSD-3-Clause
"""torch_compare.py BERTH-TRAIN DEVICE off|bf16|fp16: ResNet-18 (--stem cifar) trained by berth and by PyTorch,
compared with the same training in float64, after one step and after 50. All start from the same weights and use
the same samples, order and rates. berth's distance from float64, relative to the change of the float64 run, must be
less than twice PyTorch's own, with a floor for tiny distances. Last line: one JSON object."""
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy
import torch
import torchvision

BATCH, LR, MOMENTUM, DECAY = 64, 0.02, 0.9, 5e-4
MEAN, DEVIATION = (.4914, .4822, .4465), (.2470, .2435, .2616)
FACTOR, FLOOR = 2.0, {'off': 1e-4, 'bf16': 5e-3, 'fp16': 1e-3}


def make_data(folder):
    """Files in CIFAR-10's format with synthetic images that can be learned."""
    random = numpy.random.RandomState(1)
    patterns = random.randint(0, 128, (10, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    images, labels = [], []
    for name in [f'data_batch_{i}.bin' for i in range(1, 6)] + ['test_batch.bin']:
        label = random.randint(0, 10, 10000).astype(numpy.uint8)
        image = (patterns[label] + random.randint(0, 128, (10000, 3, 32, 32))).astype(numpy.uint8)
        numpy.concatenate([label[:, None], image.reshape(10000, -1)], axis=1).tofile(os.path.join(folder, name))
        if name != 'test_batch.bin':
            images.append(image)
            labels.append(label)
    return numpy.concatenate(images), numpy.concatenate(labels)


def network():
    torch.manual_seed(3)
    model = torchvision.models.resnet18(num_classes=10)
    torch.manual_seed(3)
    model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    return model


def save(path, state):
    header, data, at = {}, [], 0
    kinds = {torch.float32: 'F32', torch.int64: 'I64'}
    for name, tensor in state.items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {'dtype': kinds[tensor.dtype], 'shape': list(tensor.shape), 'data_offsets': [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text + b''.join(data))


def load(path):
    with open(path, 'rb') as file:
        size = struct.unpack('<Q', file.read(8))[0]
        header, data = json.loads(file.read(size)), file.read()
    return {name: numpy.frombuffer(data[e['data_offsets'][0]:e['data_offsets'][1]], numpy.float32)
            for name, e in header.items() if name != '__metadata__' and e['dtype'] == 'F32'}


def by_torch(state, batches, device, precision):
    """Weights (float64) and losses; precision: off, bf16, fp16 or float64."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model = network()
    model.load_state_dict(state)
    kind = torch.float64 if precision == 'float64' else torch.float32
    model = model.to(device=device, dtype=kind)
    if kind == torch.float32 and device == 'cuda':
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    scaler = (getattr(torch.amp, 'GradScaler', None) or torch.cuda.amp.GradScaler)(enabled=precision == 'fp16')
    half = {'bf16': torch.bfloat16, 'fp16': torch.float16}.get(precision)
    losses = []
    for x, y in batches:
        x, y = x.to(device=device, dtype=kind), y.to(device)
        optimizer.zero_grad()
        with torch.autocast(device, half or torch.bfloat16, enabled=half is not None):
            loss = torch.nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return {name: value.double().cpu().numpy().ravel() for name, value in model.state_dict().items()
            if value.dtype.is_floating_point}, losses


def apart(one, exact, begin):
    """Distance from float64, relative to the change of the float64 run."""
    names = [name for name in exact if 'running' not in name]
    difference = sum(((one[n].astype(numpy.float64) - exact[n]) ** 2).sum() for n in names)
    way = sum(((exact[n] - begin[n].double().numpy().ravel()) ** 2).sum() for n in names)
    return float((difference / way) ** 0.5)


def main():
    trainer, device, amp = sys.argv[1:4]
    lengths = [int(n) for n in sys.argv[4:]] or [1, 50]
    found = {'amp': amp, 'good': True, 'torch': torch.__version__}
    with tempfile.TemporaryDirectory() as folder:
        images, labels = make_data(folder)
        begin = network().state_dict()
        save(os.path.join(folder, 'first.safetensors'), begin)
        common = [trainer, 'resnet18', '--stem', 'cifar', '--data', f'cifar10:{folder}', '--augment', 'none', '--batch',
                  str(BATCH), '--lr', str(LR), '--momentum', str(MOMENTUM), '--weight-decay', str(DECAY), '--schedule',
                  'constant', '--seed', '5']
        count = max(lengths) * BATCH
        printed = subprocess.run(common + ['--print-order', str(count)], capture_output=True, text=True, check=True,
                                 timeout=120).stdout
        order = [int(word) for word in printed.split(':')[1].split()][:count]
        mean, deviation = (numpy.array(v, numpy.float32)[:, None, None] for v in (MEAN, DEVIATION))
        batches = []
        for at in range(0, count, BATCH):
            chosen = order[at:at + BATCH]
            x = (images[chosen].astype(numpy.float32) / 255 - mean) / deviation
            batches.append((torch.from_numpy(x), torch.from_numpy(labels[chosen].astype(numpy.int64))))
        for steps in lengths:
            out = os.path.join(folder, f'out{steps}')
            subprocess.run(common + ['--init', os.path.join(folder, 'first.safetensors'), '--steps', str(steps),
                                     '--no-eval', '--log-every', '1', '--metrics', out, '--ckpt', out, '--device', device,
                                     *(['--cpu-conv', 'direct'] if device == 'cpu' else ['--amp', amp])],
                           stdout=subprocess.DEVNULL, check=True, timeout=800)
            with open(os.path.join(out, 'metrics.jsonl'), encoding='utf-8') as file:
                losses = [row['loss'] for row in map(json.loads, file) if row.get('split') == 'train']
            exact, exact_losses = by_torch(begin, batches[:steps], device, 'float64')
            other, other_losses = by_torch(begin, batches[:steps], device, amp)
            own = apart(load(os.path.join(out, 'model.safetensors')), exact, begin)
            theirs = apart(other, exact, begin)
            good = own <= FACTOR * theirs + FLOOR[amp]
            found[f'{steps} steps'] = {
                'berth from float64': own, 'PyTorch from float64': theirs, 'good': good,
                'last loss': {'berth': losses[-1], 'PyTorch': other_losses[-1], 'float64': exact_losses[-1]},
                'first loss': {'berth': losses[0], 'PyTorch': other_losses[0], 'float64': exact_losses[0]}}
            found['good'] = found['good'] and good
    print(json.dumps(found))


main()
