# SPDX-License-Identifier: BSD-3-Clause
"""Compare `berth hosts` with hosts.tsv and with the real `scontrol show hostnames`.

hosts.py table BERTH          every row of hosts.tsv, through berth
hosts.py scontrol BERTH       the rows that both accept, also through scontrol
hosts.py random BERTH COUNT   random expressions of Slurm's grammar, through both
                              (BERTH_TEST_SEED repeats a run; a failure prints it)
hosts.py compress BERTH COUNT random expressions, expanded, compressed, expanded again
"""
import os
import random
import subprocess
import sys
import tempfile

ROWS = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'hosts.tsv')
SLURM_CONF = """ClusterName=none
SlurmctldHost=localhost
NodeName=localhost
PartitionName=none Nodes=localhost
"""


def rows():
    with open(ROWS, encoding='utf-8') as table:
        for line in table:
            if not line.startswith('#'):
                yield line.rstrip('\n').split('\t')


def lines_of(command, env=None):
    """Exit code and lines of stdout."""
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=60, check=False)
    return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()


def scontrol(expr):
    with tempfile.NamedTemporaryFile('w', suffix='.conf') as conf:
        conf.write(SLURM_CONF)
        conf.flush()
        env = dict(os.environ, SLURM_CONF=conf.name)
        code, hosts, message = lines_of(['scontrol', 'show', 'hostnames', expr], env)
    if code or message:
        sys.exit(f'scontrol refused {expr!r}: {message}')
    return hosts


def check(what, expr, expected, seen):
    if expected != seen:
        sys.exit(f'{what}: {expr!r}\nexpected {str(expected)[:300]}\nseen     {str(seen)[:300]}')


def some_ranges(rng):
    parts = []
    for _ in range(rng.randint(1, 3)):
        low = rng.choice([rng.randint(0, 12), rng.randint(95, 101), rng.randint(0, 5000)])
        width = rng.choice([0, 0, 2, 3, 5])
        part = f'{low:0{width}d}'
        if rng.random() < 0.5:
            part += f'-{low + rng.randint(0, 3):0{rng.choice([0, width, 4])}d}'
        parts.append(part)
    return ','.join(parts)


def some_text(rng, least):
    return ''.join(rng.choice('abnx019-._') for _ in range(rng.randint(least, 4)))


def some_list(rng, suffixes):
    items = []
    for _ in range(rng.randint(1, 4)):
        # no item begins with '-', since scontrol would read it as an option
        item = rng.choice('abnx01') + some_text(rng, 0)
        for i in range(rng.choice([0, 1, 1, 2, 3, 4])):
            item += (some_text(rng, 0) if i else '') + f'[{some_ranges(rng)}]'
        if suffixes and rng.random() < 0.5:
            item += some_text(rng, 1)
        items.append(item)
    # No newline: scontrol takes brackets on both sides of a newline as brackets of one name.
    return rng.choice([',', ',', ' ', ', ', ',,']).join(items)


def main():
    what, berth = sys.argv[1:3]
    seed = int(os.environ.get('BERTH_TEST_SEED') or random.SystemRandom().randrange(1 << 32))
    rng = random.Random(seed)
    checked = 0
    if what in ('table', 'scontrol'):
        for who, expr, hosts in rows():
            code, seen, message = lines_of([berth, 'hosts', '--', expr])
            if who in ('both', 'berth'):
                check(f'berth: {message}', expr, (0, hosts.split()), (code, seen))
            else:
                check(f'berth: {message}', expr, (65, []), (code, seen))
            if who == 'both' and what == 'scontrol':
                check('scontrol', expr, hosts.split(), scontrol(expr))
            checked += 1
    else:
        for _ in range(int(sys.argv[3])):
            expr = some_list(rng, what == 'compress')
            code, seen, message = lines_of([berth, 'hosts', '--', expr])
            check(f'seed {seed}: {message}', expr, 0, code)
            if what == 'random':
                check(f'seed {seed}', expr, scontrol(expr), seen)
            else:
                _, short, _ = lines_of([berth, 'hosts', '--compress', '--', expr])
                check(f'seed {seed}: one line', expr, 1, len(short))
                check(f'seed {seed}: {short[0]}', expr, seen,
                      lines_of([berth, 'hosts', '--', short[0]])[1])
            checked += 1
    if not checked:
        sys.exit('nothing was checked')


main()
