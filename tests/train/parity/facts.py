# SPDX-License-Identifier: BSD-3-Clause
"""facts.py BERTH PARITY-STEPS DEVICES MODEL...: compares what berth adopts from PyTorch with PyTorch itself:
orders, initial weights of each MODEL, learning rates, and model.safetensors loaded into PyTorch's
modules, whose evaluation must equal the one that berth train printed. DEVICES: "cpu-reference cpu"."""
import json
import random
import struct
import subprocess
import sys
import tempfile
import warnings

import lib
from lib import numpy, torch
from torch.optim import lr_scheduler
from torch.utils.data import DistributedSampler

CHECKS = lib.Checks()
BERTH, STEPS, DEVICES, MODELS = sys.argv[1], sys.argv[2], sys.argv[3].split(), sys.argv[4:]


def train(model, *options):
    done = subprocess.run([BERTH, 'train', model, *map(str, options)], check=True, timeout=240,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout


# ---- orders ----

def orders():
    """Edge cases chosen by hand, and random rows (the seed is printed)."""
    drawn = random.SystemRandom().randrange(2 ** 32)
    source = random.Random(drawn)
    rows = [(1, 1, 0, 0), (1, 3, 2, 1), (2, 5, 1, 3), (10, 3, 0, 2), (12, 4, 0, 0), (60001, 2, 2 ** 32 + 5, 14),
            (1000, 7, 2 ** 63 - 90, 89)]
    rows += [(source.randrange(1, 5000), source.randrange(1, 9), source.randrange(2 ** 40),
              source.randrange(200)) for _ in range(8)]
    for samples, world, seed, epoch in rows:
        told = train('linear', '-n', world, '--data', f'synthetic:1,n={samples}', '--seed', seed,
                     '--epoch', epoch, '--print-order', samples)
        want = []
        for rank in range(world):
            sampler = DistributedSampler(range(samples), world, rank, seed=seed)
            sampler.set_epoch(epoch)
            want.append(f'rank {rank}: ' + ' '.join(map(str, sampler)) + '\n')
        CHECKS.true(f'the order of {samples} samples, {world} ranks, seed {seed}, epoch {epoch}',
                    told == ''.join(want))
    print(f'orders: {len(rows)} rows, drawn from {drawn}')


# ---- initial weights ----

def initial():
    for model in MODELS:
        for seed, classes in (0, 1000), (2 ** 32 + 3, 7):
            shape = (1, 28, 28) if model in ('convnet', 'linear') else (3, 64, 64)
            out = lib.steps(STEPS, 'cpu-reference', {
                'x': numpy.zeros((0, 1, *shape), numpy.float32), 'target': numpy.zeros((0, 1), numpy.int64),
                'lr': numpy.zeros(0)}, model=model, classes=classes, seed=seed)
            torch.manual_seed(seed)
            state = lib.make(model, shape, classes).state_dict()
            CHECKS.true(f'{model}: names {sorted(state.keys() ^ out.keys())}',
                        state.keys() ^ out.keys() == {'loss'})
            worst, different = 0, []
            for name, value in state.items():
                if value.dim() == 4 and model.startswith('resnet'):
                    # Normal distributions: PyTorch's vectorized log and cos differ from libm's.
                    worst = max(worst, float(numpy.abs(out[name] - value.numpy()).max()))
                elif not (out[name] == value.numpy()).all():
                    different.append(name)
            CHECKS.true(f'{model}, seed {seed}: the bits of {different}', not different)
            CHECKS.at_most(f'{model}, seed {seed}: largest distance of a normal weight', worst, 1e-6)


# ---- learning rates ----

def rates():
    """Epochs of 2 steps under each schedule, with a warm-up of 2 epochs."""
    lr, epochs, start = 0.3, 7, 0.05
    mains = {
        ('--schedule', 'step', '--step-size', '2', '--gamma', '0.5'):
            lambda o: lr_scheduler.StepLR(o, 2, 0.5),
        ('--schedule', 'multistep', '--milestones', '1,4', '--gamma', '0.2'):
            lambda o: lr_scheduler.MultiStepLR(o, [1, 4], 0.2),
        ('--schedule', 'cosine'): lambda o: lr_scheduler.CosineAnnealingLR(o, epochs - 2),
        ('--schedule', 'constant'): lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, (options, main) in enumerate(mains.items()):
            train('linear', '-n', 1, '--data', 'synthetic:4,n=40,classes=2', '--batch', 20, '--epochs', epochs,
                  '--lr', lr, '--warmup', '2e', '--warmup-start', start, '--log-every', 1, '--no-eval',
                  '--metrics', f'{folder}/{number}', *options)
            with open(f'{folder}/{number}/metrics.jsonl', encoding='utf-8') as file:
                told = [json.loads(line)['lr'] for line in file]
            optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
            scheduler = lr_scheduler.SequentialLR(
                optimizer, [lr_scheduler.LinearLR(optimizer, start, total_iters=2), main(optimizer)], [2])
            want = []
            for _ in range(epochs):
                want += [optimizer.param_groups[0]['lr']] * 2
                optimizer.step()
                scheduler.step()
            CHECKS.true(f'{options[1]}: {len(told)} rates', len(told) == len(want))
            CHECKS.at_most(f'{options[1]}: largest distance of a rate',
                           max(abs(a - b) for a, b in zip(told, want)), 1e-12)


# ---- model.safetensors ----

def write_images(folder, side, samples, classes):
    """IDX files that can be learned; the images and labels of t10k as PyTorch reads them."""
    for seed, split in enumerate(('train', 't10k')):
        x, labels = lib.batches(1, samples, (1, side, side), classes, 9)
        noise = numpy.random.RandomState(seed).randint(-20, 20, x[0].shape)
        images = numpy.clip(x[0] * 40 + 128 + noise, 0, 255).astype(numpy.uint8)
        with open(f'{folder}/{split}-images-idx3-ubyte', 'wb') as file:
            file.write(struct.pack('>4I', 0x803, samples, side, side) + images.tobytes())
        with open(f'{folder}/{split}-labels-idx1-ubyte', 'wb') as file:
            file.write(struct.pack('>2I', 0x801, samples) + labels[0].astype(numpy.uint8).tobytes())
    x = (torch.from_numpy(images).float() / 255 - 0.1307) / 0.3081
    return x, torch.from_numpy(labels[0])


def module_of(model, stem, side, classes):
    if model == 'convnet':
        return lib.Convnet(1, side, classes)
    module = lib.make(model, (3, side, side), classes)
    if stem == 'cifar':
        module.conv1, module.maxpool = torch.nn.Conv2d(1, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    else:
        module.conv1 = torch.nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    return module


def compare_logits(device, name, x, want, state, **model):
    """berth never prints its logits. But cross-entropy with each class as the target reveals them up to a common
    offset, and the mean of their squares reveals that offset."""
    samples, classes = want.shape
    alone = x.numpy()[:, None]  # one run per sample
    told = lib.steps(STEPS, device, {
        'x': numpy.repeat(alone, classes, 0), 'target': numpy.tile(numpy.arange(classes), samples)[:, None],
        'lr': numpy.zeros(samples * classes), **state}, eval=1, **model)['loss'].reshape(samples, classes)
    squares = lib.steps(STEPS, device, {
        'x': alone, 'target': numpy.zeros((samples, 1, classes), numpy.float32), 'lr': numpy.zeros(samples),
        **state}, eval=1, loss='mse', **model)['loss']
    log_softmax = want - numpy.log(numpy.exp(want).sum(1, keepdims=True))
    CHECKS.at_most(f'{device}, {name}: log-softmax of {samples} samples', lib.distance(-told, log_softmax), 1e-6)
    CHECKS.at_most(f'{device}, {name}: mean of the squared logits', lib.distance(squares, (want ** 2).mean(1)), 1e-5)


def evaluation():
    samples, classes = 70, 10  # IDX files have 10 classes
    for model, stem, side in ('convnet', 'default', 28), ('resnet18', 'default', 32), ('resnet18', 'cifar', 16):
        for device in DEVICES:
            with tempfile.TemporaryDirectory() as folder:
                x, target = write_images(folder, side, samples, classes)
                more = ['--stem', stem] if model.startswith('resnet') else []
                train(model, '-n', 2, '--data', f'mnist:{folder}', '--batch', 8, '--epochs', 1, '--lr', 0.01,
                      '--augment', 'none', *lib.on(device), '--ckpt', folder, '--metrics', folder, *more)
                with open(f'{folder}/metrics.jsonl', encoding='utf-8') as file:
                    row = [row for row in map(json.loads, file) if row['split'] == 'val'][-1]
                state = lib.read(f'{folder}/model.safetensors')[0]
            module = module_of(model, stem, side, classes)
            module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()},
                                   strict=True)
            module.eval()
            with torch.no_grad():
                logits = module(x).double()
            compare_logits(device, f'{model} ({stem})', x[:6], logits[:6].numpy(), state,
                           model=model, stem=stem, classes=classes)
            loss = torch.nn.functional.cross_entropy(logits, target).item()
            CHECKS.at_most(f'{device}, {model} ({stem}): the loss that berth evaluated, from PyTorch\'s '
                           f'{loss:.4f}', abs(row['loss'] - loss) / loss, 1e-6)
            places = (logits > logits.gather(1, target[:, None])).sum(1)
            for name, top in ('acc1', 1), ('acc5', 5):
                want = 100 * (places < top).sum().item() / samples
                CHECKS.true(f'{device}, {model}: {name} {row[name]}, PyTorch\'s {want}',
                            abs(row[name] - want) < 1e-9)


torch.set_num_threads(1)
warnings.filterwarnings('ignore')  # SequentialLR's own calls
orders()
rates()
evaluation()
initial()
CHECKS.end()
