#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Record berth's observable behaviour, and compare two records.

    net.py record  --source DIR --build DIR [--part LIST] [--only REGEX] [--table FILE] OUT
    net.py compare OLD NEW --table FILE [--build DIR] [--part LIST] [--except GLOB]

record runs the berth of a meson build folder (with tests enabled) and writes text files to OUT/PART/:

    help         --help and --usage of every program and verb; the man pages
    keys         the key paths and types of every JSON document
    plan         berth plan for each topology of the source tree and of $BERTH_TEST_TOPO
    scripts      berth submit --dry-run for Slurm and PBS
    env          what each launcher gives a rank in its environment (as root, with Slurm installed)
    exits        argv and code of each run of berth in the tests that ends with a code from 64 to 78
    checkpoints  a hash of each tensor after 3 steps, and after 2 more from that checkpoint

compare applies the rename table to OLD, prints a diff for each file that differs and exits with code 1;
otherwise it prints how many records are equal. With --build, the new build also resumes from the old
build's checkpoints and must compute the same bits. The table also translates the commands that record
runs; its default is docs/decisions/0001-rename-table.tsv in the source tree, if present.

The refactoring deletes this tool when it ends.
"""
import argparse
import concurrent.futures
import difflib
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

PARTS = ['help', 'plan', 'scripts', 'keys', 'env', 'checkpoints', 'exits']
SORTED = ['keys', 'env', 'exits']  # a rename changes the order of their lines
TABLE = 'docs/decisions/0001-rename-table.tsv'
DELETED = ['env/srun-ranks.*']  # recorded in the base; docs/decisions/0003 deleted this launcher
TIMEOUT_S = 60
HERE = pathlib.Path(__file__).resolve().parent


# ---- the rename table ----

class Table:
    def __init__(self, path):
        self.rows = []
        for number, line in enumerate(path.read_text().splitlines() if path else [], 1):
            if not line.strip() or line.startswith('#'):
                continue
            fields = line.split('\t')
            if len(fields) != 3 or not fields[0] or not set(fields[2].split(',')) <= {*PARTS, 'all'}:
                sys.exit(f'net: {path}:{number}: expected "old<TAB>new<TAB>where", where is a list of '
                         f'{", ".join(PARTS)} or all')
            self.rows.append((fields[0], fields[1], fields[2].split(',')))

    def apply(self, part, text):
        names = {old: new for old, new, where in self.rows
                 if 'all' in where or part in where or (part == 'checkpoints' and 'keys' in where)}
        if not names:
            return text
        words = '|'.join(re.escape(old) for old in sorted(names, key=len, reverse=True))
        return re.sub(rf'(?<![\w-])(?:{words})(?![\w-])', lambda found: names[found[0]], text)


# ---- recording ----

class Recorder:
    def __init__(self, build, out, table, scratch, source=None):
        self.build, self.source, self.out = build.resolve(), source and source.resolve(), out
        self.table, self.scratch, self.part, self.only = table, scratch, None, ''
        self.berth = str(self.build / 'bin' / 'berth')
        self.train = str(self.build / 'bin' / 'berth-train')
        home = scratch / 'home'
        home.mkdir(exist_ok=True)
        self.env = {'PATH': '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', 'HOME': str(home),
                    'LC_ALL': 'C.UTF-8', 'TMPDIR': str(scratch), 'PBS_CONF_FILE': '/nonexistent',
                    'LD_LIBRARY_PATH': f'{self.build}/lib:{self.build}/lib/modules',
                    'OMPI_ALLOW_RUN_AS_ROOT': '1', 'OMPI_ALLOW_RUN_AS_ROOT_CONFIRM': '1', 'COLUMNS': '100'}

    def words(self, argv):
        """The command in the names that this build uses. Paths stay as they are."""
        return [word if word.startswith('/') else self.table.apply(self.part, word) for word in argv]

    def run(self, *argv, cwd=None, timeout=TIMEOUT_S, **env):
        env = {self.table.apply(self.part, name): value for name, value in env.items()}
        try:
            return subprocess.run(self.words(argv), cwd=cwd or self.scratch, env={**self.env, **env},
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, timeout=timeout, text=True, errors='replace')
        except subprocess.TimeoutExpired:
            sys.exit(f'net: no end after {timeout} s: {" ".join(argv)}')

    def clean(self, text):
        """Without what differs from run to run and from folder to folder."""
        for path, name in ((self.scratch, 'SCRATCH'), (self.build, 'BUILD'), (self.source, 'SOURCE')):
            if path:
                text = text.replace(str(path), name)
        return re.sub(rf'(?<!\w){re.escape(socket.gethostname())}(?!\w)', 'HOST', text)

    def shown(self, result):
        return self.clean(f'exit code {result.returncode}\n{result.stdout}{result.stderr}')

    def write(self, name, text):
        path = self.out / self.part / f'{name}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith('\n') else text + '\n')

    def tests(self):
        """What meson knows of the tests: name, command, environment."""
        return json.loads((self.build / 'meson-info' / 'intro-tests.json').read_text())


# ---- help ----

def record_help(net):
    listing = net.run(net.berth, '--help').stdout
    verbs = re.findall(r'^  ([a-z]+)  +\S', listing, re.M)
    commands = {'berth': [net.berth], 'berth-train': [net.train], **{verb: [net.berth, verb] for verb in verbs}}
    for name, argv in commands.items():
        for option in ('--help', '--usage'):
            net.write(name + option, net.shown(net.run(*argv, option)))
        options = re.findall(r'(?<![\w-])--?[a-zA-Z][\w-]*(?:\[?=[^\s,]+)?', net.run(*argv, '--help').stdout)
        net.write(f'{name}-options', '\n'.join(sorted(set(options))))
    for page in net.build.rglob('berth*.[1-8]'):
        if page.is_file():
            net.write(f'man-{page.name}', re.sub(r'^\.TH (\S+ \S+).*', r'.TH \1', page.read_text(), flags=re.M))


# ---- plan ----

def topologies(net):
    folders = [os.environ.get('BERTH_TEST_TOPO')] + [str(path) for path in net.source.glob('tests/**/topo')]
    return sorted(path for folder in filter(None, folders) for path in pathlib.Path(folder).glob('*.xml'))


def record_plan(net):
    variants = [[], *([f'-n{n}'] for n in (1, 2, 4, 8)), ['-n2', '--gpus-per-rank=2'], ['-n2', '--all-cores'],
                ['-n4', '--gpus-visible=own']]

    def one(path):
        text = ''
        for variant in variants:
            for more in ([], ['--json']):
                words = ['plan', '-t', path.name, *variant, *more]
                text += f'\n$ {" ".join(net.words(words))}\n' + net.shown(net.run(net.berth, *words, cwd=path.parent))
        net.write(f'{"fixture" if net.source in path.parents else "captured"}-{path.stem}', text)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, topologies(net)))


# ---- scripts ----

SUBMITS = [
    ['--', 'python', 'train.py'],
    ['--nodes', '2', '--gpus-per-node', '4', '--cpus-per-node', '64', '--time', '2:00:00', '--queue', 'gpu',
     '--account', 'phys', '--name', 'run-1', '--output', 'logs/out', '--after', '4711', '--', 'python', 'train.py'],
    ['--nodes', '2', '--ranks-per-node', '8', '--cpus-per-node', '64', '--time', '90m', '--', './solver'],
    ['--nodes', '2', '--gpus-per-node', '4', '--per-node', '--time', '1d', '--', 'torchrun', 'train.py'],
    ['--time', '2h', '--requeue', '--warn-before', '5m', '--log-dir', 'my logs', '--', 'python', 'train.py'],
    ['--requeue', '--log-dir', 'logs', '--', 'berth', 'train', 'resnet50', '--ckpt', 'my ckpt'],
    ['--gpus-per-node', '0', '--', 'berth', 'run', '--max-restarts', '2', '--', 'a'],
    ['--', 'berth', 'check', '--ckpt', 'd'],
    ['--', 'sh', '-c', 'echo "$HOME" `id` *', "it's", '', 'a  b', '~', 'x[1]', '$(e)', 'two\nlines', '#SBATCH -w'],
    ['--ranks-per-node', '8', '--cpus-per-node', '63', '--', 'true'], [],
    *([option, value, '--', 'true'] for option, value in (
        ('--time', 'soon'), ('--time', '2:00'), ('--time', '400d'), ('--time', '0:00:00'), ('--warn-before', '2d'),
        ('--name', '1 a'), ('--queue', 'a b'), ('--account', 'a;b'), ('--output', '$HOME/x'), ('--after', '-x'),
        ('--nodes', '0'), ('--gpus-per-node', '-1'))),
]
SITES = {
    'plain': {'berth': 'berth'},
    'full': {'berth': '/opt/b/berth', 'queue': 'q1', 'account': 'a1', 'gpus_per_node': 4, 'cpus_per_node': 32,
             'lines': ['module load berth', 'export X=1'], 'directives': ['-V']},
}


def record_scripts(net):
    config = pathlib.Path(net.env['HOME'], '.config', 'berth', 'submit.json')
    config.parent.mkdir(parents=True, exist_ok=True)
    for site, settings in SITES.items():
        config.write_text(net.table.apply('scripts', json.dumps(settings)))
        for scheduler in ('slurm', 'pbs'):
            for number, words in enumerate(SUBMITS):
                argv = ['submit', '--dry-run', f'--{scheduler}', *words]
                shown = net.shown(net.run(net.berth, *argv))
                net.write(f'{scheduler}-{site}-{number:02}', f'$ {net.words(argv)}\n{shown}')
    for scheduler in ('slurm', 'pbs'):
        config.write_text(net.table.apply('scripts', json.dumps({'berth': 'berth', 'scheduler': scheduler})))
        net.write(f'configured-{scheduler}', net.shown(net.run(net.berth, 'submit', '--dry-run', '--', 'true')))
    config.unlink()


# ---- keys ----

def key_paths(value, path=''):
    if isinstance(value, dict):
        return {path + ': object'}.union(*(key_paths(v, f'{path}.{k}') for k, v in value.items()))
    if isinstance(value, list):
        return {path + ': list'}.union(*(key_paths(v, path + '[]') for v in value))
    if isinstance(value, str) and re.fullmatch(r'berth\.[a-z]+/\d+', value):
        return {f'{path}: {value}'}
    kind = {bool: 'boolean', int: 'number', float: 'number', str: 'text', type(None): 'null'}[type(value)]
    return {f'{path}: {kind}'}


def header_of(path):
    with open(path, 'rb') as file:
        return json.loads(file.read(struct.unpack('<Q', file.read(8))[0]))


def record_keys(net):
    work = net.scratch / 'keys'
    work.mkdir()

    def keys(name, *documents):
        net.write(name, '\n'.join(sorted(set().union(*(key_paths(document) for document in documents)))))

    def printed(name, *argv, **env):
        result = net.run(net.berth, *argv, cwd=work, **env)
        try:
            keys(name, json.loads(result.stdout))
        except ValueError:
            net.write(name, 'no JSON: ' + net.shown(result))

    def file(name, path):
        keys(name, json.loads((work / path).read_text()))

    topology = str(next(path for path in topologies(net) if path.stem == 'locality-machine'))
    two = ['--engine', 'loopback', '-N', '2', '-n', '2']
    for where, env in (('here', {}), ('topology', {'BERTH_TOPOLOGY': topology})):
        printed(f'info-{where}', 'info', '--json', **env)
        printed(f'info-hosts-{where}', 'info', '--json', '--hosts', 'n1,n2', '--ranks-per-node', '1', **env)
        printed(f'info-rank-{where}', 'run', '-q', '-n', '1', '--', net.berth, 'info', '--json', **env)
        printed(f'plan-{where}', 'plan', '--json', **env)
        printed(f'check-{where}', 'check', '--json', '--ckpt', '.', **env)
        printed(f'check-two-{where}', 'check', '--json', *two[:-2], **env)
        printed(f'dry-run-{where}', 'run', '--dry-run', '--json', '-n', '1', '--', 'true', **env)
        printed(f'dry-run-two-{where}', 'run', '--dry-run', '--json', *two, '--', 'true', **env)
        plan_file = net.table.apply('keys', 'BERTH_PLAN_FILE')
        printed(f'plan-file-{where}', 'run', '-q', *two, '--', 'sh', '-c', f'[ $RANK = 1 ] || cat ${plan_file}', **env)
    job = {'SLURM_JOB_ID': '77', 'SLURM_JOB_NODELIST': 'n[1-2]', 'SLURM_JOB_NUM_NODES': '2',
           'SLURM_TASKS_PER_NODE': '2(x2)', 'SLURM_JOB_END_TIME': '4102444800'}
    printed('info-slurm', 'info', '--json', **job)
    printed('dry-run-slurm', 'run', '--dry-run', '--json', '--', 'true', **job)
    (work / 'log').write_text('RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n')
    printed('explain', 'explain', '--json', 'log')

    rank_report, stop_file = (net.table.apply('keys', name) for name in ('BERTH_REPORT', 'BERTH_STOP_FILE'))
    saved = f'echo \'{{"saved": "step 7"}}\' >"${rank_report}"; exit 75'
    ends = {'well': ['true'], 'fails': ['sh', '-c', 'echo CUDA out of memory >&2; exit 3'], 'absent': ['./absent'],
            'signal': ['sh', '-c', 'kill -9 $$'], 'saved': ['sh', '-c', saved]}
    options = {'': ['-n', '2'], '-two': two, '-restart': ['-n', '2', '--max-restarts', '1'],
               '-timed': ['-n', '1', '--end-time', '+90s', '--warn-before', '1s']}
    for end, program in ends.items():
        for name, words in options.items():
            net.run(net.berth, 'run', *words, '--report', 'report.json', '--', *program, cwd=work)
            file(f'report-{end}{name}', 'report.json')
    net.run(net.berth, 'run', '-n', '2', '--hang-timeout', '2s', '--report', 'report.json', '--', 'sleep', '20', cwd=work)
    file('report-hang', 'report.json')
    net.run(net.berth, 'run', '-n', '1', '--end-time', '+3s', '--warn-before', '2s', '--report', 'report.json', '--', 'sh',
            '-c', f'until [ -e "${stop_file}" ]; do sleep 0.1; done; exit 75', cwd=work)
    file('report-time', 'report.json')

    data = ['--data', 'synthetic:1x16x16,n=64,classes=5', '--batch', '8', '--log-every', '1']
    net.run(net.berth, 'train', 'convnet', '-n', '1', *data, '--epochs', '2', '--ckpt', 'ck', '--metrics', 'm',
            '--report', 'train.json', cwd=work)
    file('train-report', 'train.json')
    module = next((path for path in net.build.rglob('device-cuda.so') if 'fake' in str(path)), None)
    folders = {'m': 'metrics'}
    if module:
        folders['gpu'] = 'metrics-gpu'
        net.run(net.train, 'convnet', *data, '--steps', '3', '--metrics', 'gpu', '--device', 'cuda', cwd=work,
                BERTH_MODULE_PATH=f'{module.parent}:{net.build}/lib/modules', XDG_CACHE_HOME=str(work / 'cache'))
    for folder, name in folders.items():
        rows = [json.loads(line) for line in (work / folder / 'metrics.jsonl').read_text().splitlines()]
        for split in sorted({row['split'] for row in rows}):
            keys(f'{name}-{split}', *(row for row in rows if row['split'] == split))
    for path in sorted((work / 'ck').glob('*.safetensors')):
        header = header_of(path)
        for key, value in header.get('__metadata__', {}).items():
            if value.startswith('{'):
                header['__metadata__'][key] = json.loads(value)
        keys('checkpoint-' + re.sub(r'\d+', 'N', path.stem), header)
    net.write('checkpoint-folder', '\n'.join(sorted({re.sub(r'\d+', 'N', p.name) for p in (work / 'ck').iterdir()})))
    owned = work / 'owned'
    child = subprocess.Popen(net.words([net.berth, 'train', 'convnet', '-n', '1', *data, '--epochs', '100000', '--ckpt',
                                        'owned', '--report', 'stopped.json']), cwd=work, env=net.env,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(300):
        if len(list(owned.glob('step-*'))) and [path for path in owned.glob('.*') if path.stat().st_size]:
            break
        time.sleep(0.1)
    for path in [path for path in owned.glob('.*') if path.name.count('.') == 1]:
        keys('ckpt-' + path.name[1:], json.loads(path.read_text()))
    child.send_signal(signal.SIGTERM)
    child.wait(TIMEOUT_S)
    file('train-report-stopped', 'stopped.json')


# ---- env ----

RANK = 'cat /proc/$$/environ >"$NET/NAME.$RANK"'
FOREIGN = ('SLURM', 'OMPI_', 'PMIX_', 'PMI_', 'PRTE_', 'HYDRA_', 'PALS_', 'HYDI_', 'MPIR_', 'PBS_', 'HOSTNAME')


def clean_variable(line):
    name, _, value = line.partition('=')
    if re.search('PORT|SECRET|TOKEN|COOKIE', name) and re.fullmatch('[0-9a-fA-F-]+', value):
        value = '#'
    value = re.sub(r'berth-[\w]{6}(?!\w)', 'berth-#', value)
    value = re.sub(r'[0-9a-fA-F]{16,}', '#', value)
    value = re.sub(r'(?<=:)\d{4,5}(?!\w)', '#', value)
    value = re.sub(r'(?<=-)\d+-\d{10}(?!\d)', '#', value)
    value = re.sub(r'(?<!\d)1\d{9}(?!\d)', '#', value)  # Unix seconds
    value = re.sub(r'(?<=/proc/)\d+', '#', value)
    if name.startswith(('PMIX_SERVER_URI', 'PMIX_DSTORE')) or name.endswith('_PID'):
        value = '#'
    if name.startswith(FOREIGN):
        value = re.sub(r'\d{3,}', '#', value)
    return f'{name}={value}'


def record_env(net):
    work = net.scratch / 'env'
    work.mkdir()

    def write(name, text):
        # PBS_CONF_FILE comes from the test cluster of older trees, not from berth.
        lines = [clean_variable(line) for line in net.clean(text).split('\n')
                 if line.strip() and not line.startswith('PBS_CONF_FILE=')]
        net.write(name, '\n'.join(sorted(lines)))

    local = {'fork': ['-n', '2', '--engine', 'fork'], 'fork-no-pmix': ['-n', '2', '--pmix', 'off'],
             'fork-set': ['-n', '1', '--env', 'MINE=a  b', '--end-time', '+1000s', '--max-restarts', '1'],
             'loopback': ['--engine', 'loopback', '-N', '2', '-n', '4'],
             'per-node': ['--engine', 'loopback', '-N', '2', '--per-node']}
    for name, words in local.items():
        folder = work / name
        folder.mkdir()
        script = RANK.replace('NAME', name).replace('$RANK', '${RANK-$PET_NODE_RANK}')
        result = net.run(net.berth, 'run', '-q', *words, '--', 'sh', '-c', script, NET=str(folder))
        write(f'{name}.code', f'code={result.returncode}')
        for path in folder.iterdir():
            write(path.name, path.read_bytes().decode(errors='replace').replace('\0', '\n'))
    path = work / 'exec'
    result = net.run('mpirun', '-n', '2', '--oversubscribe', net.berth, 'exec', '--', 'sh', '-c',
                     RANK.replace('NAME', 'exec-mpirun'), NET=str(work))
    write('exec-mpirun.code', f'code={result.returncode}')
    for path in work.glob('exec-mpirun.*'):
        write(path.name, path.read_bytes().decode(errors='replace').replace('\0', '\n'))

    script = (HERE / 'cluster.sh').read_text()
    cluster = next(net.source.glob('tests/**/cluster.py'))
    # Each node has a /tmp of its own: what the script reads comes on its command line.
    result = net.run(sys.executable, str(cluster), '--nodes', '2', '--', 'bash', '-c', script,
                     timeout=300, cwd='/', BERTH=net.berth, TESTS=str(cluster.parent), SOURCE=str(net.source),
                     BUILD=str(net.build), TMPDIR='/tmp')
    found = re.split(r'^== (\S+)\n', result.stdout, flags=re.M)[1:]
    for name, text in zip(found[::2], found[1::2]):
        write(name, f'code={text.strip()}' if name.endswith('.code') else text)
    if result.returncode or not found:
        sys.exit(f'net: the cluster exited with code {result.returncode}:\n{result.stderr[-3000:]}')
    (net.out / 'env' / 'cluster.log').write_text(result.stderr)


# ---- exits ----

# Endless runs that the test may kill before they notice that their checkpoint directory was taken over.
RACY = re.compile('"--steps", "100000000".* -> 73$')


def clean_argument(net, text):
    text = re.sub(r'/tmp/(?:bats-run-\w+/(?:test|file)/\d+|tmp\.\w+|bats-run-\w+)', 'TMP', net.clean(text))
    text = re.sub(r'(?<=:)\d{5}\b', 'PORT', text)
    if re.fullmatch(r'\d{5}', text) and 32768 <= int(text) < 65536:
        return 'PORT'
    return re.sub(r'\b1\d{9}\b', 'TIME', text)


def record_exits(net):
    hook, log = net.scratch / 'hook.so', net.scratch / 'exits'
    subprocess.run(['cc', '-shared', '-fPIC', f'-DLOG="{log}"', HERE / 'exits.c', '-o', hook], check=True, timeout=60)

    def one(test):
        started = time.monotonic()
        seen = subprocess.run(['nice', *test['cmd']], env={**os.environ, **test['env'], 'LD_PRELOAD': str(hook)},
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors='replace', timeout=test['timeout'])
        for line in re.findall(r'^not ok .*', seen.stdout, re.M):
            print(f'net: {test["name"]}: {line}', file=sys.stderr)
        print(f'net: {test["name"]}: {time.monotonic() - started:.0f} s', file=sys.stderr)

    tests = [test for test in net.tests() if re.search(net.only, test['name']) and os.path.basename(test['cmd'][0]) == 'bats' and test['is_parallel'] and
             'full' not in ' '.join(test['suite']) and test['name'].startswith(('cli-', 'train-')) and
             re.search(r'\b(6[4-9]|7[0-8])\b', pathlib.Path(test['cmd'][-1]).read_text())]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, tests))
    lines = set()
    for entry in log.read_bytes().decode(errors='replace').split('\n\0'):
        *argv, code = entry.split('\0')
        if code:
            lines.add(f'{json.dumps([clean_argument(net, word) for word in argv])} -> {code}')
    net.write('codes', '\n'.join(sorted(line for line in lines if not RACY.search(line))))


# ---- checkpoints ----

MODELS = ['linear', 'convnet', 'resnet18', 'resnet34', 'resnet50', 'resnet101', 'resnet152']
SHAPES = ['--data', 'synthetic:3x32x32,n=32,classes=5', '--batch', '2', '--no-eval', '--seed', '7', '--lr', '0.01']


def hashes(path):
    """A line for each tensor and for each item of the metadata."""
    header = header_of(path)
    with open(path, 'rb') as file:
        start = 8 + struct.unpack('<Q', file.read(8))[0]
        lines = []
        for name, about in header.items():
            if name == '__metadata__':
                lines += [f'metadata {key}: {value}' for key, value in about.items()]
                continue
            begin, end = about['data_offsets']
            file.seek(start + begin)
            digest = hashlib.sha256(file.read(end - begin)).hexdigest()
            lines.append(f'tensor {name} {about["dtype"]} {about["shape"]}: {digest}')
    return '\n'.join(sorted(lines)) + '\n'


def train(net, model, device, steps, folder, *more):
    env = {'OMP_NUM_THREADS': '1'}
    if device == 'cuda':
        module = next(path for path in net.build.rglob('device-cuda.so') if 'fake' in str(path))
        env |= {'BERTH_MODULE_PATH': f'{module.parent}:{net.build}/lib/modules', 'MALLOC_PERTURB_': '0',
                'XDG_CACHE_HOME': str(folder) + '.cache'}
        more = ['--deterministic', *more]
    stem = ['--stem', 'cifar'] if model.startswith('resnet') else []
    result = net.run(net.train, model, *SHAPES, *stem, '--device', device, '--steps', str(steps), '--ckpt', str(folder),
                     *more, timeout=300, **env)
    found = sorted(folder.glob('step-*.safetensors'))
    if result.returncode or not found:
        sys.exit(f'net: {model} on {device}: exit code {result.returncode}\n{result.stderr}')
    return found[-1]


def cases(net):
    fake = any('fake' in str(path) for path in net.build.rglob('device-cuda.so'))
    return [(model, device) for model in MODELS for device in ('cpu', 'cpu-reference', 'cuda')
            if device != 'cuda' or (fake and model in MODELS[:3])]


def continued(net, model, device, checkpoint):
    """What 2 more steps from that checkpoint compute."""
    folder = net.scratch / f'{model}-{device}-continued'
    text = hashes(train(net, model, device, 5, folder, '--resume', str(checkpoint)))
    shutil.rmtree(folder)
    return text


def record_checkpoints(net):
    def one(case):
        model, device = case
        folder = net.scratch / f'{model}-{device}'
        kept = net.out / 'checkpoints' / f'{model}-{device}.safetensors'
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(train(net, model, device, 3, folder), kept)
        shutil.rmtree(folder)
        net.write(f'{model}-{device}-trained', hashes(kept))
        net.write(f'{model}-{device}-continued', continued(net, model, device, kept.resolve()))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, cases(net)))


# ---- comparing ----

def records(folder, parts, table=None, leave=()):
    """Relative path: text, in the new names where a table is given."""
    out = {}
    for part in parts:
        for path in (folder / part).rglob('*.txt'):
            name, text = str(path.relative_to(folder)), path.read_text()
            if table:
                name, text = f'{part}/' + table.apply(part, name[len(part) + 1:]), table.apply(part, text)
            if any(fnmatch.fnmatch(name, pattern) for pattern in (*DELETED, *leave)):
                continue
            lines = text.split('\n')
            out[name] = sorted(lines) if part in SORTED or part == 'checkpoints' else lines
    return out


def compare(options):
    table = Table(options.table)
    parts = options.part
    if missing := [part for part in parts if not (options.old / part).is_dir()]:
        sys.exit(f'net: {options.old} has no records of {", ".join(missing)}: leave them out with --part')
    old, new = records(options.old, parts, table, options.leave), records(options.new, parts, None, options.leave)
    if options.build and 'checkpoints' in parts:
        with tempfile.TemporaryDirectory(prefix='net-') as scratch:
            net = Recorder(options.build, None, table, pathlib.Path(scratch))
            net.part = 'checkpoints'
            for path in sorted((options.old / 'checkpoints').glob('*.safetensors')):
                model, _, device = path.stem.partition('-')
                name = f'checkpoints/{path.stem}-continued.txt'
                again = f'checkpoints/{path.stem}-resumed-by-the-new-build'
                old[again] = old[name]
                new[again] = sorted(continued(net, model, device, path.resolve()).split('\n'))
    differ = 0
    for name in sorted(old.keys() | new.keys()):
        diff = list(difflib.unified_diff(old.get(name, []), new.get(name, []), f'old/{name}', f'new/{name}', lineterm=''))
        if diff:
            differ += 1
            print('\n'.join(diff))
    if not old:
        sys.exit(f'net: {options.old} has no records')
    if differ:
        print(f'net: {differ} of {len(old)} records differ', file=sys.stderr)
        return 1
    print(f'{len(old)} records equal')
    return 0


def record(options):
    table = options.table or options.source / TABLE
    table = Table(table if table.exists() else None)
    for part in options.part:
        shutil.rmtree(options.out / part, ignore_errors=True)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix='net-', ignore_cleanup_errors=True) as scratch:
            net = Recorder(options.build, options.out.resolve(), table, pathlib.Path(scratch), options.source)
            net.part, net.only = part, options.only
            globals()[f'record_{part}'](net)
        count = len(list((options.out / part).glob('*.txt')))
        print(f'{part}: {count} records in {time.monotonic() - started:.0f} s', flush=True)
        if not count:
            sys.exit(f'net: {part}: no records')
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    verbs = parser.add_subparsers(dest='verb', required=True)
    for verb in ('record', 'compare'):
        sub = verbs.add_parser(verb)
        sub.add_argument('--part', default=','.join(PARTS), help='a list of ' + ', '.join(PARTS))
        sub.add_argument('--build', type=pathlib.Path, required=verb == 'record')
        sub.add_argument('--table', type=pathlib.Path, required=verb == 'compare')
        if verb == 'record':
            sub.add_argument('--source', type=pathlib.Path, required=True)
            sub.add_argument('--only', default='', metavar='REGEX', help='exits: run only the tests of these names')
            sub.add_argument('out', type=pathlib.Path)
        else:
            sub.add_argument('--except', dest='leave', action='append', default=[], metavar='GLOB')
            sub.add_argument('old', type=pathlib.Path)
            sub.add_argument('new', type=pathlib.Path)
    options = parser.parse_args()
    options.part = options.part.split(',')
    if unknown := set(options.part) - set(PARTS):
        parser.error(f'no such part: {", ".join(sorted(unknown))}')
    return record(options) if options.verb == 'record' else compare(options)


if __name__ == '__main__':
    sys.exit(main())
