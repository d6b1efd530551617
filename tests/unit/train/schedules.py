# SPDX-License-Identifier: BSD-3-Clause
# Prints schedules.txt: learning rates of PyTorch's schedulers, each in the composition that
# lib/train/model/schedule.h names. Made with Debian's python3-torch 1.13.1:
#   /usr/bin/python3 schedules.py > schedules.txt
import warnings

import torch
from torch.optim import lr_scheduler

warnings.filterwarnings('ignore')
PER_EPOCH = 3  # updates


def main_scheduler(optimizer, kind, epochs, step_size, gamma, milestones):
    return {
        'constant': lambda: lr_scheduler.ConstantLR(optimizer, factor=1, total_iters=0),
        'step': lambda: lr_scheduler.StepLR(optimizer, step_size, gamma),
        'multistep': lambda: lr_scheduler.MultiStepLR(optimizer, milestones, gamma),
        'cosine': lambda: lr_scheduler.CosineAnnealingLR(optimizer, epochs, 0),
    }[kind]()


def rates(kind, lr, epochs, step_size, gamma, milestones, unit, warmup, start):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr)
    each_update = None
    if unit == 'EPOCHS':
        first = lr_scheduler.LinearLR(optimizer, start, total_iters=warmup)
        second = main_scheduler(optimizer, kind, epochs - warmup, step_size, gamma, milestones)
        each_epoch = lr_scheduler.SequentialLR(optimizer, [first, second], [warmup])
    else:
        each_epoch = main_scheduler(optimizer, kind, epochs, step_size, gamma, milestones)
        if unit == 'STEPS':
            each_update = lr_scheduler.LinearLR(optimizer, start, total_iters=warmup)
    out = []
    for _ in range(epochs):
        for _ in range(PER_EPOCH):
            out.append(optimizer.param_groups[0]['lr'])
            optimizer.step()
            if each_update:
                each_update.step()
        each_epoch.step()
    return out


print('# SPDX-License-Identifier: BSD-3-Clause')
print(f'# By schedules.py with PyTorch {torch.__version__}.')
print('# schedule KIND LR EPOCHS STEP-SIZE GAMMA MILESTONES WARMUP START UPDATES-PER-EPOCH LR-OF-EACH-UPDATE...')
for kind in 'constant', 'step', 'multistep', 'cosine':
    for lr, epochs, step_size, gamma, milestones, unit, warmup, start in [
            (0.1, 12, 3, 0.1, [2, 5, 11], 'NONE', 0, 0),
            (0.3, 9, 1, 0.85, [1, 2, 3, 8], 'EPOCHS', 1, 0.01),
            (0.256, 12, 4, 0.1, [2, 3, 7], 'EPOCHS', 5, 0.2),
            (0.1, 6, 2, 0.5, [4], 'STEPS', 7, 0.001),
            (0.05, 4, 10, 0.1, [1, 2], 'STEPS', 100, 0.25),
            (0.4, 1, 1, 0.1, [1], 'NONE', 0, 0)]:
        values = rates(kind, lr, epochs, step_size, gamma, milestones, unit, warmup, start)
        print('schedule', kind, repr(lr), epochs, step_size, repr(gamma), ','.join(map(str, milestones)),
              f'{warmup}{"e" if unit == "EPOCHS" else ""}', repr(start), PER_EPOCH, *map(repr, values))
