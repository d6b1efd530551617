#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for OpenPBS on the nodes of cluster.py, based on captures of OpenPBS 23.06.

    pbs.py begin NODE...          on the login node: start a mom on each node, put the tools in CLUSTER/share/pbs/bin
    pbs.py mom ROOT NODE          the daemon on a node: starts, signals and ends tasks
    pbs.py TOOL ROOT ARGUMENTS    qsub, qstat, qdel, qsig, qrerun, pbs_tmrsh, pbsdsh (called by the scripts in bin)

It behaves as follows (tests/unit/alloc/pbs has the captures, pbs.bats the tests of this list):
- a batch script has the captured variables, starts in HOME with umask 077, and has its own session. The
  session leader is a shell that gets the script's path and waits for the script;
- a spawned task has the captured variables of such a task and none of its caller's: PATH=/bin:/usr/bin,
  no PBS_NODEFILE on the first host, PBS_TASKNUM in hexadecimal. It has its own session, its standard
  input is /dev/null, and its output goes to the job's file. When its first process exits, the others of
  its session are killed;
- pbs_tmrsh requires a host name exactly as in the node file (else it exits with code 255) and executes
  without a shell (254 if that fails). It exits with the task's code or signal number. The task survives
  if pbs_tmrsh is killed;
- pbsdsh always exits with code 0;
- qdel sends SIGTERM to the script's whole session, on the first host only. Shells die of it. The job
  lives until the session's last process ends, or until all of its processes get SIGKILL. Its comment then
  ends in "and terminated by USER@HOST";
- at the walltime the same happens, with a delay and with PBS's line in the output. So does qrerun, but
  then the script runs again as the same job; only run_count changes;
- qsub -v drops a newline at the end of a value; qstat -F json escapes quotes and backslashes in values once more,
  prints bytes that are not UTF-8 as they are, and appends ",NAME=VALUE" of the next variable to a value that ends in
  a backslash; qsub -C PREFIX ignores other directives;
- qsig sends its signal to the same processes; a signal that ends the leading shell ends the job at once.
  -s suspend and resume mean SIGSTOP and SIGCONT: tasks on other nodes, and other sessions, run on;
