# SPDX-License-Identifier: BSD-3-Clause
"""The cost of starting in a PBS job, on two nodes of tests/cluster with its stand-in for PBS:
    cluster.py --nodes 2 -- python3 start_tm.py BERTH PMIX_SIZE
4 ranks on each of 2 nodes: berth run starts its agents with pbs_tmrsh and ends after every rank has read its plan.
It is compared with mpirun (over the same pbs_tmrsh) of PMIX_SIZE, which does PMIx_Init, a fence and PMIx_Finalize:
the ratio (aim: at most 0.8). The two take turns; medians of RUNS."""
import os
import subprocess
import sys
import time

import start

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = 'n1.bed.test:4,n2.bed.test:4'


def measure(berth, pmix_size):
    root = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
    mpirun = ['mpirun', '--map-by', 'ppr:4:node', '--oversubscribe', '--bind-to', 'none', '--host', HOSTS,
              '--mca', 'orte_keep_fqdn_hostnames', '1', '--mca', 'plm_rsh_no_tree_spawn', '1',
              '--mca', 'plm_rsh_agent', f'{berth} agent --tmrsh', '-x', 'LD_LIBRARY_PATH', pmix_size]
    ours, theirs = 'berth run --launcher tm, every rank has its plan', 'mpirun, PMIx_Init and a fence'
    times = start.by_turns({
        ours: lambda: [start.popen(berth, 'run', '--launcher', 'tm', '--ranks-per-node', '4', '--', 'sh',
                                   '-c', 'exec cat "$BERTH_PLAN_FILE" >/dev/null')],
        theirs: lambda: [start.popen(*mpirun, environment=root)],
    })
    for name, values in times.items():
        start.say(name, values)
    ratio = start.statistics.median(times[ours]) / start.statistics.median(times[theirs])
    print(f'2 nodes x 4 ranks, agents over TM / mpirun: {ratio:.2f} (aim: at most 0.8)', flush=True)


def submit(args):
    # meson passes paths relative to its directory, but a job starts in its home.
    args = [os.path.abspath(arg) for arg in args]
    share = os.environ['CLUSTER'] + '/share'
    del os.environ['SLURM_CONF']
    subprocess.run([sys.executable, f'{HERE}/../cluster/pbs.py', 'begin', 'n1', 'n2'], check=True)
    names = [name for name in ('BERTH_TOPOLOGY', 'LD_LIBRARY_PATH', 'BENCH_RUNS') if name in os.environ]
    with open(f'{share}/bench.sh', 'w', encoding='utf-8') as file:
        file.write(f'{sys.executable} {os.path.abspath(__file__)} {" ".join(args)}\n'
                   f'echo $? >{share}/bench.code.tmp; mv {share}/bench.code.tmp {share}/bench.code\n')
    subprocess.run([f'{share}/pbs/bin/qsub', '-o', f'{share}/bench.out', '-v', ','.join(names), '-l',
                    'select=2:ncpus=4:mpiprocs=4', '-l', 'place=scatter', f'{share}/bench.sh'],
                   stdout=subprocess.DEVNULL, check=True)
    deadline = time.monotonic() + 600
    while not os.path.exists(f'{share}/bench.code'):
        if time.monotonic() > deadline:
            sys.exit('start_tm.py: the job has not ended within 600 s')
        time.sleep(0.1)
    with open(f'{share}/bench.out', encoding='utf-8') as file:
        print(file.read(), end='')
    with open(f'{share}/bench.code', encoding='utf-8') as file:
        sys.exit(int(file.read()))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if 'PBS_JOBID' in os.environ:
        measure(*sys.argv[1:])
    else:
        submit(sys.argv[1:])


main()
