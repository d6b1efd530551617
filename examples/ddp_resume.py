# SPDX-License-Identifier: BSD-3-Clause
"""Train a small network on images like CIFAR-10 with DDP, in as many jobs as it takes.

Slurm    #SBATCH --nodes=2 --gpus-per-node=4 --cpus-per-gpu=8 --time=1:00:00
         #SBATCH --requeue --open-mode=append
         berth run --requeue -- python examples/ddp_resume.py 100
PBS      #PBS -l select=2:ncpus=32:ngpus=4 -l place=scatter -l walltime=1:00:00
         cd "$PBS_O_WORKDIR"
         berth run --requeue -- python examples/ddp_resume.py 100
alone    berth run -n 4 -- python examples/ddp_resume.py 100

The argument is the number of epochs. The script saves every 1000 steps and before the time limit, and resumes from ckpt.pt, on any
number of ranks. Under PBS add the line `trap : TERM`. It needs berth's Python package (docs/guides/pytorch.md#the-python-package).
"""
import os
import sys

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import berth.torch

epochs = int(sys.argv[1])
device = berth.torch.init()  # init_process_group on this rank's device
stop = berth.torch.StopInTime(save_seconds=10)  # also handles SIGTERM and SIGUSR1

# Images with noise: class k has bright pixels in row k. Replace them by torchvision.datasets.CIFAR10.
generator = torch.Generator().manual_seed(3)
labels = torch.arange(1280) % 10
images = torch.randn(len(labels), 3, 32, 32, generator=generator)
images[torch.arange(len(labels)), :, labels] += 2
dataset = TensorDataset(images, labels)
sampler = berth.torch.ResumableSampler(dataset)

torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 16 * 16, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
saved, step = {'model': model, 'optimizer': optimizer, 'sampler': sampler}, 0
if os.path.exists('ckpt.pt'):
    state = torch.load('ckpt.pt', map_location=device)
    step = state.pop('step')
    for name in saved:
        saved[name].load_state_dict(state[name])
parallel = DistributedDataParallel(model) if berth.world_size() > 1 else model


def save():
    torch.save({'step': step, **{name: saved[name].state_dict() for name in saved}}, 'ckpt.new')
    os.replace('ckpt.new', 'ckpt.pt')  # a crash leaves the old one or the new one
    berth.report(saved='ckpt.pt', next='the same command')


def leave():
    if torch.distributed.is_initialized():
        torch.distributed.barrier()  # rank 0 has saved
        torch.distributed.destroy_process_group()  # else a thread may outlive Python, which aborts then


for epoch in range(sampler.epoch, epochs):
    sampler.set_epoch(epoch)
    print(f'rank {berth.rank()} begins epoch {epoch} after step {step}', flush=True)
    for x, y in DataLoader(dataset, batch_size=64, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(parallel(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        step += 1
        sampler.advance(len(x))
        stopping = stop()  # on all ranks after the same step
        if berth.rank() == 0 and (stopping or step % 1000 == 0):
            save()
        if stopping:
            leave()
            sys.exit(berth.EXIT_STOPPED)  # 75: --requeue starts the job again

with torch.no_grad():
    loss = torch.nn.functional.cross_entropy(model(images[:128].to(device)), labels[:128].to(device)).item()
assert loss < 1, f'the loss did not fall: {loss}, without training 2.3'
print(f'rank {berth.rank()} of {berth.world_size()} on {os.uname().nodename}: loss falls', flush=True)
leave()
