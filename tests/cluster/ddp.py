# SPDX-License-Identifier: BSD-3-Clause
"""A few steps of DistributedDataParallel over gloo, in ranks of torchrun or berth."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    os.environ.setdefault('USE_LIBUV', '0')  # Debian 13's PyTorch has no libuv
    dist.init_process_group('gloo')
    torch.manual_seed(1)
    model = DistributedDataParallel(torch.nn.Linear(1024, 512))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(2 + dist.get_rank())
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 1024)).square().mean()
        loss.backward()
        optimizer.step()
    total = torch.tensor([float(sum(p.double().sum() for p in model.parameters()))])
    lowest, highest = total.clone(), total.clone()
    dist.all_reduce(lowest, dist.ReduceOp.MIN)
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    assert torch.equal(lowest, highest), 'the weights differ between the ranks'
    print(f'rank {dist.get_rank()} of {dist.get_world_size()} on {os.uname().nodename} local '
          f'{os.environ["LOCAL_RANK"]} at {os.environ["MASTER_ADDR"]} trained to {float(total):.2f}', flush=True)
    dist.barrier()
    # PyTorch 1.13's threads end the process with abort() if they still run at its exit.
    dist.destroy_process_group()


main()
