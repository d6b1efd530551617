#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""A FUSE file system that fails on command: faulty_fs.py BACKING MOUNT RULES

It passes each call on to the directory BACKING, and first looks for a line in the file RULES that
matches it. Mount BACKING twice for two clients: each caches attributes and names for a second, as NFS
does. A line is KIND OPERATION PATTERN [ERROR [COUNT]]:

    stall fsync */step-*        the call blocks until the line is gone from RULES
    error write *latest* EDQUOT the call does nothing and fails
    lose link * EIO 1           the call is made, but fails all the same, as if the reply was lost;
                                the first time only

OPERATION is a FUSE operation: open, create, read, write, flush (at close), fsync, fsyncdir, rename, link,
unlink, opendir, readdir, getattr, statfs, utimens; or any. PATTERN is for fnmatch and the path below
MOUNT, which begins with a slash; of a rename or link it is the new name. Each call that matched is a line
in RULES.seen: KIND OPERATION PATH. It ends when MOUNT is unmounted."""
import errno
import fnmatch
import os
import sys
import threading
import time

try:
    import fuse
except ImportError:  # Debian
    import fusepy as fuse


class FaultyFs(fuse.Operations):
    use_ns = True

    def __init__(self, backing, rules):
        self.backing = backing
        self.rules = rules
        self.used = {}
        self.guard = threading.Lock()

    def match(self, op, path):
        """-> (kind, error, line) of the first rule that matches, or None"""
        try:
            with open(self.rules, encoding='utf-8') as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return None
        for line in filter(None, lines):
            words = line.split()
            kind, wanted, pattern, error, count = words + ['EIO', '1000000000'][len(words) - 3:]
            if wanted not in (op, 'any') or not fnmatch.fnmatchcase(path, pattern):
                continue
            with self.guard:
                if self.used.get(line, 0) >= int(count):
                    continue
                self.used[line] = self.used.get(line, 0) + 1
                with open(self.rules + '.seen', 'a', encoding='utf-8') as file:
                    file.write(f'{kind} {op} {path}\n')
            return kind, getattr(errno, error), line
        return None

    def has(self, line):
        try:
            with open(self.rules, encoding='utf-8') as file:
                return line in file.read().splitlines()
        except FileNotFoundError:
            return False

    def __call__(self, op, path, *args):
        """fuse calls this for each operation."""
        if op in ('init', 'destroy'):
            return None
        rule = self.match(op, args[0] if op == 'rename' else path)
        while rule and rule[0] == 'stall':
            if self.has(rule[2]):
                time.sleep(0.02)
            else:  # other rules may hold by now
                rule = self.match(op, args[0] if op == 'rename' else path)
        if rule and rule[0] == 'error':
            raise fuse.FuseOSError(rule[1])
        result = getattr(self, op)(self.backing + path, *args)
        if rule:
            raise fuse.FuseOSError(rule[1])
        return result

    def getattr(self, path, fh=None):
        stat = os.lstat(path) if fh is None else os.fstat(fh)
        names = ('st_mode', 'st_ino', 'st_nlink', 'st_uid', 'st_gid', 'st_size', 'st_blocks')
        return {name: getattr(stat, name) for name in names} | {
            'st_atime': stat.st_atime_ns, 'st_mtime': stat.st_mtime_ns, 'st_ctime': stat.st_ctime_ns}

    def statfs(self, path):
        stat = os.statvfs(path)
        return {name: getattr(stat, name) for name in ('f_bsize', 'f_frsize', 'f_blocks', 'f_bfree', 'f_bavail',
                                                       'f_files', 'f_ffree', 'f_favail', 'f_namemax')}

    def opendir(self, path):
        os.scandir(path).close()
        return 0

    def readdir(self, path, fh):
        return ['.', '..'] + os.listdir(path)

    def releasedir(self, path, fh):
        return 0

    def fsyncdir(self, path, datasync, fh):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)

    def mkdir(self, path, mode):
        os.mkdir(path, mode)

    def rmdir(self, path):
        os.rmdir(path)

    def unlink(self, path):
        os.unlink(path)

    def rename(self, old, new):
        os.rename(old, self.backing + new)

    def link(self, target, source):
        os.link(self.backing + source, target)

    def chmod(self, path, mode):
        os.chmod(path, mode)

    def open(self, path, flags):
        return os.open(path, flags & ~os.O_NOFOLLOW)

    def create(self, path, mode, fi=None):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        os.truncate(path if fh is None else fh, length)

    def flush(self, path, fh):
        return 0

    def fsync(self, path, datasync, fh):
        os.fsync(fh)

    def release(self, path, fh):
        os.close(fh)

    def utimens(self, path, times=None):
        # The kernel sends "now" as this machine's time.
        os.utime(path, ns=times)


def main():
    backing, mount, rules = map(os.path.abspath, sys.argv[1:])
    fuse.FUSE(FaultyFs(backing, rules), mount, foreground=True, use_ino=True, hard_remove=False, fsname='faulty')


main()
