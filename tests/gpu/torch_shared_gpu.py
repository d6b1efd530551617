# SPDX-License-Identifier: BSD-3-Clause
"""Can two processes reduce on one GPU over NCCL, each with an NCCL_HOSTID of its own? Uses PyTorch's NCCL,
so that the result depends on NCCL only. Last line: one JSON object."""
import json
import os
import socket
import subprocess
import sys
import time


def rank_main():
    import datetime

    import torch
    import torch.distributed as dist
    rank = int(os.environ['RANK'])
    torch.cuda.set_device(0)
    dist.init_process_group('nccl', timeout=datetime.timedelta(seconds=60))
    x = torch.full((1 << 20,), float(rank + 1), device='cuda')
    begin = time.perf_counter()
    for _ in range(10):
        y = x.clone()
        dist.all_reduce(y)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / 10
    good = bool((y == 3).all().item())
    dist.destroy_process_group()
    print(json.dumps({'good': good, 'ms for 4 MiB': seconds * 1e3, 'nccl': '.'.join(map(str, torch.cuda.nccl.version()))}))
    sys.exit(0 if good else 1)


def last_of(output):
    """The result, or what went wrong: NCCL's own line about it, or the last line."""
    lines = output.strip().splitlines()
    for line in reversed(lines):
        if line.startswith('{'):
            return line[:300]
    named = [line for line in lines if 'Duplicate GPU' in line or 'Error' in line]
    return (named or lines or [''])[-1][:300]


def main():
    results = {}
    for name, pretend in (('as it is', False), ('NCCL_HOSTID', True)):
        with socket.socket() as one:
            one.bind(('127.0.0.1', 0))
            port = one.getsockname()[1]
        processes = []
        for rank in range(2):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE='2', LOCAL_RANK='0', MASTER_ADDR='127.0.0.1',
                       MASTER_PORT=str(port), CUDA_VISIBLE_DEVICES='0')
            if pretend:
                env.update(NCCL_HOSTID=f'berth-rank-{rank}', NCCL_SOCKET_IFNAME='lo', NCCL_IB_DISABLE='1',
                           NCCL_NVLS_ENABLE='0', NCCL_MAX_CTAS='2')
            processes.append(subprocess.Popen([sys.executable, __file__, 'rank'], env=env, stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT, text=True))
        said = []
        for process in processes:
            try:
                output = process.communicate(timeout=90)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0] + '\ndid not end within 90 s'
            said.append({'code': process.returncode, 'last': last_of(output)})
        results[name] = said
    results['works'] = all(one['code'] == 0 for one in results['NCCL_HOSTID'])
    print(json.dumps(results))


if len(sys.argv) > 1:
    rank_main()
else:
    main()
