# SPDX-License-Identifier: BSD-3-Clause
"""Training ResNet-18 (--stem cifar) on the CPU, compared with PyTorch, one process each:
    train_cpu.py BERTH... [--threads 2] [--batch 32] [--rounds 3] [--steps 16] [--python PYTHON]
Both train on batches of 3x32x32 in memory with SGD, momentum and weight decay; the faster of PyTorch's memory
formats counts. The programs take turns, so that other load affects all alike. Prints the best and the median step of
all rounds in images/s, the images per second of CPU time (which other programs disturb less; but waiting threads
spin, so it means most with --threads 1), and the largest resident size. With several builds of berth, the ratio is
that of the first. PYTHON (default: /usr/bin/python3) must have torch and torchvision (Debian: python3-torch,
python3-torchvision)."""
import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile

SKIPPED = 2  # warm-up steps

TORCH = '''
import sys, time, torch, torchvision
threads, batch, steps, skipped, layout = *map(int, sys.argv[1:5]), sys.argv[5]
torch.set_num_threads(threads)
torch.manual_seed(0)
model = torchvision.models.resnet18(num_classes=10)
model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
model = model.to(memory_format=getattr(torch, layout))
x = torch.randn(batch, 3, 32, 32).to(memory_format=getattr(torch, layout))
y = torch.randint(0, 10, (batch,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
criterion = torch.nn.CrossEntropyLoss()
times = []
for step in range(steps + skipped):
    if step == skipped:
        cpu = time.process_time()
    begin = time.perf_counter()
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    loss.item()
    times.append(time.perf_counter() - begin)
cpu = time.process_time() - cpu
print('PyTorch', torch.__version__, *(batch / seconds for seconds in times[skipped:]), steps * batch / cpu)
'''


def run(command, threads):
    """-> stdout, CPU seconds, the largest resident size in MiB."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        sys.exit(f'train_cpu.py: {command[:2]} exited with code {status}: {output[-2000:]}')
    return output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def torch(options, layout):
    output, _, size = run([options.python, '-c', TORCH, *map(str, (options.threads, options.batch, options.steps, SKIPPED)),
                           layout], options.threads)
    words = [line for line in output.splitlines() if line.startswith('PyTorch')][0].split()
    rates = [float(word) for word in words[2:]]
    return rates[:-1], rates[-1], size, ' '.join(words[:2])


def train(options, program, steps):
    with tempfile.TemporaryDirectory() as folder:
        output, cpu, size = run(
            [os.path.join(os.path.dirname(os.path.abspath(program)), 'berth-train'), 'resnet18', '--stem', 'cifar',
             '--device', 'cpu', '--data', f'synthetic:3x32x32,n={steps * options.batch},classes=10', '--batch',
             str(options.batch), '--steps', str(steps), '--lr', '0.1', '--momentum', '0.9', '--weight-decay', '1e-4',
             '--no-eval', '--log-every', '1', '--metrics', folder], options.threads)
        with open(os.path.join(folder, 'metrics.jsonl'), encoding='utf-8') as file:
            rows = [json.loads(line) for line in file]
    device = [line for line in output.splitlines() if line.startswith('computing on')]
    return [row['images_per_s'] for row in rows], cpu, size, device[0][len('computing on '):]


def berth(options, program):
    """The CPU time of a step is the difference between a long run and a short one."""
    _, short, _, _ = train(options, program, SKIPPED)
    rates, long, size, device = train(options, program, options.steps + SKIPPED)
    return rates[SKIPPED:], options.steps * options.batch / max(long - short, 1e-3), size, device


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('berth', nargs='+')
    parser.add_argument('--python', default='/usr/bin/python3')
    for name, default in (('threads', 2), ('batch', 32), ('rounds', 3), ('steps', 16)):
        parser.add_argument('--' + name, type=int, default=default)
    options = parser.parse_args()
    kinds = {program: functools.partial(berth, options, program) for program in options.berth}
    kinds |= {'contiguous': lambda: torch(options, 'contiguous_format'),
              'channels_last': lambda: torch(options, 'channels_last')}
    rates, cpu, sizes, words = ({name: [] for name in kinds} for _ in range(4))
    for _ in range(options.rounds):
        for name, start in kinds.items():
            steps, per_cpu, size, who = start()
            rates[name] += steps
            cpu[name].append(per_cpu)
            sizes[name].append(size)
            words[name] = who
    rows = {name: (max(rates[name]), statistics.median(rates[name]), statistics.median(cpu[name]), max(sizes[name]))
            for name in kinds}
    print(f'{options.rounds} rounds of {options.steps} steps of {options.batch}, {options.threads} threads, load '
          f'average {os.getloadavg()[0]:.1f}')
    print(f'{"images/s":48}{"best":>8}{"median":>8}{"CPU second":>12}{"MiB":>6}')
    for name, row in rows.items():
        label = words[name] if name in options.berth else f'{words[name]} {name}'
        print(f'{label:48}{row[0]:8.1f}{row[1]:8.1f}{row[2]:12.1f}{row[3]:6.0f}')
    faster = [max(rows['contiguous'][i], rows['channels_last'][i]) for i in range(3)]
    smaller = min(rows['contiguous'][3], rows['channels_last'][3])
    print(f'{"berth / PyTorch, the better of the two":48}'
          + ''.join(f'{rows[options.berth[0]][i] / faster[i]:{width}.2f}' for i, width in enumerate((8, 8, 12)))
          + f'{rows[options.berth[0]][3] / smaller:6.2f}')


if __name__ == '__main__':
    main()