- at the script's end everything is killed except processes that created their own session.
Its configuration is CLUSTER/share/pbs/pbs.conf; below that directory, mom_priv/jobs/ID.SC is the script.
"""
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CAPTURES = os.path.join(HERE, '..', 'unit', 'alloc', 'pbs')
DOMAIN = '.bed.test'
KILL_DELAY_S = 10  # OpenPBS waits at least this long
LATE_S = 1  # delay of SIGTERM after the walltime; OpenPBS: 1.4 to 16
TOOLS = ['qsub', 'qstat', 'qdel', 'qsig', 'qrerun', 'pbs_tmrsh', 'pbsdsh']


def captured(name):
    with open(f'{CAPTURES}/{name}', encoding='utf-8') as file:
        return dict(line.rstrip('\n').split('=', 1) for line in file)


def read_job(root, job):
    with open(f'{root}/jobs/{job}.json', encoding='utf-8') as file:
        return json.load(file)


def write_job(root, job):
    path = f'{root}/jobs/{job["id"]}.json'
    with open(path + '.tmp', 'w', encoding='utf-8') as file:
        json.dump(job, file)
    os.rename(path + '.tmp', path)


def walltime(job):
    seconds = 0
    for field in job['resources'].get('walltime', '01:00:00').split(':'):
        seconds = seconds * 60 + int(field)
    return seconds


def hosts_of(job):
    return list(dict.fromkeys(job['lines']))


def node_of(host):
    return host.split('.')[0]


def ask(root, node, request, answer=True):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(f'{root}/mom-{node}')
        link.sendall(json.dumps(request).encode() + b'\n')
        return json.loads(link.makefile().readline()) if answer else None


# ---- a mom ----

class Mom:
    def __init__(self, root, node):
        self.root, self.node = root, node
        self.sessions = {}  # job: sids
        self.terminated = set()  # jobs that PBS is ending; these do not end with the leading shell
        self.killed = set()  # those of them whose processes have been killed
        self.count = 1
        self.lock = threading.Lock()

    def environment(self, job, name):
        index = [node_of(h) for h in hosts_of(job)].index(self.node)
        env = captured(name)
        with self.lock:
            self.count += 1
            task = self.count
        if name != 'two.env':
            if index == 0:
                env.pop('PBS_NODEFILE', None)
            env['PBS_TASKNUM'] = f'{index << 29 | task:08X}'
            env.pop('TAG', None)
        env.update(PBS_JOBID=job['id'], PBS_JOBCOOKIE=job['cookie'], PBS_JOBNAME=job['name'],
                   PBS_NODENUM=str(index), PBS_O_WORKDIR=job['workdir'], HOME=job['home'],
                   PBS_O_HOME=job['home'], PBS_JOBDIR=job['home'], TMPDIR='/tmp')
        if 'PBS_NODEFILE' in env:
            env['PBS_NODEFILE'] = job['nodefile']
        if name == 'two.env':
            env['PATH'] = f'/usr/bin:/bin:/usr/sbin:{self.root}/bin'
        env.update(job['variables'])
        return env

    def start(self, job, argv, env, words=None):
        output = open(job['output'], 'ab')
        stdin = os.open('/dev/null', os.O_RDONLY)
        if words is not None:
            stdin, end = os.pipe()
            os.write(end, words.encode())
            os.close(end)
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                os.umask(0o077)
                os.chdir(job['home'])
                os.dup2(stdin, 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.execvpe(argv[0], argv, env)
            except OSError as error:
                os.write(2, f'{argv[0]}: {error.strerror}\n'.encode())
            os._exit(254)
        output.close()
        os.close(stdin)
        with self.lock:
            self.sessions.setdefault(job['id'], []).append(pid)
        return pid

    def members(self, sids):
        for pid in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
                    state = file.read().rpartition(')')[2].split()[0]
                if state != 'Z' and os.getsid(int(pid)) in sids:
                    yield int(pid)
            except OSError:
                pass

    def signal(self, job, number, sids):
        for pid in self.members(sids):
            try:
                os.kill(pid, number)
            except OSError:
                pass

    def terminate(self, job):
        """Send SIGTERM, and SIGKILL on all hosts if the session still exists KILL_DELAY_S later."""
        self.terminated.add(job['id'])
        self.signal(job, signal.SIGTERM, [job['sid']])
        deadline = time.monotonic() + KILL_DELAY_S
        while time.monotonic() < deadline and list(self.members([job['sid']])):
            time.sleep(0.05)
        for host in hosts_of(job):
            ask(self.root, node_of(host), {'do': 'kill', 'job': job['id']})
        self.killed.add(job['id'])

    def over(self, job):
        with open(job['output'], 'a', encoding='utf-8') as file:
            file.write(f'=>> PBS: job killed: walltime {walltime(job) + LATE_S} exceeded limit {walltime(job)}\n')
        self.terminate(job)

    def run(self, link, request):
        job = read_job(self.root, request['job'])
        if request['do'] == 'spawn':
            name = 'spawned-first.env' if node_of(job['lines'][0]) == self.node else 'spawned.env'
            pid = self.start(job, request['argv'], self.environment(job, name))
            status = os.waitpid(pid, 0)[1]
            self.signal(job, signal.SIGKILL, [pid])
            link.sendall(json.dumps(status).encode() + b'\n')
        elif request['do'] == 'batch':
            # PBS starts a login shell, but root's profile here would set another PATH.
            pid = self.start(job, ['/bin/bash'], self.environment(job, 'two.env'), job['script'] + '\n')
            link.sendall(b'0\n')
            job['sid'] = pid
            write_job(self.root, job)
            limit = threading.Timer(walltime(job) + LATE_S, self.over, [job])
            limit.daemon = True
            limit.start()
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            limit.cancel()
            if job['id'] in self.terminated:
                # A late SIGKILL would reach the job's next run.
                while job['id'] not in self.killed:
                    time.sleep(0.05)
                self.terminated.discard(job['id'])
                self.killed.discard(job['id'])
                code = 271
            for host in hosts_of(job):
                ask(self.root, node_of(host), {'do': 'kill', 'job': job['id']})
            job = read_job(self.root, job['id'])
            job['code'] = code
            write_job(self.root, job)
        elif request['do'] == 'term':
            link.sendall(b'0\n')
            self.terminate(job)
        elif request['do'] == 'signal':
            self.signal(job, request['number'], [job['sid']])
            link.sendall(b'0\n')
        elif request['do'] == 'kill':
            self.signal(job, signal.SIGKILL, self.sessions.get(job['id'], []))
            link.sendall(b'0\n')

    def serve(self):
        door = socket.socket(socket.AF_UNIX)
        door.bind(f'{self.root}/mom-{self.node}')
        door.listen(64)
        while True:
            link, _ = door.accept()
            threading.Thread(target=self.answer, args=(link,), daemon=True).start()

    def answer(self, link):
        with link:
            try:
                self.run(link, json.loads(link.makefile().readline()))
            except BrokenPipeError:
                pass  # the caller has ended; the task continues


# ---- tools ----

def qsub_options(words, into):
    """Parse the options of a command line or of #PBS lines; return the rest."""
    left = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word in ('-N', '-l', '-v', '-j', '-o', '-e', '-q', '-A', '-W', '-P', '-k', '-m', '-M', '-r', '-C', '-p', '-S',
                    '-R', '-c'):
            into.setdefault(word, []).append(words.pop(0))
        elif word.startswith('-') and word != '-':
            sys.exit(f'qsub: invalid option {word}')
        else:
            left.append(word)
    return left


