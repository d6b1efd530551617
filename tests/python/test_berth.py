# SPDX-License-Identifier: BSD-3-Clause
"""The Python package without any framework."""
import importlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
import warnings

SOURCE, VERSION = os.environ['SOURCE'], os.environ['BERTH_VERSION']
BERTH = os.environ['BERTH']
sys.path.insert(0, os.path.join(SOURCE, 'lib', 'python', 'src'))
import berth  # noqa: E402

NAMES = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'CUDA_VISIBLE_DEVICES',
         'ROCR_VISIBLE_DEVICES', 'HIP_VISIBLE_DEVICES', 'ZE_AFFINITY_MASK')


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.before = dict(os.environ)
        for name in list(os.environ):
            if name in NAMES or name.startswith('BERTH_'):
                del os.environ[name]

    def tearDown(self):
        os.environ.clear()
        os.environ.update(self.before)
        self.folder.cleanup()

    def file(self, name, text=None):
        path = os.path.join(self.folder.name, name)
        if text is not None:
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text)
        return path

    def test_alone(self):
        self.assertEqual((berth.rank(), berth.world_size(), berth.local_rank(), berth.node_rank()), (0, 1, 0, 0))
        self.assertEqual((berth.plan(), berth.end_time(), berth.should_stop(), berth.device()), (None, None, False, 'cpu'))
        berth.heartbeat(3)
        berth.report(saved='x')

    def test_place(self):
        os.environ |= {'RANK': '5', 'WORLD_SIZE': '8', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '4', 'GROUP_RANK': '1'}
        self.assertEqual((berth.rank(), berth.world_size(), berth.local_rank(), berth.node_rank()), (5, 8, 1, 1))
        self.assertEqual(berth.local_world_size(), 4)
        os.environ['BERTH_NODE_RANK'] = '2'
        self.assertEqual(berth.node_rank(), 2)

    def test_bad_values(self):
        good = {'RANK': '1', 'WORLD_SIZE': '2', 'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '1'}
        for call, name, value in ((berth.rank, 'RANK', 'abc'), (berth.rank, 'RANK', '2'), (berth.rank, 'RANK', '-1'),
                                  (berth.rank, 'RANK', '\u0663'), (berth.rank, 'WORLD_SIZE', '0'),
                                  (berth.local_rank, 'LOCAL_RANK', '1'), (berth.local_rank, 'LOCAL_WORLD_SIZE', '3'),
                                  (berth.end_time, 'BERTH_END_TIME', 'soon'), (berth.node_rank, 'BERTH_NODE_RANK', '1.5')):
            os.environ |= good | {name: value}
            with self.assertRaisesRegex(berth.Error, f'^{name} is .*not a number from'):
                call()
            os.environ.pop('BERTH_END_TIME', None)
        for missing, call in (('WORLD_SIZE', berth.world_size), ('RANK', berth.rank)):
            os.environ |= good
            del os.environ[missing]
            with self.assertRaisesRegex(berth.Error, f'{missing} is not'):
                call()

    def test_plan(self):
        os.environ |= {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2', 'RANK': '1', 'WORLD_SIZE': '2'}
        ranks = [{'local_rank': 0, 'gpus': [{'ordinal': 0}]}, {'local_rank': 1, 'gpus': [{'ordinal': 3}], 'cpus': '4-7'}]
        os.environ['BERTH_PLAN_FILE'] = self.file('plan', json.dumps({'ranks': ranks}))
        self.assertEqual(berth.plan()['cpus'], '4-7')
        self.assertEqual(berth.device(), 'cuda:3')
        os.environ['ZE_AFFINITY_MASK'] = '0,1'
        self.assertEqual(berth.device(), 'xpu:3')
        for text in ('', '{', '[]', '{"ranks": 3}', '{"ranks": []}', '{"ranks": [{}]}', 'null'):
            self.file('plan', text)
            with self.assertRaisesRegex(berth.Error, '^BERTH_PLAN_FILE .* is no plan with local rank 1$'):
                berth.plan()
        os.environ['BERTH_PLAN_FILE'] = self.file('none')
        with self.assertRaisesRegex(berth.Error, 'No such file'):
            berth.plan()

    def test_device_without_a_plan(self):
        os.environ |= {'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2', 'WORLD_SIZE': '2', 'CUDA_VISIBLE_DEVICES': '4,5'}
        self.assertEqual(berth.device(), 'cuda:1')

    def test_files(self):
        os.environ |= {'BERTH_HEARTBEAT_FILE': self.file('beat'), 'BERTH_STOP_FILE': self.file('stop'),
                       'BERTH_REPORT': self.file('report'), 'BERTH_END_TIME': '1800000000'}
        berth.heartbeat(12, 'epoch\n3')
        with open(self.file('beat'), encoding='utf-8') as file:
            self.assertEqual(file.read(), '12 epoch 3\n')
        self.assertFalse(berth.should_stop())
        self.file('stop', 'time\n')
        self.assertTrue(berth.should_stop())
        self.assertEqual(berth.end_time(), 1800000000)
        os.environ['BERTH_END_TIME_FILE'] = self.file('end')
        self.assertEqual(berth.end_time(), 1800000000)
        self.file('end', '1800000060\n')
        self.assertEqual(berth.end_time(), 1800000060)
        os.unlink(self.file('end'))
        berth.report(saved='a"b', next='again')
        with open(self.file('report'), encoding='utf-8') as file:
            self.assertEqual(json.load(file), {'saved': 'a"b', 'next': 'again'})
        self.assertEqual(sorted(os.listdir(self.folder.name)), ['beat', 'report', 'stop'])

    def test_namesake(self):
        os.mkdir(self.file('berth-1.0.dist-info'))
        self.file('berth-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: berth\nVersion: 1.0\n')
        sys.path.insert(0, self.folder.name)
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter('always')
                importlib.reload(berth)
        finally:
            sys.path.remove(self.folder.name)
        self.assertIn('both installed', str(seen[0].message))

    def test_version(self):
        with open(os.path.join(SOURCE, 'lib', 'python', 'pyproject.toml'), 'rb') as file:
            self.assertEqual(tomllib.load(file)['project']['version'], VERSION)

    def test_a_job(self):
        program = ('import berth, os, sys; sys.stdout.write(f"{berth.rank()}/{berth.world_size()} {berth.local_rank()} '
                   '{berth.device()} {berth.plan()[\'rank\']} {berth.end_time() is not None}\\n"); berth.report(saved="s"); '
                   'sys.exit(berth.EXIT_STOPPED)')
        environment = self.before | {'PYTHONPATH': os.path.join(SOURCE, 'lib', 'python', 'src')}
        environment.pop('BERTH_END_TIME', None)
        job = subprocess.run([BERTH, 'run', '-n', '2', '--end-time', '+1h', '--', sys.executable, '-c', program],
                             env=environment, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(job.returncode, berth.EXIT_STOPPED, job.stderr)
        self.assertEqual(sorted(job.stdout.splitlines()), ['0/2 0 cpu 0 True', '1/2 1 cpu 1 True'])
        self.assertIn('saved: s', job.stderr)


if __name__ == '__main__':
    unittest.main()
