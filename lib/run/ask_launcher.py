# SPDX-License-Identifier: BSD-3-Clause
"""Ask accelerate or DeepSpeed what it would start: `python -c TEXT LAUNCHER ARGUMENTS`, once per job, in the
Python that runs the launcher (run_ask.c). Prints one JSON object on standard output:
  argv              the program of each rank
  env               the variables that the launcher sets on all ranks, without those for the ranks' places
  ranks, nodes, ranks_per_node, source    sizes that the user has given to the launcher, and where
  ignored           the user's choices of places, which berth replaces
or
  error, usage      why it does not start anything; whether its arguments are the reason"""
import sys

if sys.path[0] == '':
    del sys.path[0]  # the launcher's own script does not have the working directory there, either

import contextlib
import io
import json
import os
import shlex
import types


def program(args, script, arguments):
    python = [] if args.no_python else [sys.executable, '-u'] + ['-m'] * bool(args.module)
    return [*python, script, *arguments]


def ask_accelerate(arguments):
    """Run `accelerate launch` up to where it would start processes, as one machine without a network."""
    import torch.distributed.run as torchrun
    from accelerate.commands import launch

    answer = {'ignored': []}
    validate = launch._validate_launch_command

    def validate_and_place(args):
        typed = vars(args).copy()
        args, config, *rest = validate(args)
        given = {key: typed[key] if typed[key] is not None else getattr(config, key, None)
                 for key in ('num_processes', 'num_machines', 'num_cpu_threads_per_process', 'gpu_ids')}
        answer['ranks'], answer['nodes'] = given['num_processes'], given['num_machines']
        answer['source'] = ('accelerate launch' if typed['num_processes'] is not None or not config
                            else args.config_file or launch.default_config_file)
        answer['threads'] = given['num_cpu_threads_per_process']
        if given['gpu_ids'] not in (None, 'all'):
            answer['ignored'].append(f'gpu_ids {given["gpu_ids"]}')
        args.num_machines, args.machine_rank, args.main_process_ip = 1, 0, None
        args.main_process_port, args.gpu_ids, args.mpirun_hostfile = 0, 'all', None
        return (args, config, *rest)

    def capture(argv, env):
        answer['argv'], answer['env'] = argv, dict(env)

    def popen(argv, env=None):
        capture(argv, env or os.environ)
        return types.SimpleNamespace(wait=lambda: 0, returncode=0)

    def refuse(*_):
        raise ValueError('berth starts no ranks on TPUs and on SageMaker')

    torchrun.run = lambda args: capture(program(args, args.training_script, args.training_script_args), os.environ)
    launch.subprocess = types.SimpleNamespace(Popen=popen, CalledProcessError=RuntimeError)
    launch.tpu_launcher = launch.tpu_pod_launcher = launch.sagemaker_launcher = refuse
    launch._validate_launch_command = validate_and_place
    args = launch.launch_command_parser().parse_args(arguments)
    before = dict(os.environ)  # after the imports, which set variables in ranks, too
    launch.launch_command(args)
    place = {'MASTER_ADDR', 'MASTER_PORT'} | ({'OMP_NUM_THREADS'} if answer.pop('threads') is None else set())
    answer['env'] = {key: value for key, value in answer.get('env', {}).items()
                     if before.get(key) != value and key not in place}
    return answer


def ask_deepspeed(arguments):
    """Its launcher adds --local_rank=N to each rank's arguments, and three variables."""
    from deepspeed.launcher import runner

    args = runner.parse_args(arguments)
    if getattr(args, 'autotuning', ''):
        raise ValueError('berth does not start DeepSpeed\'s autotuning; use --per-node')
    script = program(args, args.user_script, [])
    line = ('export CROSS_RANK="$GROUP_RANK" CROSS_SIZE="$GROUP_WORLD_SIZE" LOCAL_SIZE="$LOCAL_WORLD_SIZE"; exec ' +
            shlex.join(script) + ('' if args.no_local_rank else ' --local_rank="$LOCAL_RANK"') + ' "$@"')
    given = {f'--{name}': getattr(args, name) for name in ('include', 'exclude') if getattr(args, name)}
    return {'argv': ['/bin/sh', '-c', line, args.user_script, *args.user_args], 'env': {},
            'ranks_per_node': args.num_gpus if args.num_gpus > 0 else None,
            'nodes': args.num_nodes if args.num_nodes > 0 else None, 'source': 'deepspeed',
            'ignored': [f'{name} {value}' for name, value in given.items()]}


def main():
    launchers = {'accelerate': ask_accelerate, 'deepspeed': ask_deepspeed}
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # only the answer goes to standard output
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            answer = launchers[sys.argv[1]](sys.argv[2:])
        if 'argv' not in answer:
            answer = {'error': 'it started no program', 'usage': False}
    except SystemExit:  # argparse: --help, or a wrong option
        answer = {'error': (said.getvalue().strip() or 'it prints its help').splitlines()[-1], 'usage': True}
    except Exception as error:
        answer = {'error': f'{type(error).__name__}: {error}', 'usage': isinstance(error, (ValueError, OSError))}
    with os.fdopen(answer_fd, 'w') as out:
        json.dump(answer, out)


main()
