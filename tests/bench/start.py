# SPDX-License-Identifier: BSD-3-Clause
"""The cost of starting a job, compared in one run:
    start.py BERTH [PMIX_SIZE]
1. berth run -n 2 -- true, compared with starting two processes directly: additional milliseconds.
2. PMIX_SIZE (PMIx_Init, one fence, PMIx_Finalize) as 2 ranks of berth run, compared with 2 ranks of
   Debian's mpirun: the ratio. The ranks also time PMIx_Init and the fence themselves.
The kinds take turns, so that other load affects all alike; medians of RUNS."""
import os
import shutil
import statistics
import subprocess
import sys
import time

RUNS = int(os.environ.get('BENCH_RUNS', '21'))


def seconds(start):
    """start() -> wall time of one run; a run that fails ends the benchmark."""
    begin = time.perf_counter()
    for process in start():
        output, _ = process.communicate(timeout=60)
        if process.returncode:
            sys.exit(f'start.py: {process.args} exited with code {process.returncode}: {output}')
    return time.perf_counter() - begin


def by_turns(kinds):
    """{name: start} -> {name: [ms]}; one additional round first warms the caches."""
    times = {name: [] for name in kinds}
    for turn in range(RUNS + 1):
        for name, start in kinds.items():
            taken = seconds(start) * 1000
            if turn:
                times[name].append(taken)
    return times


def popen(*command, environment=None):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True,
                            env=dict(os.environ, **(environment or {})))


def say(what, times):
    print(f'{what:44} {statistics.median(times):8.1f} ms  '
          f'(fastest {min(times):.1f}, slowest {max(times):.1f}, {len(times)} runs)')


def start_cost(berth):
    true = shutil.which('true')
    times = by_turns({
        'hand': lambda: [popen(true), popen(true)],
        'berth': lambda: [popen(berth, 'run', '-n', '2', '--', 'true')],
    })
    say('two processes directly', times['hand'])
    say('berth run -n 2 -- true', times['berth'])
    more = statistics.median(times['berth']) - statistics.median(times['hand'])
    print(f'berth run costs {more:.1f} ms more (aim: at most 15)\n')


def ranks_time(output):
    """The slowest rank's PMIx_Init and fence, from "PMIx rank R of N: T ms"."""
    return max(float(line.split(': ')[1].split()[0]) for line in output.splitlines()
               if line.startswith('PMIx rank') and ': ' in line)


def fence_cost(berth, program):
    root = {'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1'}
    commands = {
        'berth': [berth, 'run', '-n', '2', '--', program, '--time'],
        'mpirun': [shutil.which('mpirun'), '--oversubscribe', '-n', '2', program, '--time'],
    }
    whole = {name: [] for name in commands}
    inside = {name: [] for name in commands}
    for turn in range(RUNS + 1):
        for name, command in commands.items():
            begin = time.perf_counter()
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=60, check=False, env=dict(os.environ, **root))
            taken = (time.perf_counter() - begin) * 1000
            if done.returncode:
                sys.exit(f'start.py: {command} exited with code {done.returncode}: {done.stderr}')
            if turn:
                whole[name].append(taken)
                inside[name].append(ranks_time(done.stdout))
    say('2 ranks with PMIx, berth run', whole['berth'])
    say('2 ranks with PMIx, mpirun', whole['mpirun'])
    ratio = statistics.median(whole['berth']) / statistics.median(whole['mpirun'])
    print(f'berth run takes {ratio:.2f} times what mpirun takes (aim: at most 0.3)\n')
    say('only PMIx_Init and a fence, in berth run', inside['berth'])
    say('only PMIx_Init and a fence, in mpirun', inside['mpirun'])
    ratio = statistics.median(inside['berth']) / statistics.median(inside['mpirun'])
    print(f'the ranks themselves: {ratio:.2f} times')


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    start_cost(sys.argv[1])
    if len(sys.argv) == 3 and shutil.which('mpirun'):
        fence_cost(*sys.argv[1:])
    else:
        print('no PMIx program or no mpirun to compare with')


if __name__ == '__main__':
    main()
