# SPDX-License-Identifier: BSD-3-Clause
"""A program of accelerate that writes what its launcher gave it, and its losses, to OUT.RANK; and
    launched.py compare A B    exits with code 1 unless the two ranks of A and B had the same."""
import json
import os
import sys

# Variables of the place (berth has its own), of torchrun's agent, and of the shell.
PLACE = {'MASTER_PORT', 'OUT', 'TORCHELASTIC_RUN_ID', 'TORCHELASTIC_ERROR_FILE', 'TORCHELASTIC_SIGNALS_TO_HANDLE',
         'TORCHELASTIC_USE_AGENT_STORE', 'TORCH_NCCL_ASYNC_ERROR_HANDLING', '_', 'PWD', 'OLDPWD', 'SHLVL'}


def train():
    received = dict(os.environ)
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    generator = torch.Generator().manual_seed(3)
    x = torch.randn(256, 8, generator=generator)
    dataset = TensorDataset(x, x @ torch.arange(8.).unsqueeze(1) + 1)
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.05), DataLoader(dataset, batch_size=16))
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        with accelerator.autocast():
            y_of_model = model(x)
        loss = torch.nn.functional.mse_loss(y_of_model.float(), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    with open(f'{os.environ["OUT"]}.{accelerator.process_index}', 'w', encoding='utf-8') as out:
        json.dump({'env': received, 'losses': losses, 'dtype': str(model(x).dtype), 'ranks': accelerator.num_processes}, out)
    accelerator.end_training()


def compare(a, b):
    for rank in 0, 1:
        one, other = [json.load(open(f'{name}.{rank}', encoding='utf-8')) for name in (a, b)]
        env, wanted = other.pop('env'), one.pop('env')
        different = {key: (value, env.get(key)) for key, value in wanted.items()
                     if key not in PLACE and env.get(key) != value}
        print(f'rank {rank}: {len([key for key in wanted if key.startswith(("ACCELERATE", "FSDP"))])} variables of accelerate, '
              f'{one["losses"][-1]:.4f} and {other["losses"][-1]:.4f}')
        assert not different and one == other, f'rank {rank}: {different} {one} {other}'


compare(*sys.argv[2:]) if sys.argv[1:2] == ['compare'] else train()
