# SPDX-License-Identifier: BSD-3-Clause
"""The Python package with PyTorch, Lightning, transformers and JAX. A job stops in time, and resumes."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.environ['SOURCE'], 'lib', 'python', 'src')
PROGRAMS = os.path.join(os.environ['SOURCE'], 'examples')
PYTHON = os.environ['FRAMEWORKS']
sys.path.insert(0, PACKAGE)

# A rank's program; if it trains in the first attempt, rank VICTIM then kills its node's agent.
LOST = '''
"$@" || exit
[ "$BERTH_ATTEMPT" = 0 ] || exit 0
touch "$DIRECTORY/trained.$RANK"
if [ "$RANK" = "$VICTIM" ]; then
	rank=0
	while [ $rank -lt "$WORLD_SIZE" ]; do
		[ -e "$DIRECTORY/trained.$rank" ] && rank=$((rank + 1)) || sleep 0.1
	done
	kill -KILL "$PPID"
fi
exec sleep 200
'''


def run(*arguments, **changes):
    environment = os.environ | {'PYTHONPATH': PACKAGE, 'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1'} | changes
    return subprocess.run([os.environ['BERTH'], 'run', *arguments], env=environment, capture_output=True, text=True,
                          timeout=280, check=False)


class Frameworks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.report = os.path.join(self.folder.name, 'report.json')

    def tearDown(self):
        self.folder.cleanup()

    def job(self, ranks, program, code, *options, environment=None):
        job = run('-n', str(ranks), '--report', self.report, *options, '--', PYTHON, os.path.join(HERE, program),
                  os.path.join(self.folder.name, 'saved'), **(environment or {}))
        self.assertEqual(job.returncode, code, job.stdout + job.stderr)
        with open(self.report, encoding='utf-8') as file:
            return job.stdout, json.load(file)

    def samples(self):
        """What all ranks have trained on, in epochs."""
        seen = {}
        for name in os.listdir(self.folder.name):
            if name.startswith('saved.seen'):
                with open(os.path.join(self.folder.name, name), encoding='utf-8') as file:
                    for line in file:
                        epoch, sample = map(int, line.split())
                        seen.setdefault(epoch, []).append(sample)
        return seen

    def test_stop_and_resume_with_another_number_of_ranks(self):
        # 96 samples; 4 ranks stop after their second step of 4 samples each, then 3 ranks and 1 rank go on.
        _, report = self.job(4, 'resume.py', 75, environment={'STOP_AT': '2'})
        self.assertIn('saved.pt', report['saved'])
        self.job(3, 'resume.py', 75, environment={'STOP_AT': '7'})
        self.job(1, 'resume.py', 0)
        seen = self.samples()
        self.assertEqual(sorted(seen), [0, 1])
        for epoch, samples in seen.items():
            self.assertEqual(set(samples), set(range(96)), epoch)
            self.assertLessEqual(len(samples), 96 + 2, epoch)

    def test_stop_before_the_end_of_the_job(self):
        # Ranks 0 and 1 have clocks of their own, but stop after the same step.
        out, report = self.job(2, 'resume.py', 75, '--end-time', '+25s', environment={'SLEEP': '0.2', 'SAVE_SECONDS': '5'})
        steps = [line.split()[-1] for line in out.splitlines() if 'stopped at step' in line]
        self.assertEqual(len(steps), 2, out)
        self.assertEqual(len(set(steps)), 1, out)
        self.assertEqual(report['kind'], 'stopped')

    def test_stop_by_a_signal(self):
        _, report = self.job(2, 'resume.py', 75, environment={'SIGNAL_AT': '3'})
        self.assertIn('saved.pt', report['saved'])

    def test_lightning(self):
        _, report = self.job(2, 'stop_lightning.py', 75, environment={'SIGNAL_AT': '3'})
        self.assertIn('saved', report['saved'])
        out, _ = self.job(2, 'stop_lightning.py', 0)
        self.assertIn('resumed after step', out)

    def test_transformers(self):
        _, report = self.job(2, 'stop_transformers.py', 75, environment={'SIGNAL_AT': '3'})
        self.assertIn('checkpoint-', report['saved'])
        out, _ = self.job(2, 'stop_transformers.py', 0)
        self.assertIn('resumed after step', out)

    def spare(self, victim, *command):
        """4 ranks on two of three nodes train; a node is lost, and they train again with the spare."""
        job = run('--launcher', 'loopback', '-N', '3', '--spares', '1', '--max-restarts', '1', '-n', '4', *command,
                  DIRECTORY=self.folder.name, VICTIM=str(victim))
        output = job.stdout + job.stderr
        self.assertEqual(job.returncode, 0, output)
        self.assertNotIn('get no rank', output)
        self.assertIn('loop1 is excluded (lost): spare node loop2 replaces it', output)
        for rank in range(4):
            self.assertEqual(output.count(f'rank {rank} of 4 on {os.uname().nodename}: loss falls'), 2, output)

    def test_a_spare_with_torchrun(self):
        self.spare(1, '--per-node', '--', 'sh', '-c', LOST, 'sh', PYTHON, '-m', 'torch.distributed.run',
                   os.path.join(PROGRAMS, 'ddp.py'))

    def test_a_spare_with_lightning(self):
        self.spare(2, '--', 'sh', '-c', LOST, 'sh', PYTHON, os.path.join(PROGRAMS, 'lightning_trainer.py'))

    def test_a_spare_with_accelerate(self):
        self.spare(2, '--', 'sh', '-c', LOST, 'sh', PYTHON, os.path.join(PROGRAMS, 'accelerate_train.py'))

    def test_more_nodes_than_ranks(self):
        for program in 'lightning_trainer.py', 'accelerate_train.py':
            job = run('--launcher', 'loopback', '-N', '3', '-n', '2', '--', PYTHON, os.path.join(PROGRAMS, program))
            self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
            self.assertEqual(job.stdout.count('of 2 on'), 2, job.stdout)

    def test_exit_stopped(self):
        """Clean-up code and functions of atexit run; if they fail, that is the exit code."""
        def program(cleanup):
            return subprocess.run([PYTHON, '-c', f"""
import atexit, berth.torch
atexit.register(print, 'by atexit')
try:
    berth.torch.exit_stopped()
finally:
    {cleanup}
"""], env=os.environ | {'PYTHONPATH': PACKAGE}, capture_output=True, text=True, timeout=100, check=False)

        job = program('print("cleaned up")')
        self.assertEqual((job.returncode, job.stdout), (75, 'cleaned up\nby atexit\n'), job.stderr)
        job = program('raise ValueError("no space")')
        self.assertEqual((job.returncode, job.stdout), (1, 'by atexit\n'), job.stderr)
        job = program('raise SystemExit(3)')
        self.assertEqual((job.returncode, job.stdout), (75, 'by atexit\n'), job.stderr)

    def test_jax(self):
        out, _ = self.job(2, 'sum_jax.py', 0)
        self.assertEqual(out.count('2 processes, sum 3.0'), 2, out)

    def test_jax_alone(self):
        job = subprocess.run([PYTHON, os.path.join(HERE, 'sum_jax.py')], env=os.environ | {'PYTHONPATH': PACKAGE},
                             capture_output=True, text=True, timeout=100, check=False)
        self.assertIn('1 processes, sum 1.0', job.stdout, job.stderr)


if __name__ == '__main__':
    unittest.main()
