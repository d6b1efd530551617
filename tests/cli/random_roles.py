# SPDX-License-Identifier: BSD-3-Clause
"""Random lines of berth run --role on simulated nodes of four GPUs, each compared with an oracle that knows only what the
guide says: nodes, ranks, GPUs, the order of the starts, and the exit code.

    random_roles.py BERTH TOPOLOGY LINES [SEED]
"""
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time

GPUS = 4
PROBE = r'''
import json, os, sys, time
name, ends = os.environ['BERTH_ROLE'], sys.argv[1]
gpus = [g for g in os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',') if g]
about = {'role': name, 'rank': int(os.environ['RANK']), 'world': int(os.environ['WORLD_SIZE']), 'gpus': gpus,
         'nodes': os.environ['BERTH_ROLE_%s_NODES' % name.upper().replace('.', '_')].split(','),
         'node': int(os.environ['BERTH_NODE_RANK']), 'started': time.monotonic(), 'urls': sys.argv[2:]}
path = 'seen.%s.%s' % (name, os.environ['RANK'])
time.sleep(0.1)
about['ready'] = time.monotonic()
with open(path + '.tmp', 'w') as out:
    json.dump(about, out)
os.rename(path + '.tmp', path)
if ends == 'serves':
    open('up.' + name, 'w').close()
    time.sleep(600)
sys.exit(int(ends))
'''
Role = collections.namedtuple('Role', 'name nodes per gpus service after on first replicas overlap code')


def make(rng, count):
    """A job of some roles for count nodes; one of them gets what is left."""
    roles, rest = [], rng.randrange(4)
    for i in range(rng.randint(2, 5)):
        own = [r for r in roles if not r.on and r.gpus and not r.overlap]
        kind = rng.choice(['own', 'own', 'none', 'on', 'overlap']) if i != rest else 'own'
        service = i != rest and rng.random() < 0.5
        on = rng.choice(own).name if kind == 'on' and own else None
        single = count == 1
        roles.append(Role(
            name=f'r{i}', nodes=None if i == rest or on or single else rng.randint(1, 2),
            per=1 if i != rest or single else rng.randint(1, 4),
            gpus=0 if kind in ('none', 'on') else 1, service=service, on=on, first=rng.random() < 0.5,
            after=rng.sample([r.name for r in roles], min(len(roles), rng.randint(1, 2))) if rng.random() < 0.4 and roles else [],
            replicas=rng.choice([0, 0, 2]) if kind == 'own' and i != rest else 0, overlap=kind == 'overlap', code=0))
    workers = [i for i, r in enumerate(roles) if not r.service]
    if not workers:
        roles[0] = roles[0]._replace(service=False)
        workers = [0]
    if rng.random() < 0.3:
        i = rng.choice(workers)
        roles[i] = roles[i]._replace(code=rng.randint(3, 9))
    return roles


def line_of(roles, count):
    words = ['--launcher', 'loopback', '-N', str(count)]
    for role in roles:
        words += [':'] if role is not roles[0] else []
        words += ['--role', role.name]
        words += ['--nodes', str(role.nodes)] if role.nodes else []
        words += ['--ranks-per-node', str(role.per)]
        words += ['--on', role.on + (':first' if role.first else '')] if role.on else []
        words += ['--gpus-per-rank', '0'] if not role.gpus and not role.on else []
        words += ['--overlap'] if role.overlap else []
        words += ['--replicas', str(role.replicas)] if role.replicas else []
        words += ['--after', ','.join(role.after)] if role.after else []
        words += ['--service', '--ready', 'command:test -e "up.$BERTH_ROLE"'] if role.service else []
        words += ['--', 'python3', 'probe.py', 'serves' if role.service else str(role.code)]
        words += [f'{{{other.name}.urls:}}' for other in roles[:1]]
    return words


def copies(role):
    return [f'{role.name}.{i}' for i in range(role.replicas)] if role.replicas else [role.name]