def chunks(select):
    for part in select.split('+'):
        fields = part.split(':')
        count = int(fields.pop(0)) if fields[0].isdigit() else 1
        resources = dict(f.split('=', 1) for f in fields)
        for _ in range(count):
            yield resources


def qsub(root, args):
    import shlex
    given = {}
    left = qsub_options(args, given)
    script = open(left[0], encoding='utf-8', errors='surrogateescape').read() if left else sys.stdin.read()
    options = {}
    prefix = given.get('-C', ['#PBS'])[0]
    for line in script.splitlines():
        if line.startswith(prefix + ' '):
            if qsub_options(shlex.split(line[len(prefix):], comments=True), options):
                sys.exit(f'qsub: illegal directive: {line}')
        elif line.strip() and not line.startswith('#'):
            break
    for key, values in given.items():
        options[key] = values + options.get(key, []) if key != '-l' else options.get(key, []) + values
    resources = {}
    for item in options.get('-l', []):
        key, value = item.split('=', 1)
        resources[key] = value
    with open(f'{root}/nodes', encoding='utf-8') as file:
        nodes = file.read().split()
    wanted = list(chunks(resources.get('select', '1')))
    if len(wanted) > len(nodes):
        sys.exit('qsub: Job would never run')
    lines = [node + DOMAIN for node, chunk in zip(nodes, wanted)
             for _ in range(int(chunk.get('mpiprocs', 1)))]
    number = len(os.listdir(f'{root}/jobs')) + 1
    job = {'id': f'{number}.pbs-head', 'name': options.get('-N', ['STDIN'])[0], 'lines': lines,
           'cookie': os.urandom(16).hex().upper(), 'workdir': os.getcwd(), 'home': root,
           'resources': resources, 'started': time.time(), 'variables': {},
           'vnodes': [f'({n}:' + ':'.join(f'{k}={v}' for k, v in c.items() if k != 'mpiprocs') + ')'
                      for n, c in zip(nodes, wanted)],
           'hosts': [f'{n}/0' for n, _ in zip(nodes, wanted)]}
    job['output'] = options.get('-o', [f'{root}/{job["name"]}.o{number}'])[0]
    for item in options.get('-v', []):
        for part in item.split(','):
            name, _, value = part.partition('=')
            job['variables'][name] = value if '=' in part else os.environ.get(name, '').rstrip('\n')
    job['nodefile'] = f'{root}/aux/{job["id"]}'
    job['script'] = f'{root}/mom_priv/jobs/{job["id"]}.SC'
    job['queue'] = options.get('-q', ['workq'])[0]
    job['arguments'] = args
    job['options'] = {option: values[0] for option, values in options.items()}
    job['runs'] = 1
    for path, text in ((job['nodefile'], '\n'.join(lines) + '\n'), (job['script'], script)):
        with open(path, 'w', encoding='utf-8', errors='surrogateescape') as file:
            file.write(text)
    os.chmod(job['script'], 0o700)
    write_job(root, job)
    print(job['id'], flush=True)
    after = [item.split(':', 1)[1] for item in options.get('-W', []) if item.startswith('depend=afterany:')]
    if after:
        if os.fork():
            return
        os.setsid()
        for fd in range(3):
            os.dup2(os.open('/dev/null', os.O_RDWR), fd)
        while 'code' not in read_job(root, after[0]):
            time.sleep(0.05)
        job['started'] = time.time()
        write_job(root, job)
    ask(root, node_of(lines[0]), {'do': 'batch', 'job': job['id']})


