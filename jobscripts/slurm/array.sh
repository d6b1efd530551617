#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# A job array: the same program with a different number in each job, here as its last argument.
# Jobs that share a node do not disturb each other: each has its own port.
#
#   sbatch --array=0-7 --nodes=1 --gpus-per-node=1 --cpus-per-gpu=8 array.sh python train.py --seed
#SBATCH --array=0-1
#SBATCH --nodes=1
#SBATCH --time=01:00:00

berth=$(command -v @bindir@/berth || echo berth) # the installed one, else the one in PATH
"$berth" run -- "$@" "$SLURM_ARRAY_TASK_ID"
