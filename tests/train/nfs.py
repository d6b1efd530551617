#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""One checkpoint directory on NFS 4.2, served by one virtual machine and mounted by two others:
nfs.py BERTH_TRAIN [--kills N] [--takeovers N] [--outage SECONDS]

The machines run Debian's kernel in qemu without KVM. The kernel and the NFS server's programs are
unpacked from Debian's packages into a temporary directory, never installed. Exits with 77 if qemu,
busybox or the packages are missing. A frozen machine (SIGSTOP to its qemu) stands for a stalled server
or a partitioned node; a killed one keeps its disk."""
import argparse
import glob
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PACKAGES = 'nfs-kernel-server nfs-common libnfsidmap1 libtirpc3 libtirpc-common libevent-core-2.1-7 libkeyutils1'.split()
MODULES = 'virtio_pci virtio_net virtio_blk nfsd nfsv4 md5 rpcsec_gss_krb5'.split()
INIT = r'''#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin LD_LIBRARY_PATH=/lib/x86_64-linux-gnu
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
for module in MODULES; do modprobe $module 2>/dev/null; done
role=$(sed 's/.*role=\([a-z0-9]*\).*/\1/' /proc/cmdline)
hostname $role
ip link set lo up
ip link set eth0 up
if [ $role = server ]; then
	ip link set eth1 up
	ip addr add 10.1.1.1/24 dev eth0
	ip addr add 10.1.2.1/24 dev eth1
	mount -t ext4 /dev/vda /disk
	# What the server knows of its clients outlives a reboot.
	mkdir -p /disk/export /disk/state/v4recovery
	mount --bind /disk/state /var/lib/nfs
	touch /etc/exports /var/lib/nfs/etab /var/lib/nfs/rmtab
	mount -t nfsd nfsd /proc/fs/nfsd
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	exportfs -o rw,no_root_squash,sync,fsid=0,insecure,no_subtree_check '*:/disk/export'
	rpc.mountd -N 3
	rpc.nfsd -N 3 -V 4.2 8
else
	net=${role#client}
	ip addr add 10.1.$net.2/24 dev eth0
	until mount -t nfs4 -o vers=4.2,hard,addr=10.1.$net.1,clientaddr=10.1.$net.2 10.1.$net.1:/ /mnt; do sleep 1; done
fi
stty -echo
echo "#rc 0"
while read -r line; do
	eval "$line"
	echo "#rc $?"
done
'''


def skip(why):
    print(f'skipped: {why}')
    sys.exit(77)


def run(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


class Machine:
    def __init__(self, bed, role, links):
        self.bed, self.role, self.links = bed, role, links
        self.start()

    def start(self):
        for own, _ in self.links:
            if os.path.exists(f'{self.bed.folder}/{own}'):
                os.remove(f'{self.bed.folder}/{own}')
        command = ['setpriv', '--pdeathsig', 'KILL', 'qemu-system-x86_64', '-accel', 'tcg', '-cpu', 'max', '-m', '512',
                   '-nodefaults', '-display', 'none', '-no-reboot', '-serial', 'stdio',
                   '-kernel', self.bed.kernel, '-initrd', self.bed.initrd,
                   '-append', f'console=ttyS0 quiet loglevel=3 role={self.role}']
        for i, (own, peer) in enumerate(self.links):
            command += ['-netdev', f'dgram,id=n{i},local.type=unix,local.path={self.bed.folder}/{own},'
                        f'remote.type=unix,remote.path={self.bed.folder}/{peer}',
                        '-device', f'virtio-net-pci,romfile=,netdev=n{i},mac=52:54:00:00:00:{self.bed.macs:02x}']
            self.bed.macs += 1
        if self.role == 'server':
            command += ['-drive', f'if=virtio,format=raw,file={self.bed.folder}/disk']
        self.qemu = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors='replace')

    def answer(self):
        lines = []
        for line in self.qemu.stdout:
            line = line.strip()
            if self.bed.verbose:
                print(f'{self.role}| {line}', flush=True)
            code = re.search(r'#rc (\d+)$', line)
            if code:
                return int(code[1]), '\n'.join(lines)
            lines.append(line)
        raise AssertionError(f'{self.role} ended: ' + '\n'.join(lines[-20:]))

    def do(self, command, code=0):
        self.qemu.stdin.write(command + '\n')
        self.qemu.stdin.flush()
        got, text = self.answer()
        assert code is None or got == code, f'{self.role}: {command}: {got}\n{text}'
        return text

    def kill(self):
        self.qemu.kill()
        self.qemu.wait()


class Bed:
    """The machines, and what they boot."""

    def __init__(self, folder, trainer, verbose):
        self.folder, self.verbose = folder, verbose
        self.macs = 1
        root = f'{folder}/root'
        self.unpack(root, trainer)
        self.kernel = glob.glob(f'{root}/boot/vmlinuz-*')[0]
        version = self.kernel.split('vmlinuz-')[1]
        run('busybox', 'depmod', '-b', root, version)
        self.initrd = f'{folder}/initrd'
        keep = [f'./{name}' for name in ('bin', 'lib', 'lib64', 'etc', 'init', 'proc', 'sys', 'dev', 'tmp', 'run',
                                         'mnt', 'disk', 'var')]
        wanted = set(self.modules(root, version))
        for path in glob.glob(f'{root}/lib/modules/**/*.ko', recursive=True):
            if path not in wanted:
                os.remove(path)
        subprocess.run(f'find {" ".join(keep)} | busybox cpio -o -H newc 2>/dev/null | gzip -1 >{self.initrd}', shell=True,
                       check=True, cwd=root)
        with open(f'{folder}/disk', 'wb') as file:
            file.truncate(256 << 20)
        run('/sbin/mkfs.ext4', '-q', f'{folder}/disk')
        self.server = Machine(self, 'server', [('s1', 'c1'), ('s2', 'c2')])
        self.server.answer()
        self.clients = [Machine(self, f'client{i}', [(f'c{i}', f's{i}')]) for i in (1, 2)]
        for client in self.clients:
            client.answer()

    def unpack(self, root, trainer):
        for name in ('bin', 'lib64', 'etc', 'proc', 'sys', 'dev', 'tmp', 'run', 'mnt', 'disk', 'var/lib/nfs'):
            os.makedirs(f'{root}/{name}')
        try:
            depends = run('apt-cache', 'depends', 'linux-image-cloud-amd64')
            image = re.search(r'linux-image-\S+', depends.split('Depends:')[1])[0]
            run('apt-get', 'download', '-qq', image, *PACKAGES, cwd=self.folder, stderr=subprocess.DEVNULL)
            for package in glob.glob(f'{self.folder}/*.deb'):
                run('dpkg-deb', '-x', package, root)
        except (OSError, subprocess.CalledProcessError, IndexError) as error:
            skip(f'cannot get the packages of the machines: {error}')
        programs = [trainer] + [f'{root}/usr/sbin/{name}' for name in ('rpc.nfsd', 'rpc.mountd', 'exportfs')]
        libraries = f'{root}/lib/x86_64-linux-gnu'
        env = dict(os.environ, LD_LIBRARY_PATH=f'{libraries}:{root}/usr/lib/x86_64-linux-gnu')
        os.makedirs(libraries, exist_ok=True)
        for program in programs:
            for path in re.findall(r'(/\S+) \(0x', run('ldd', program, env=env)):
                place = f'{root}/lib64' if 'ld-linux' in path else libraries
                if not os.path.exists(f'{place}/{os.path.basename(path)}'):
                    shutil.copy(path, place)
        for program in programs + [shutil.which('busybox')]:
            shutil.copy(program, f'{root}/bin')
        files = {'init': INIT.replace('MODULES', ' '.join(MODULES)), 'etc/passwd': 'root:x:0:0::/:/bin/sh\n',
                 'etc/group': 'root:x:0:\n', 'etc/services': 'nfs 2049/tcp\n', 'etc/hosts': '127.0.0.1 localhost\n'}
        for name, text in files.items():
            with open(f'{root}/{name}', 'w', encoding='utf-8') as file:
                file.write(text)
        os.chmod(f'{root}/init', 0o755)

    def modules(self, root, version):
        """The files of MODULES and of what they need"""
        folder = f'{root}/lib/modules/{version}'
        with open(f'{folder}/modules.dep', encoding='utf-8') as file:
            table = dict(line.split(':') for line in file.read().splitlines())
        todo = [path for path in table if os.path.basename(path)[:-3].replace('-', '_') in MODULES]
        while todo:
            path = todo.pop()
            yield os.path.join(folder, path)
            todo += table[path].split()

    def end(self):
        for machine in [self.server] + self.clients:
            machine.kill()


class Tests:
    def __init__(self, bed, options):
        self.bed, self.options = bed, options
        self.attempt = 0

    def start(self, client, *arguments):
        """A run in the background of that machine, as the next attempt of job 1; its output in /tmp/out"""
        self.attempt += 1
        client.do(f'SLURM_JOB_ID=1 SLURM_RESTART_COUNT={self.attempt} berth-train linear '
                  '--data synthetic:1x16x16,n=640,classes=5 --batch 8 --no-eval --log-every 100000 --keep 3 '
                  '--device cpu-reference --ckpt /mnt/c '
                  f'{" ".join(arguments)} >/tmp/out 2>&1 & pid=$!')

    def wait(self, client, code):
        text = client.do('wait $pid; echo "exit $?"; cat /tmp/out')
        if code is not None:
            assert f'exit {code}\n' in text, text
        return text

    def latest(self, client):
        text = client.do('cat /mnt/c/latest', None)
        return int(re.search(r'step-0*(\d+)\.', text)[1]) if 'step-' in text else 0

    def past(self, client, step, seconds=180):
        end = time.monotonic() + seconds
        while self.latest(client) <= step:
            assert time.monotonic() < end, client.do('cat /tmp/out')
            time.sleep(0.5)

    def sums(self, client):
        return client.do('cd /mnt/c; sha256sum latest step-*.safetensors; cd /')

    def whole(self, client):
        self.start(client, '--steps 3000 --save-every 100')
        self.wait(client, 0)
        sums = client.do('sha256sum /mnt/c/step-00003000.safetensors')
        client.do('rm -r /mnt/c')
        return sums

    def kill_storm(self):
        whole = self.whole(self.bed.clients[0])
        for i in range(self.options.kills + 1):
            client = self.bed.clients[i % 2]
            saved = self.latest(client)
            self.start(client, '--steps 3000 --save-every 100')
            if i < self.options.kills:
                client.do(f'usleep {random.randint(100, 4000) * 1000}; kill -KILL $pid', None)
            text = self.wait(client, 0 if i == self.options.kills else None)
            begun = re.search(r'resuming from .*: step (\d+),', text)
            assert not begun or int(begun[1]) >= saved, text
            assert 'skipped' not in text, text
        assert client.do('sha256sum /mnt/c/step-00003000.safetensors') == whole
        print(f'ok: {self.options.kills} kills, the same bits in the end', flush=True)

    def takeover(self):
        first, second = self.bed.clients
        for _ in range(self.options.takeovers):
            first.do('rm -rf /mnt/c')
            time.sleep(4)  # attribute caches
            self.start(first, '--steps 100000000 --save-every 20')
            self.past(first, 0)
            time.sleep(random.uniform(0, 1))
            first.qemu.send_signal(signal.SIGSTOP)
            end = self.latest(second) + 200
            self.start(second, f'--steps {end} --save-every 20')
            self.wait(second, 0)
            before = self.sums(second)
            assert self.latest(second) == end
            first.qemu.send_signal(signal.SIGCONT)
            text = self.wait(first, 73)
            assert 'was taken over by job 1' in text, text
            assert self.sums(second) == before
            assert self.sums(first) == before
        print(f'ok: {self.options.takeovers} takeovers, nothing undone', flush=True)

    def outage(self, kind):
        client, other = self.bed.clients
        before = self.latest(client)
        self.start(client, '--steps 1000000000 --save-every 2s')
        self.past(client, before)
        before = self.latest(client)
        if kind == 'frozen':
            self.bed.server.qemu.send_signal(signal.SIGSTOP)
        else:
            self.bed.server.kill()
        time.sleep(self.options.outage)
        if kind == 'frozen':
            self.bed.server.qemu.send_signal(signal.SIGCONT)
        else:
            self.bed.server.start()
            self.bed.server.answer()
        self.past(client, before)
        client.do('kill -TERM $pid')
        text = self.wait(client, 75)
        print(''.join(f'  {line}\n' for line in text.splitlines() if re.search('warning|error', line)), end='')
        step = self.latest(client)
        self.start(other, f'--steps {step + 10}')
        text = self.wait(other, 0)
        assert f'resuming from /mnt/c/step-{step:08}.safetensors' in text and 'skipped' not in text, text
        print(f'ok: server {kind} for {self.options.outage} s: the run continued, the next one resumed from step {step}',
              flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('trainer')
    parser.add_argument('--kills', type=int, default=12)
    parser.add_argument('--takeovers', type=int, default=3)
    parser.add_argument('--outage', type=int, default=30)
    parser.add_argument('--verbose', action='store_true')
    options = parser.parse_args()
    for program in ('qemu-system-x86_64', 'busybox', 'setpriv', '/sbin/mkfs.ext4', 'apt-get'):
        shutil.which(program) or skip(f'no {program}')
    with tempfile.TemporaryDirectory(prefix='berth-nfs-') as folder:
        bed = Bed(folder, options.trainer, options.verbose)
        try:
            tests = Tests(bed, options)
            tests.kill_storm()
            tests.takeover()
            tests.outage('frozen')
            tests.outage('killed')
        finally:
            bed.end()


main()