def qstat(root, args):
    if args[:3] != ['-f', '-F', 'json'] or len(args) != 4:
        sys.exit('qstat: this stand-in knows -f -F json JOB')
    try:
        job = read_job(root, args[3])
    except OSError:
        sys.exit(f'qstat: Unknown Job Id {args[3]}')
    sys.stdout.reconfigure(errors='surrogateescape')
    variables, last = {}, None
    for name, value in job['variables'].items():
        text = value.replace('\\', '\\\\').replace('"', '\\"')
        if last:
            variables[last] = f'{variables[last][:-1]},{name}={text}'
        else:
            last, variables[name] = name, text
        last = last if value.endswith('\\') else None
    print(json.dumps({'timestamp': int(time.time()), 'pbs_version': '23.06.06', 'Jobs': {job['id']: {
        'Job_Name': job['name'], 'job_state': 'R', 'exec_host': '+'.join(job['hosts']),
        'exec_vnode': '+'.join(job['vnodes']), 'Resource_List': job['resources'],
        'stime': time.ctime(job['started']), 'run_count': job['runs'], 'queue': job['queue'],
        'Output_Path': job['output'], 'Join_Path': 'oe', 'Rerunable': 'True',
        'Variable_List': {'PBS_O_WORKDIR': job['workdir'], **variables},
        'Submit_arguments': ' '.join(job['arguments']),
        'comment': 'Job run at ' + time.ctime(job['started']) + job.get('ended', ''),
        **{name: job['options'][option] for name, option in (('Priority', '-p'), ('Shell_Path_List', '-S'))
           if option in job['options']}}}}, indent='\t', ensure_ascii=False))


def qdel(root, args):
    job = read_job(root, args[0])
    job['ended'] = ' and terminated by root@pbs-head'
    write_job(root, job)
    ask(root, node_of(job['lines'][0]), {'do': 'term', 'job': job['id']})


def qsig(root, args):
    if args[0] != '-s' or len(args) != 3:
        sys.exit('qsig: this stand-in knows -s SIGNAL JOB')
    job = read_job(root, args[2])
    name = {'suspend': 'STOP', 'resume': 'CONT'}.get(args[1], args[1])
    ask(root, node_of(job['lines'][0]), {'do': 'signal', 'job': job['id'], 'number': signal.Signals['SIG' + name].value})


