# SPDX-License-Identifier: BSD-3-Clause
"""DDP over two epochs with berth.torch; PREFIX.seen.* lists what each rank has trained on."""
import os
import signal
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import berth
import berth.torch

prefix, path = sys.argv[1], sys.argv[1] + '.pt'
berth.torch.init()
stop = berth.torch.StopInTime(save_seconds=float(os.environ.get('SAVE_SECONDS', '0')))
dataset = torch.utils.data.TensorDataset(torch.arange(96.).unsqueeze(1), torch.arange(96))
sampler = berth.torch.ResumableSampler(dataset, seed=5)
model = torch.nn.Linear(1, 1)
step = 0
if os.path.exists(path):
    state = torch.load(path)
    step = state['step']
    model.load_state_dict(state['model'])
    sampler.load_state_dict(state['sampler'])
parallel = DistributedDataParallel(model) if berth.world_size() > 1 else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
seen = open(f'{prefix}.seen.{os.getpid()}', 'w', buffering=1, encoding='utf-8')
for epoch in range(sampler.epoch, 2 if 'SLEEP' not in os.environ else 1000):
    sampler.set_epoch(epoch)
    for x, names in DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=1):
        optimizer.zero_grad()
        parallel(x).square().mean().backward()
        optimizer.step()
        step += 1
        time.sleep(float(os.environ.get('SLEEP', '0')))
        for name in names.tolist():
            print(epoch, name, file=seen)
        sampler.advance(4)
        berth.heartbeat(step)
        if berth.rank() == berth.world_size() - 1:  # one rank decides
            if os.environ.get('SIGNAL_AT') == str(step):
                os.kill(os.getpid(), signal.SIGUSR1)
            stop._stop |= os.environ.get('STOP_AT') == str(step)
        if stop():
            if berth.rank() == 0:
                torch.save({'step': step, 'model': model.state_dict(), 'sampler': sampler.state_dict()}, path + '.new')
                os.replace(path + '.new', path)
                berth.report(saved=path, next='the same command')
            print(f'rank {berth.rank()} stopped at step {step}', flush=True)
            if torch.distributed.is_initialized():
                torch.distributed.barrier()
            sys.exit(berth.EXIT_STOPPED)