def place(roles, count):
    """The nodes of each copy of each role, or None if there are too few."""
    places, own = {}, [r for r in roles if not r.on and r.gpus and not r.overlap]
    beside = [r for r in roles if not r.on and r not in own]
    if any((r.nodes or 1) > count for r in roles):
        return None
    if count == 1:
        places = {name: [0] for r in own + beside for name in copies(r)}
    else:
        rest = next((r for r in own if not r.nodes), None)
        need = sum((r.nodes or 0) * (r.replicas or 1) for r in own)
        if need + bool(rest) > count:
            return None
        at = 0
        for role in own:
            for name in copies(role):
                size = role.nodes or count - need
                places[name] = list(range(at, at + size))
                at += size
        for role in beside:
            places[role.name] = list(range(role.nodes or 1))
    for role in roles:
        if role.on:
            target = next(r for r in roles if r.name == role.on)
            nodes = [places[name][:1] if role.first else places[name] for name in copies(target)]
            places[role.name] = sorted({n for some in nodes for n in some})
    return places


def expect(roles, count):
    """(code, places): code None if the line is refused."""
    places = place(roles, count)
    if places is None:
        return None, None
    for node in range(count):
        claimed = sum(r.per * r.gpus for r in roles for name in copies(r) if not r.overlap and node in places[name])
        if claimed > GPUS:
            return None, None
    return next((r.code for r in roles if r.code), 0), places


def starts_after(roles, role):
    """The roles that have to be ready, or over, before this one starts."""
    by_name = {r.name: r for r in roles}
    before = lambda r: set(r.after).union(*(before(by_name[n]) for n in r.after))
    if role.after or role.service:
        return role.after
    prepares = any(r.service and role.name in before(r) for r in roles)
    return [r.name for r in roles if r.service and not (prepares and any(not by_name[n].service for n in before(r)))]


def check(roles, count, places, seen):
    by_name = {r.name: r for r in roles}
    for role in roles:
        for name in copies(role):
            ranks = [s for s in seen if s['role'] == name]
            if not ranks:
                continue
            assert {s['world'] for s in ranks} == {role.per * len(places[name])}, f'{name}: {ranks}'
            if count > 1:
                want = [f'loop{n}' for n in places[name]]
                assert all(s['nodes'] == want for s in ranks), f'{name} on {ranks[0]["nodes"]}, expected {want}'
            if not role.gpus:
                assert not any(s['gpus'] for s in ranks), f'{name} has GPUs'
            for other in starts_after(roles, role):
                done = [max(s['ready'] for s in seen if s['role'] == copy and s['rank'] == 0) for copy in copies(by_name[other])
                        if any(s['role'] == copy for s in seen)]
                assert len(done) == len(copies(by_name[other])), f'{name} started before {other} was'
                assert all(s['started'] > max(done) for s in ranks), f'{name} started before {other} was ready'
    for node in range(count):
        used = [g for role in roles for name in copies(role) if not role.overlap and node in places[name]
                for s in seen if s['role'] == name and places[name][s['node']] == node and s['rank'] % role.per == 0 for g in s['gpus']]
        assert len(used) == len(set(used)), f'node {node}: GPUs {used}'


def main():
    berth, topology = (os.path.abspath(path) for path in sys.argv[1:3])
    lines, *seed = sys.argv[3:]
    seed = int(seed[0]) if seed else int(time.time())
    results = collections.Counter()
    for i in range(int(lines)):
        rng = random.Random(seed + i)
        count = rng.randint(1, 6)
        roles = make(rng, count)
        words = line_of(roles, count)
        code, places = expect(roles, count)
        with tempfile.TemporaryDirectory() as place_:
            with open(os.path.join(place_, 'probe.py'), 'w') as out:
                out.write(PROBE)
            ran = subprocess.run([berth, 'run', '-q', *words], cwd=place_, capture_output=True, text=True, timeout=300, check=False,
                                 stdin=subprocess.DEVNULL, env={**os.environ, 'BERTH_TOPOLOGY': topology})
            seen = [json.load(open(os.path.join(place_, name))) for name in os.listdir(place_)
                    if name.startswith('seen.') and not name.endswith('.tmp')]
        try:
            assert ran.returncode == (64 if code is None else code), f'code {ran.returncode}, expected {code}'
            if code is not None:
                check(roles, count, places, seen)
            # A service that no program waits for may never start.
            work = {n: r.per * len(places[n]) for r in roles for n in copies(r) if not r.service} if code == 0 else {}
            assert all(n == len([s for s in seen if s['role'] == name]) for name, n in work.items()), 'not all have started'
        except AssertionError as error:
            sys.exit(f'seed {seed + i}: {error}\nberth run {" ".join(words)}\n{ran.stdout}{ran.stderr}')
        results[64 if code is None else code] += 1
    print('codes:', dict(sorted(results.items())))
    assert results[0] and len(results) > 1


main()
