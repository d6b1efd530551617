# SPDX-License-Identifier: BSD-3-Clause
"""The cost of starting a job on two nodes of tests/cluster, compared in one run:
    cluster.py -- python3 start_slurm.py BERTH PMIX_SIZE [0|1|2]
0. `true` as 2 ranks on each of 2 nodes: berth run, compared with an empty srun on each node (aim: at most
   1.5) and with srun --mpi=pmix of 2 tasks on each (aim: at most 0.4).
1. PMIX_SIZE (PMIx_Init, one fence, PMIx_Finalize) as 4 ranks on each of 2 nodes: berth run, compared with
   srun --mpi=pmix: the ratio (aim: at most 0.5).
2. A PyTorch script to the end of its first all-reduce on 2 nodes x 2 ranks: berth run -- python3,
   compared with a torchrun on each node with all options set by hand (aim: at most 0.55).
Both in one salloc on the login node; the kinds take turns; medians of RUNS."""
import os
import sys

import start

SCRIPT = '''
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1024))
# Otherwise PyTorch 1.13 sometimes aborts as the interpreter ends ("terminate called without an active exception").
dist.destroy_process_group()
'''


def compare(what, aim, times, ours, theirs):
    for name, values in times.items():
        start.say(name, values)
    ratio = start.statistics.median(times[ours]) / start.statistics.median(times[theirs])
    print(f'{what}: {ratio:.2f} (aim: {aim})\n', flush=True)


def empty(berth):
    os.environ.pop('BERTH_TOPOLOGY', None)  # the nodes describe themselves: no file to parse
    ours, one, theirs = 'berth run -n 4 -- true', 'srun -N2 -n2 true', 'srun --mpi=pmix true, 2 x 2 tasks'
    times = start.by_turns({
        ours: lambda: [start.popen(berth, 'run', '-n', '4', '--', 'true')],
        one: lambda: [start.popen('srun', '-N2', '-n2', 'true')],
        theirs: lambda: [start.popen('srun', '-N2', '-n4', '--ntasks-per-node=2', '--overcommit',
                                     '--mpi=pmix', 'true')],
    })
    compare('berth run / an empty srun', 'at most 1.5', times, ours, one)
    compare('berth run / srun --mpi=pmix', 'at most 0.4', times, ours, theirs)


def pmix(berth, pmix_size):
    ours, theirs = 'berth run, PMIx_Init and a fence', 'srun --mpi=pmix, the same'
    times = start.by_turns({
        ours: lambda: [start.popen(berth, 'run', '--ranks-per-node', '4', '--', pmix_size)],
        theirs: lambda: [start.popen('srun', '-N2', '-n8', '--ntasks-per-node=4', '--overcommit',
                                     '--mpi=pmix', pmix_size)],
    })
    compare('2 nodes x 4 ranks, berth run / srun', 'at most 0.5', times, ours, theirs)


def torch(berth):
    share = os.environ['CLUSTER'] + '/share'
    path = f'{share}/all_reduce.py'
    with open(path, 'w', encoding='utf-8') as file:
        file.write(SCRIPT)
    by_hand = ('exec torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$SLURM_NODEID '
               f'--master_addr=10.9.0.11 --master_port=29511 {path}')
    # Debian 12's torchrun needs the two PET_ variables under Python 3.11.
    environment = {'GLOO_SOCKET_IFNAME': 'hsn0', 'OMP_NUM_THREADS': '1', 'PET_REDIRECTS': '1',
                   'PET_TEE': '1'}
    ours, theirs = 'berth run -- python3', 'srun torchrun, all set by hand'
    times = start.by_turns({
        ours: lambda: [start.popen(berth, 'run', '--ranks-per-node', '2', '--', '/usr/bin/python3',
                                   path)],
        theirs: lambda: [start.popen('srun', '-N2', '-n2', '--ntasks-per-node=1', '--overcommit',
                                     'sh', '-c', by_hand, environment=environment)],
    })
    compare('2 nodes x 2 ranks of PyTorch, berth run / torchrun', 'at most 0.55', times, ours, theirs)


def main():
    if 'SLURM_JOB_ID' not in os.environ:
        os.execvp('salloc', ['salloc', '-Q', '-N2', '-w', 'n1,n2', '--exclusive', sys.executable,
                             *sys.argv])
    only = sys.argv[3:]
    if only in ([], ['1']):
        pmix(*sys.argv[1:3])
    if only in ([], ['2']) and os.path.exists('/usr/bin/torchrun'):
        torch(sys.argv[1])
    if only in ([], ['0']):
        empty(sys.argv[1])


main()
