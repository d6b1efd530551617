# SPDX-License-Identifier: BSD-3-Clause
"""A trainer that asks the server at each step: train.py CHECKPOINT STEPS.

Makes STEPS steps from where the checkpoint ends (0: until it is stopped). All ranks reduce the
answers over Gloo, if Python has PyTorch. A stop request ends all of them after the same step, with code 75."""
import os
import sys
import time
import urllib.request

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None

RANK, WORLD = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])
URL = f"http://{os.environ['BERTH_ROLE_SERVE_ADDR']}:{os.environ['BERTH_ROLE_SERVE_PORTS']}/"


def ask(x):
    """A service that is restarted is away for a moment."""
    last = time.monotonic() + 30
    while True:
        try:
            return float(urllib.request.urlopen(f'{URL}{x}', timeout=10).read())
        except OSError:
            if 'RETRY' not in os.environ or time.monotonic() > last:
                raise
            time.sleep(0.2)


def total(*values):
    """The sums of the values over all ranks."""
    if not torch:
        return [WORLD * value for value in values]
    tensor = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(tensor)
    return tensor.tolist()


def main(checkpoint, steps):
    if torch:
        dist.init_process_group('gloo')
    first = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
    step = first
    while not steps or step < first + steps:
        got, stops = total(ask(step), float(os.path.exists(os.environ['BERTH_STOP_FILE'])))
        if got != 2.0 * step * WORLD:
            sys.exit(f'step {step}: {got}')
        step += 1
        if RANK == 0:
            with open(checkpoint + '.new', 'w') as file:
                file.write(str(step))
                file.flush()
                os.fsync(file.fileno())
            os.rename(checkpoint + '.new', checkpoint)
            print(f'step {step}', flush=True)
        if stops:
            print(f'rank {RANK} saved and stops at {step}', flush=True)
            return 75
        time.sleep(0.1)
    print(f'rank {RANK} on {os.uname().nodename} trained from {first} to {step} with {"gloo" if torch else "nothing"}')
    return 0


code = main(sys.argv[1], int(sys.argv[2]))
if torch:
    dist.destroy_process_group()
sys.exit(code)