def qrerun(root, args):
    job = read_job(root, args[0])
    qdel(root, args)
    while 'code' not in read_job(root, job['id']):
        time.sleep(0.05)
    job.update(cookie=os.urandom(16).hex().upper(), runs=job['runs'] + 1, started=time.time(), ended='')
    write_job(root, job)
    ask(root, node_of(job['lines'][0]), {'do': 'batch', 'job': job['id']})


def this_job(root, tool):
    if 'PBS_NODEFILE' not in os.environ:
        print(f'{tool}: cannot find PBS_NODEFILE', file=sys.stderr)
        sys.exit(255)
    return read_job(root, os.environ['PBS_JOBID'])


def spawn(root, job, host, argv):
    return ask(root, node_of(host), {'do': 'spawn', 'job': job['id'], 'argv': argv})


def pbs_tmrsh(root, args):
    job = this_job(root, 'pbs_tmrsh')
    with open(os.environ['PBS_NODEFILE']) as file:
        lines = file.read().split()
    # As the real one: the place in the file that the variable names, among the nodes of the job.
    if args[0] not in lines or lines.index(args[0]) >= len(job['lines']):
        print(f'pbs_tmrsh: host "{args[0]}" is not a node in job <{job["id"]}>', file=sys.stderr)
        sys.exit(255)
    status = spawn(root, job, job['lines'][lines.index(args[0])], args[1:])
    sys.exit(os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


def pbsdsh(root, args):
    job = this_job(root, 'pbsdsh')
    hosts = job['lines']
    if args[0] == '-n':
        index = int(args[1])
        hosts, args = [hosts[index if index < len(hosts) else 0]], args[2:]
    elif args[0] == '-h':
        hosts, args = [h for h in dict.fromkeys(hosts) if h == args[1]], args[2:]
    argv = args[1:] if args[0] == '--' else args
    for host in hosts:
        status = spawn(root, job, host, argv)
        code = 256 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if code:
            print(f'pbsdsh: task 0x00000000 exit status {code}', file=sys.stderr)
    sys.exit(0)


# ---- beginning ----

def begin(nodes):
    root = os.environ['CLUSTER'] + '/share/pbs'
    for folder in ('bin', 'jobs', 'mom_priv/jobs', 'aux'):
        os.makedirs(f'{root}/{folder}', exist_ok=True)
    with open(f'{root}/nodes', 'w', encoding='utf-8') as file:
        file.write(' '.join(nodes))
    with open(f'{root}/pbs.conf', 'w', encoding='utf-8') as file:
        file.write(f'PBS_EXEC={root}\nPBS_HOME={root}\n')
    for tool in TOOLS:
        with open(f'{root}/bin/{tool}', 'w', encoding='utf-8') as file:
            file.write(f'#!/bin/sh\nexec {sys.executable} {os.path.abspath(__file__)} {tool} {root} "$@"\n')
        os.chmod(f'{root}/bin/{tool}', 0o755)
    for node in nodes:
        subprocess.Popen([sys.executable, f'{HERE}/cluster.py', 'on', node, sys.executable,
                          os.path.abspath(__file__), 'mom', root, node], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=open(f'{root}/mom-{node}.log', 'wb'),
                         start_new_session=True, close_fds=True)
    deadline = time.monotonic() + 20
    while not all(os.path.exists(f'{root}/mom-{node}') for node in nodes):
        if time.monotonic() > deadline:
            sys.exit(f'not all moms started within 20 s; see {root}/mom-*.log')
        time.sleep(0.02)


def main():
    what, args = sys.argv[1], sys.argv[2:]
    if what == 'begin':
        return begin(args)
    if what == 'mom':
        os.environ.clear()
        return Mom(*args).serve()
    return globals()[what](args[0], args[1:])


if __name__ == '__main__':
    if sys.argv[1:2] and sys.argv[1] in TOOLS + ['begin', 'mom']:
        sys.exit(main())
    sys.exit(__doc__)
